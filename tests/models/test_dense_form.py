"""The fast paths of the cost model against its dense form."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hlorank.config import Directions, PartitionConfig
from hlorank.data.collection import read_graph
from hlorank.featurize.features import GraphFeatures
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs, InputSizes
from hlorank.models.layers.registry import RESIDUAL, widths
from hlorank.models.serialization import input_sizes
from hlorank.partition.partitioners import partition_graph
from tests.featurize.small_graphs import fitted
from tests.graphs import make_inputs, make_model
from tests.models import dense_form
from tests.models.dense_form import block


@pytest.mark.parametrize(
    ("kind", "segments", "instance_norm", "sizes"),
    [("layout", 1, False, True), ("layout", 4, False, False), ("layout", 4, True, True), ("tile", 1, True, True)],
)
def test_embeddings_equal_the_dense_form(kind: str, segments: int, instance_norm: bool, sizes: bool) -> None:
    """Values and gradients: each local configuration computed once, against every configuration computed by itself."""
    model = make_model(kind, block=block(*["instance_norm"] * instance_norm), layout_sizes=sizes, layout_costs=sizes)
    graph = make_inputs(segments=segments, kind=kind)
    weight = torch.randn(len(dense_form.ROWS), 12, dtype=torch.float64)
    for j in range(segments):
        embedded = dense_form.embed_rows(model, graph, j, dense_form.ROWS)
        dense = torch.stack([dense_form.reference_embedding(model, graph, j, row) for row in dense_form.ROWS])
        dense_form.assert_exact(embedded, dense)
        learned = [*model.parameters()]  # with the head, and encoders that the segment does not use
        ours, theirs = (
            torch.autograd.grad((result * weight).sum(), learned, materialize_grads=True)
            for result in (embedded, dense)
        )
        dense_form.assert_exact(ours, theirs)


def assert_fast_equals_dense(model: CostModel, graph: GraphInputs, rows: np.ndarray, tolerance: float) -> None:
    """Compare embeddings and gradients of the fast paths with the dense form, whose sums need float64."""
    dense = copy.deepcopy(model).double()
    dense.recipe = replace(model.recipe, compress=False)
    features = replace(graph.features, node_feat=graph.features.node_feat.astype(np.float64))
    exact = GraphInputs(features, graph.partition)
    for j in range(len(graph.segments)):
        results = []
        for form, inputs in ((model, graph), (dense, exact)):
            embedded = dense_form.embed_rows(form, inputs, j, rows)
            loss = embedded.square().mean()
            results.append((embedded, torch.autograd.grad(loss, list(form.parameters()), materialize_grads=True)))
        (ours, our_gradients), (theirs, their_gradients) = results
        assert (ours - theirs).norm() <= tolerance * theirs.norm()
        largest = max(gradient.norm() for gradient in their_gradients)
        for one, other in zip(our_gradients, their_gradients, strict=True):
            # The error of a small sum of large terms, such as a temperature's gradient, is that of the terms.
            assert (one - other).norm() <= tolerance * max(other.norm(), 0.1 * largest)


@settings(deadline=None, max_examples=25)
@given(
    graph=st.fixed_dictionaries(dense_form.RANDOM),
    names=st.lists(st.sampled_from([*dense_form.ALL_LAYERS, RESIDUAL]), max_size=5),
    stem=st.lists(st.sampled_from(dense_form.ALL_LAYERS), max_size=1),
    join=st.sampled_from(["early", "late", "every"]),
    others=st.fixed_dictionaries({"blocks": st.integers(0, 3), "directions": st.sampled_from(get_args(Directions))}),
)
def test_fast_paths_equal_the_dense_form_on_random_graphs(
    graph: dict[str, int], names: list[str], stem: list[str], join: str, others: dict[str, Any]
) -> None:
    """In float64 only: repeated norms over a few nearly equal nodes amplify rounding a thousandfold."""
    assume(names.count("reproductions:ConfigurationGate") < 3)  # widths are 8, 4 and 2
    # Where nodes are equal but for rounding, four norms leave gradients with an error of 1e-7 of the largest.
    assume(names.count("instance_norm") * others["blocks"] < 4)
    config = make_model(width=8).config
    assume(join == "early" or widths(stem, config, "stem")[0] == 8)
    _, _, *after = widths(["linear", *names], config, "block")
    assume(all(width == 8 for name, width in zip(names, after, strict=True) if name == RESIDUAL))
    pooling = ["mean", "sum", "max", "l2_configurable_sum"]
    model = make_model(width=8, block=["linear", *names], stem=stem, pooling=pooling, join=join, **others)
    for parameter in model.parameters():
        # With GIN's epsilon at 0, two nodes without other neighbours are equal: the maximum has a tie.
        if not parameter.any():
            torch.nn.init.constant_(parameter, 0.1)
    # A norm after a sum leaves a gradient of rounding errors alone: 4e-10 of the largest one was seen.
    assert_fast_equals_dense(model, make_inputs(**graph), np.array([2, 0, 3, 3]), 1e-8)


@pytest.fixture(scope="module")
def unet_3d(shared_data: Path) -> tuple[GraphFeatures, InputSizes]:
    measured = read_graph(shared_data / "tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz", "layout")
    spec = fitted("layout:xla:default", measured)
    return featurize_graph(measured, spec), input_sizes(spec)


@pytest.mark.parametrize(
    ("max_nodes", "instance_norm", "attention"), [(5000, False, False), (500, False, True), (1000, True, False)]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_fast_paths_equal_the_dense_form_on_unet_3d(
    unet_3d: tuple[GraphFeatures, InputSizes],
    max_nodes: int,
    instance_norm: bool,
    attention: bool,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    features, sizes = unet_3d
    features = replace(features, node_feat=torch.from_numpy(features.node_feat).to(dtype).numpy())
    cut = partition_graph(features, PartitionConfig(algorithm="topological", max_nodes=max_nodes))
    torch.manual_seed(0)
    layers = block(*["instance_norm"] * instance_norm, *["configuration_attention"] * attention)
    config = make_model().config.model_copy(update={"width": 8, "blocks": 3, "block": layers})
    rows = np.random.default_rng(0).choice(features.distinct, size=5, replace=False)
    assert_fast_equals_dense(CostModel(config, sizes, "mean").to(dtype), GraphInputs(features, cut), rows, tolerance)
