"""Layers by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hlorank.config import ConfigError
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.layers.registry import LAYERS


def test_layers_declare_how_far_they_mix(make_layer: Callable[..., Layer]) -> None:
    mixing = {name: make_layer(name).mixing for name in LAYERS}
    found = {how: {name for name in mixing if mixing[name] is how} for how in Mixing}
    assert found[Mixing.NEIGHBOURS] == {"sage", "graph_conv", "gcn", "gatv2", "gin", "edge_mlp"}
    assert found[Mixing.SEGMENT] == {"gps", "linear_attention", "squeeze_excite", "instance_norm"}
    assert found[Mixing.CONFIGURATIONS] == {"configuration_attention", "configuration_heads"}


def test_an_unknown_name_is_refused(make_layer: Callable[..., Layer]) -> None:
    with pytest.raises(ConfigError, match=r"model.block=sagee: .*sage"):
        make_layer("sagee")
