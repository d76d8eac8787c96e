"""The training step of every method: what it combines, what it writes to the table, and that it is unbiased."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from hlorank.config import ModelConfig
from hlorank.models.cost_model import CostModel
from hlorank.models.inputs import GraphInputs, InputSizes
from hlorank.training.combine import Combiner
from hlorank.training.data import Step
from hlorank.training.methods import METHODS
from hlorank.training.table import HistoricalTable

MakeInputs = Callable[..., GraphInputs]
ROWS = np.array([4, 1, 9, 7, 0])
SEGMENTS = 4


@pytest.fixture
def model() -> CostModel:
    torch.manual_seed(0)
    config = ModelConfig(6, 2, 3, False, 2, 0.0, ["mean", "max"])
    return CostModel(config, InputSizes("layout", 4, 6, 0), "sum").double()


def step_on(graph: GraphInputs, sampled: tuple[int, ...], draws: np.ndarray | None = None) -> Step:
    draws = np.zeros(SEGMENTS) if draws is None else draws
    return Step(graph, 0, ROWS, torch.ones(len(ROWS)), np.array(sampled), draws)


def fresh_total(model: CostModel, graph: GraphInputs) -> Tensor:
    with torch.no_grad():
        return sum((model.embed_rows(graph, j, ROWS) for j in range(SEGMENTS)), torch.zeros(()))


def filled_table(model: CostModel, graph: GraphInputs, present: tuple[int, ...]) -> HistoricalTable:
    """A table with the fresh embeddings of some segments, and of half of the configurations of one of them."""
    table = HistoricalTable(model.embedding_width, 10**6, "float32")
    warm = Combiner(model, METHODS["gst_e"], 1.0, table)
    for j in present:
        rows = ROWS[:2] if j == present[-1] else ROWS
        warm(step_on(graph, (j,))._replace(rows=rows), now=0)
    return table


@pytest.mark.parametrize("method", ["gst_one", "gst", "gst_e", "gst_ed"])
@pytest.mark.parametrize("count", [1, 2])
def test_the_aggregate_is_unbiased(method: str, count: int, model: CostModel, make_inputs: MakeInputs) -> None:
    """Exactly: over all samples and both outcomes of each segment's draw, with entries of the table missing."""
    graph = make_inputs(segments=SEGMENTS)
    specification, keep = METHODS[method], 0.3
    samples = list(combinations(range(SEGMENTS), count))
    outcomes = [(0.0, keep), (0.9, 1 - keep)] if specification.drop_stale else [(0.0, 1.0)]
    mean = torch.zeros(len(ROWS), model.embedding_width, dtype=torch.float64)
    for sampled in samples:
        for draw, probability in outcomes:
            table = filled_table(model, graph, (0, 2)) if specification.others == "table" else None
            combine = Combiner(model, specification, keep, table)
            total = combine(step_on(graph, sampled, np.full(SEGMENTS, draw)), now=1)
            mean += probability * total.detach() / len(samples)
    torch.testing.assert_close(mean, fresh_total(model, graph), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["gst_one", "gst", "gst_e", "gst_ed", "gst_efd"])
def test_all_segments_sampled_is_the_fresh_sum(method: str, model: CostModel, make_inputs: MakeInputs) -> None:
    graph = make_inputs(segments=SEGMENTS)
    table = HistoricalTable(model.embedding_width, 10**6, "float32") if METHODS[method].others == "table" else None
    total = Combiner(model, METHODS[method], 0.5, table)(step_on(graph, tuple(range(SEGMENTS))), now=0)
    torch.testing.assert_close(total.detach(), fresh_total(model, graph))
    assert total.requires_grad


def test_only_sampled_segments_reach_the_gradient(model: CostModel, make_inputs: MakeInputs) -> None:
    graph = make_inputs(segments=SEGMENTS)
    table = filled_table(model, graph, (0, 1, 2, 3, 3))
    total = Combiner(model, METHODS["gst_e"], 1.0, table)(step_on(graph, (1,)), now=1)
    ours = torch.autograd.grad(total.sum(), list(model.encoder.parameters()), allow_unused=True)
    # Its entries are all there, so that it weighs 1.
    alone = torch.autograd.grad(
        model.embed_rows(graph, 1, ROWS).sum(), list(model.encoder.parameters()), allow_unused=True
    )
    for one, other in zip(ours, alone, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_fresh_embeddings_are_written_once_each(model: CostModel, make_inputs: MakeInputs) -> None:
    graph = make_inputs(segments=SEGMENTS)
    table = HistoricalTable(model.embedding_width, 10**6, "float32")
    combine = Combiner(model, METHODS["gst_ed"], 0.5, table)
    combine(step_on(graph, (2,)), now=3)
    distinct = len(np.unique(graph.partition.local_codes[ROWS, 2]))
    assert len(table) == distinct
    assert (combine.cost.looked_up, combine.cost.found) == (SEGMENTS * len(ROWS), 0)
    combine(step_on(graph, (1,)), now=8)
    assert combine.cost.found == len(ROWS)
    assert combine.cost.used == distinct
    assert combine.cost.staleness == 5 * distinct


def test_missing_and_dropped_segments_cost_nothing(model: CostModel, make_inputs: MakeInputs) -> None:
    graph = make_inputs(segments=SEGMENTS)
    combine = Combiner(model, METHODS["gst_one"], 0.5, None)
    combine(step_on(graph, (2,)), now=0)
    segment = graph.segments[2]
    assert combine.cost.plain_rows == 2 * segment.nodes * len(ROWS)
    assert 0 < combine.cost.rows < combine.cost.plain_rows
