"""Every layer mixes as far as it declares, and its two forms are equal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hlorank.models.inputs import GraphInputs
from hlorank.models.layers.configuration_attention import ConfigurationAttention
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.layers.sage import SageLayer
from hlorank.models.layers.squeeze_excite import SqueezeExcite
from hlorank.models.state import State

WIDTH, CONFIGURATIONS = 64, 3
LAYERS: dict[str, Callable[[], Layer]] = {
    "sage": lambda: SageLayer(WIDTH, dropout=0.0),
    "squeeze_excite": lambda: SqueezeExcite(WIDTH),
    "configuration_attention": lambda: ConfigurationAttention(WIDTH),
}


def reached_from(mixing: Mixing, graph: GraphInputs, place: int, configuration: int) -> set[tuple[int, int]]:
    """The (node, configuration) pairs that a state may change in a layer that mixes so far."""
    (segment,) = graph.segments
    if mixing is Mixing.SEGMENT:
        return {(node, configuration) for node in range(segment.nodes)}
    if mixing is Mixing.CONFIGURATIONS:
        return {(place, other) for other in range(CONFIGURATIONS)}
    order = np.argsort(segment.node_ids)
    edges = order[graph.features.edge_index]
    neighbours = (
        {end for edge in edges.tolist() for end in edge if place in edge} if mixing is Mixing.NEIGHBOURS else set()
    )
    return {(node, configuration) for node in {place, *neighbours}}


@pytest.mark.parametrize("name", LAYERS)
def test_declarations_are_true_and_tight(name: str, make_inputs: Callable[..., GraphInputs]) -> None:
    graph = make_inputs(nodes=16)
    (segment,) = graph.segments
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    x = torch.randn(16, CONFIGURATIONS, WIDTH, dtype=torch.float64)
    for place in range(16):
        changed = x.clone()
        changed[place, 1] += torch.randn(WIDTH, dtype=torch.float64)
        with torch.no_grad():
            differs = (layer(changed, segment) != layer(x, segment)).any(dim=-1)
        assert set(map(tuple, differs.nonzero().tolist())) == reached_from(layer.mixing, graph, place, 1)


@pytest.mark.parametrize("name", [name for name, make in LAYERS.items() if make().mixing is not Mixing.SEGMENT])
def test_spreading_equals_the_plain_form(
    name: str, make_inputs: Callable[..., GraphInputs], first_state: Callable[..., State]
) -> None:
    for segment in make_inputs(segments=3, nodes=60).segments:
        torch.manual_seed(0)
        layer = LAYERS[name]().double()
        state = first_state(segment, CONFIGURATIONS, WIDTH, apart=layer.mixing is Mixing.CONFIGURATIONS)
        x = state.dense()
        for _ in range(3):
            state, x = layer.spread(state, segment), layer(x, segment)
            torch.testing.assert_close(state.dense(), x, rtol=1e-11, atol=1e-13)
        assert 0 < state.rows.reached < segment.nodes or layer.mixing is Mixing.NEIGHBOURS
