"""Node states: functions of them equal the same functions of their dense form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hlorank.models.inputs import GraphInputs
from hlorank.models.node_states import NodeStates

MakeInputs = Callable[..., GraphInputs]
MakeStates = Callable[..., NodeStates]


@pytest.fixture(params=["shared", "not shared", "dense", "one configuration"])
def states(request: pytest.FixtureRequest, make_inputs: MakeInputs, make_states: MakeStates) -> NodeStates:
    (segment,) = make_inputs(nodes=30).segments
    if request.param == "dense":
        generator = torch.Generator().manual_seed(0)
        return NodeStates.of_dense(torch.randn(30, 3, 4, dtype=torch.float64, generator=generator))
    return make_states(segment, 1 if request.param == "one configuration" else 3, 4, request.param != "not shared")


def assert_same(states: NodeStates, ours: Callable[[NodeStates], Tensor], dense: Callable[[Tensor], Tensor]) -> None:
    """Compare values and gradients of a function of states with those of a function of their dense form."""
    values = states.values.requires_grad_()
    results = ours(states), dense(values[torch.from_numpy(states.colouring.colour_of)])
    torch.testing.assert_close(*results)
    weight = torch.randn(results[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = (torch.autograd.grad((result * weight).sum(), values)[0] for result in results)
    torch.testing.assert_close(*gradients)


def test_poolings_equal_the_dense_form(states: NodeStates) -> None:
    assert_same(states, NodeStates.dense, lambda x: x)
    assert_same(states, NodeStates.sum, lambda x: x.sum(dim=0))
    assert_same(states, NodeStates.max, lambda x: x.max(dim=0).values)


def test_some_nodes(states: NodeStates) -> None:
    kept = np.random.default_rng(0).random(30) < 0.4
    some = states.restrict(kept)
    assert some.colouring.prefix == kept[: states.colouring.prefix].sum()
    assert len(some.colouring) <= min(len(states.colouring), some.colouring.colour_of.size)
    mask = torch.from_numpy(kept)
    assert_same(states, lambda states: states.restrict(kept).dense(), lambda x: x[mask])
    assert_same(states, lambda states: states.restrict(kept).max(), lambda x: x[mask].max(dim=0).values)


def test_a_function_of_nodes_that_share_no_colour(make_inputs: MakeInputs, make_states: MakeStates) -> None:
    (segment,) = make_inputs(nodes=30).segments
    states = make_states(segment, 3, 4, share=False)
    mapped = states._replace(values=states.map_nodes(lambda x: x - x.mean(dim=1, keepdim=True)))
    x = states.dense()
    torch.testing.assert_close(mapped.dense(), x - x.mean(dim=1, keepdim=True))
