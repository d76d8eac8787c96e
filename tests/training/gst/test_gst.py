"""Aggregation in the training step of every method: unbiased, with the table that the method has; and the table."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hlorank.config import ConfigError, PartitionConfig, SegmentsConfig
from hlorank.files import DataError
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.partition.partitioners import partition_graph
from hlorank.partition.segments import whole_graph
from hlorank.training.gst.aggregator import Aggregator, StepCost
from hlorank.training.gst.embedding_table import ENTRY_OVERHEAD, EmbeddingTable, entry_keys
from hlorank.training.methods import METHODS
from hlorank.training.step_plans import Step, StepPlanner
from tests.graphs import make_features, make_inputs, make_model
from tests.models.dense_form import embed_rows

ROWS = np.array([4, 1, 9, 7, 0])
SEGMENTS = 4
BLOCK = ["layer_norm", "sage", "gelu", "residual"]


@pytest.fixture
def model() -> CostModel:
    return make_model()


@pytest.fixture
def graph() -> GraphInputs:
    return make_inputs(segments=SEGMENTS)


class Steps(Aggregator):
    """An aggregator of steps on one graph; what its table lacks is computed, or left out ("reweight")."""

    def __init__(
        self, model: CostModel, graph: GraphInputs, method: str, keep: float = 1.0, missing: str = "reweight"
    ) -> None:
        table = {"table_bytes": 10**6, "table_dtype": "float32", "configs_per_graph": None, "redraw_epochs": 1}
        values = {"sampled": 1, "aggregation": "mean", "missing": missing, "keep_probability": keep, **table}
        settings = SegmentsConfig.model_validate({**values, "finetune_epochs": 1})
        super().__init__(model, METHODS[method], settings)
        self.graph, self.planner = graph, StepPlanner.of(model, self.method)

    def run(self, *sampled: int, now: int = 1, draws: Sequence[float] = (), rows: np.ndarray = ROWS) -> Tensor:
        """Return the aggregate of a step on the device of the model; the draws are 0 by default."""
        uniform = np.array(draws or np.zeros(len(self.graph.segments)))
        step = self.planner(Step(self.graph, 0, rows, np.ones(len(rows)), np.array(sampled), uniform))
        device = next(self.model.parameters()).device
        planner, graph = self.planner, self.graph
        return self(step.to(device), lambda _, chosen: planner.without_gradient(graph, chosen), now)

    def fill(self, *present: int) -> None:
        """Write fresh embeddings of some segments into the table, if any; of the last under some configurations."""
        warm = Steps(self.model, self.graph, "gst_e")
        for j in present:
            warm.run(j, now=0, rows=ROWS[:2] if j == present[-1] else ROWS)
        self.table = None if self.table is None else warm.table

    @property
    def entries(self) -> EmbeddingTable:
        """The table."""
        assert self.table is not None
        return self.table


def fresh_total(model: CostModel, graph: GraphInputs) -> Tensor:
    with torch.no_grad():
        return sum((embed_rows(model, graph, j, ROWS) for j in range(SEGMENTS)), torch.zeros(()))


def distinct_of(graph: GraphInputs) -> list[int]:
    """Return the number of local configurations of each segment."""
    return [len(np.unique(graph.partition.local_codes[ROWS, j])) for j in range(SEGMENTS)]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("method", "missing"),
    [(name, "reweight") for name in ("gst_one", "gst", "gst_e", "gst_ed")]
    + [("gst_e", "compute"), ("gst_ed", "compute")],
)
def test_the_aggregate_is_unbiased(method: str, missing: str, count: int, model: CostModel, graph: GraphInputs) -> None:
    """Exactly: over all samples and both outcomes of each segment's draw, with entries of the table missing."""
    keep, expected = 0.3 if METHODS[method].drop_stale else 1.0, fresh_total(model, graph)
    samples, mean = list(combinations(range(SEGMENTS), count)), torch.zeros(expected.shape)
    for sampled, (draw, probability) in product(samples, [(0.0, keep), (0.9, 1 - keep)]):
        combine = Steps(model, graph, method, keep, missing)
        combine.fill(0, 2)
        total = combine.run(*sampled, draws=[draw] * SEGMENTS).detach()
        if (method, missing) == ("gst_e", "compute"):
            torch.testing.assert_close(total, expected)
        mean = mean + probability * total / len(samples)
    torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-6)


def test_missing_entries_are_computed_once_and_only_where_kept(model: CostModel, graph: GraphInputs) -> None:
    distinct, draws = distinct_of(graph), [0.0, 0.0, 0.9, 0.0]  # the third is dropped
    combine = Steps(model, graph, "gst_ed", 0.5, "compute")
    for now, found in ((3, 0), (4, 3 * len(ROWS))):
        combine.cost = StepCost()
        assert combine.run(1, draws=draws, now=now).requires_grad
        assert (combine.cost.found, len(combine.entries)) == (found, sum(distinct) - distinct[2])
    one = Steps(model, graph, "gst_one")
    one.run(1)
    assert combine.cost.states == one.cost.states  # nothing else is computed again


def test_entries_of_the_step_are_not_evicted_by_those_that_it_computes(model: CostModel, graph: GraphInputs) -> None:
    """A full table, whose oldest entries are of this step's graph."""
    combine, distinct = Steps(model, graph, "gst_e", missing="compute"), sum(distinct_of(graph))
    combine.table = EmbeddingTable(model.embedding_width, distinct * combine.entries.entry_bytes, "float32")
    combine.run(0, now=0, rows=ROWS[:2])
    others = distinct - len(combine.table)
    combine.table.write(list(range(-others, 0)), torch.zeros(others, model.embedding_width), step=1)  # another graph's
    torch.testing.assert_close(combine.run(0, now=2).detach(), fresh_total(model, graph))


def test_fresh_embeddings_are_written_once_each(model: CostModel, graph: GraphInputs) -> None:
    combine, distinct = Steps(model, graph, "gst_ed", 0.5), distinct_of(graph)[2]
    combine.run(2, now=3)
    assert (combine.cost.looked_up, combine.cost.found) == (SEGMENTS * len(ROWS), 0)
    assert len(combine.entries) == distinct
    combine.run(1, now=8)
    assert (combine.cost.found, combine.cost.used, combine.cost.staleness) == (len(ROWS), distinct, 5 * distinct)


@pytest.mark.parametrize("method", METHODS)
def test_a_table_keeps_nothing_that_depends_on_other_configurations(method: str, graph: GraphInputs) -> None:
    model = make_model(block=[*BLOCK, "configuration_attention"])
    if METHODS[method].others == "table":
        with pytest.raises(ConfigError, match=r"model\.block: with configuration_attention"):
            Steps(model, graph, method)
    else:
        Steps(model, graph, method)


@pytest.mark.parametrize("method", ["gst_one", "gst", "gst_e"])
def test_a_step_runs_where_the_model_is(method: str, model: CostModel, graph: GraphInputs) -> None:
    """On the device `meta`, which refuses tensors of another one."""
    combine = Steps(model.to(torch.device("meta")), graph, method)
    for now, sampled in enumerate([(0, 1, 2, 3), (2,)]):
        total = combine.run(*sampled, now=now)
        assert (total.shape, total.device.type) == ((len(ROWS), model.embedding_width), "meta")
        torch.autograd.backward(model.score(total, SEGMENTS).sum())


@pytest.mark.parametrize("method", ["gst", "gst_e"])
def test_parts_of_a_segment_have_the_same_gradients(method: str, model: CostModel) -> None:
    results = []
    model.recipe = replace(model.recipe, compress=False)
    for max_states in (None, 1):
        combine = Steps(model, make_inputs(segments=2), method)
        combine.planner = replace(combine.planner, max_states=max_states)
        total = combine.run(1)
        results.append((total, torch.autograd.grad(total.square().sum(), list(model.encoder.parameters()))))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


def trained_on(model: CostModel, graph: GraphInputs, method: str) -> list[Tensor]:
    """Return scores and gradients of a step in which every segment has a gradient."""
    segments = len(graph.segments)
    scores = model.score(Steps(model, graph, method).run(*range(segments)), segments)
    return [scores.detach(), *torch.autograd.grad(scores.square().mean(), list(model.parameters()))]


@settings(max_examples=25)
@given(
    parts=st.lists(st.integers(4, 12), min_size=4, max_size=6),
    layers=st.integers(1, 3),
    attention=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_segments_that_cut_no_edge_equal_training_on_the_whole_graph(
    parts: list[int], layers: int, attention: bool, seed: int
) -> None:
    features, owner = make_features(nodes=sum(parts), seed=seed), np.repeat(np.arange(len(parts)), parts)
    edges = features.edge_index[owner[features.edge_index[:, 0]] == owner[features.edge_index[:, 1]]]
    features = replace(features, edge_index=edges, node_splits=np.cumsum([0, *parts]))
    model = make_model(blocks=layers, block=[*BLOCK, *["configuration_attention"] * attention], pooling=["sum"])
    cut = partition_graph(features, PartitionConfig(algorithm="computation", max_nodes=12))
    ours = trained_on(model, GraphInputs(features, cut), "gst")
    theirs = trained_on(model, GraphInputs(features, whole_graph(features)), "full")
    least = 0.1 * max(gradient.norm() for gradient in theirs[1:])
    for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert (one - other).norm() < 1e-9 * max(other.norm(), least * (i > 0))


ENTRY = 2 * 4 + ENTRY_OVERHEAD


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([[value, -value] for value in values])


def test_keys_are_different() -> None:
    keys = [
        key
        for graph in (0, 1, 2**19 - 1)
        for segment in (0, 1, 2**20 - 1)
        for key in entry_keys(graph, segment, np.array([0, 1, 2**24 - 1], dtype=np.uint32))
    ]
    assert len(set(keys)) == 27
    assert all(0 <= key < 2**63 for key in keys)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 8), min_size=1, unique=True)), max_size=40),
    st.integers(1, 6),
)
def test_equals_a_list_in_order_of_use(operations: list[tuple[bool, list[int]]], capacity: int) -> None:
    """The least recently used entries are evicted; a table from a checkpoint is the same."""
    table, used = EmbeddingTable(2, capacity * ENTRY + 5, "float32"), dict[int, int]()  # the step that wrote each key
    for step, (write, keys) in enumerate(operations):
        present = [key for key in keys if key in used]
        for key in keys if write else present:
            used[key] = step if write else used[key]
            used[key] = used.pop(key)  # to the end
            if len(used) > capacity:
                del used[next(iter(used))]
        if write:
            table.write(keys, rows(*(step + key / 10 for key in keys)), step)
        else:
            assert table.look_up(keys).tolist() == [key in present for key in keys]
        if step % 3 == 2:
            state, table = table.state_dict(), EmbeddingTable(2, capacity * ENTRY, "float32")
            table.load_state_dict(state)
    embeddings, written = table.read([*used])
    torch.testing.assert_close(embeddings, rows(*(step + key / 10 for key, step in used.items())).reshape(len(used), 2))
    assert written.tolist() == [*used.values()]
    assert (table.capacity, len(table), table.bytes) == (capacity, len(used), len(used) * ENTRY)
    assert table.state_dict()["keys"].tolist() == [*used]
    assert table.look_up(range(9)).tolist() == [key in used for key in range(9)]


def test_half_precision_takes_half_the_bytes() -> None:
    table = EmbeddingTable(100, 10**6, "float16")
    assert table.entry_bytes == 200 + ENTRY_OVERHEAD
    table.write([1], torch.full((1, 100), 1 / 3), step=0)
    embeddings, _ = table.read([1])
    assert embeddings.dtype == torch.float32
    assert 0 < (embeddings - 1 / 3).abs().max() < 1e-3


def test_a_checkpoint_of_another_width_is_refused() -> None:
    with pytest.raises(DataError, match="width 3"):
        EmbeddingTable(3, 3 * ENTRY, "float32").load_state_dict(EmbeddingTable(2, 3 * ENTRY, "float32").state_dict())


def test_a_budget_must_hold_the_graph_of_the_most_entries(caplog: pytest.LogCaptureFixture) -> None:
    needed = {"small": 3, "large": 7, "middle": 5}
    for capacity, warnings in ((15, 0), (14, 1), (7, 2)):  # it warns where all working sets do not fit
        EmbeddingTable(2, capacity * ENTRY, "float32").check_budget(needed)
        assert len(caplog.records) == warnings
    with pytest.raises(ConfigError) as caught:
        EmbeddingTable(2, 7 * ENTRY - 1, "float32").check_budget(needed)
    named = (f"segments.table_bytes={7 * ENTRY - 1}: ", "graph large has 7 entries", f" {7 * ENTRY} bytes")
    assert all(text in str(caught.value) for text in (*named, "segments.table_dtype"))
    with pytest.raises(ConfigError) as caught:
        EmbeddingTable(4, 7 * ENTRY - 1, "float16").check_budget(needed)
    assert "segments.table_dtype" not in str(caught.value)  # it is float16 already
