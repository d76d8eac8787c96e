"""Layers that users add: one of each mixing, and one that widens states, work everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

from hlorank.config import ConfigError
from hlorank.models.compression.declarations import EdgeForm, EdgeKind, Mixing, Norm
from hlorank.models.compression.plan import QuotientEdges
from hlorank.models.layers import registry
from hlorank.models.layers.layer import Layer, map_nodes
from hlorank.models.scoring import score_configurations
from tests.models.dense_form import MakeInputs, MakeModel, both_forms, embed_rows


class OwnRow(Layer):
    mixing = Mixing.ROW

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor, _: object) -> Tensor:
        result: Tensor = self.linear(x)
        return result


class OwnConvolution(Layer):
    """A convolution of PyTorch Geometric."""

    mixing = Mixing.NEIGHBOURS
    edges = EdgeKind(Norm.SUM, "shared", itself=False, form=EdgeForm.DIRECTIONS)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = TransformerConv(width, width)

    def forward(self, x: Tensor, graph: QuotientEdges[Tensor]) -> Tensor:
        own = x if graph.roots is None else x[graph.roots.column]
        result: Tensor = self.convolution((x, own), *graph.directions)
        return result


class OwnCentred(OwnRow):
    mixing = Mixing.SEGMENT

    def forward(self, x: Tensor, graph: object) -> Tensor:
        return super().forward(x, graph) - x.mean(dim=0)


class OwnCompared(OwnRow):
    mixing = Mixing.CONFIGURATIONS

    def forward(self, x: Tensor, index: Any) -> Tensor:
        return super().forward(x, index) - map_nodes(
            lambda states: states.mean(dim=1, keepdim=True) + 0 * states, x, index
        )


class OwnWider(OwnRow):
    """States, and a map of them."""

    widens = 3

    def __init__(self, width: int) -> None:
        super().__init__(width // 3)
        self.linear = nn.Linear(width // 3, 2 * width // 3)

    def forward(self, x: Tensor, graph: object) -> Tensor:
        return torch.cat([x, super().forward(x, graph)], dim=-1)


OWN: Mapping[str, type[Layer]] = {
    "own_row": OwnRow,
    "own_convolution": OwnConvolution,
    "own_centred": OwnCentred,
    "own_compared": OwnCompared,
    "own_wider": OwnWider,
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, layer in OWN.items():
        monkeypatch.setitem(registry.LAYERS, name, layer)


@pytest.mark.parametrize("name", OWN)
def test_any_join_halo_and_bound_of_memory(name: str, make_model: MakeModel, make_inputs: MakeInputs) -> None:
    """Segments with a halo of as many hops as there are layers give the embedding of the whole graph."""
    for join in ("early", "late", "every"):
        stem = [] if name == "own_wider" and join != "early" else [name]
        model = make_model(join=join, stem=stem, block=["sage", name, "gelu"])
        forms = both_forms(model, make_inputs(segments=2), np.array([3, 0, 3, 7]))
        torch.testing.assert_close(*forms, rtol=1e-9, atol=1e-9)
    model, rows = make_model(block=["linear", name], pooling=["sum"]), np.arange(5)
    whole, cut = make_inputs(), make_inputs(segments=3, halo=2)
    scores = score_configurations(model, cut, rows, 2**30)
    np.testing.assert_allclose(score_configurations(model, cut, rows, 1), scores, rtol=1e-9)
    if Mixing.SEGMENT in model.recipe.mixing:
        with pytest.raises(ConfigError, match=r"own_centred.*partition\.halo"):
            model.check_halo(halo=True)
        return
    total = torch.stack([embed_rows(model, cut, j, rows) for j in range(3)]).sum(dim=0)
    torch.testing.assert_close(total, embed_rows(model, whole, 0, rows))


def test_widths_before_a_layer_that_widens_are_narrower(make_model: MakeModel) -> None:
    stem = ["instance_norm", "own_wider", "gelu", "linear", "own_wider"]
    config = make_model(width=9).config
    assert registry.widths(stem, config, "model.stem") == [3, 3, 9, 9, 3, 9]
    assert registry.widths(["sage", "gelu", "residual"], config, "model.block") == [9, 9, 9, 9]
    assert make_model(width=9, stem=stem).encoder.numeric.out_features == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"block": ["own_wider"]},
        {"block": ["gelu", "own_wider", "linear"]},
        {"block": ["linear", "residual", "own_wider"]},
        {"stem": ["linear", "residual", "own_wider"]},
        {"stem": ["own_wider"], "join": "late"},
        {"width": 7, "block": ["linear", "own_wider"]},
    ],
)
def test_widths_that_do_not_fit_are_refused(changes: dict[str, Any], make_model: MakeModel) -> None:
    with pytest.raises(ConfigError, match=r"model\.(block|stem): .*widens|model\.width=7: own_wider"):
        make_model(**{"width": 9, **changes})
