"""What scores do not depend on: the order of nodes, configurations and codes, the cut, what is ranked together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hlorank.config import PartitionConfig
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.models.graph_inputs import GraphInputs
from hlorank.partition.partitioners import partition_graph
from hlorank.partition.segments import Partition, local_codes, no_halo
from tests.models.dense_form import (
    ROWS,
    MakeInputs,
    MakeModel,
    assert_exact,
    block,
    scores_of,
)
from tests.models.run_layer import ONE_OF_EACH_MIXING, embed_rows


def test_attention_over_configurations_ranks_them_together(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(block=block("configuration_attention")), make_inputs(segments=3)
    together, alone = scores_of(model, graph), scores_of(model, graph, ROWS[:1])
    assert (together[0] - alone[0]).abs() > 1e-6
    # A repeated configuration counts as often as it is repeated: sharing its embedding would change the others.
    assert not model.recipe.deduplicates
    assert (scores_of(model, graph, ROWS[:4])[0] - scores_of(model, graph, ROWS[:3])[0]).abs() > 1e-6
    model.recipe = replace(model.recipe, deduplicate=False)
    assert torch.equal(scores_of(model, graph), together)


@pytest.mark.parametrize("layer", ONE_OF_EACH_MIXING)
def test_configurations_are_equivariant(layer: str, make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(block=block(layer)), make_inputs(segments=3)
    order = np.random.default_rng(0).permutation(len(ROWS))
    scores = scores_of(model, graph)
    assert_exact(scores_of(model, graph, ROWS[order]), scores[torch.from_numpy(order)])
    assert len(np.unique(scores.detach().numpy().round(9))) == len(np.unique(ROWS))


def renumbered(features: GraphFeatures, order: np.ndarray) -> GraphFeatures:
    """Return the same graph with node order[i] as node i."""
    new_id = np.argsort(order)
    layouts = features.configurations
    assert isinstance(layouts, LayoutFeatures)
    node_ids = new_id[layouts.node_ids]
    columns = np.argsort(node_ids)
    return replace(
        features,
        node_feat=features.node_feat[order],
        opcode=features.opcode[order],
        node_layout=features.node_layout[order],
        edge_index=new_id[features.edge_index],
        configurations=replace(layouts, node_ids=node_ids[columns], codes=layouts.codes[:, columns]),
    )


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("layer", ONE_OF_EACH_MIXING)
def test_the_order_of_nodes_does_not_matter(
    segments: int, layer: str, make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    model, graph = make_model(block=["linear", layer, "residual"]), make_inputs(segments=segments)
    order = np.random.default_rng(0).permutation(24)
    features = renumbered(graph.features, order)
    partition = Partition(graph.partition.segment_of[order], graph.partition.local_codes)
    moved = GraphInputs(features, partition)
    assert_exact(scores_of(model, moved), scores_of(model, graph))


def test_the_order_of_the_codebook_does_not_matter(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(), make_inputs(segments=3)
    layouts = graph.features.configurations
    assert isinstance(layouts, LayoutFeatures)
    order = np.array([2, 0, 1])
    codes = np.argsort(order).astype(np.uint8)[layouts.codes]
    rows = {name: getattr(layouts, name)[order] for name in ("codebook", "sizes", "moves")}
    moved = replace(layouts, **rows, codes=codes)
    changed = GraphInputs(replace(graph.features, configurations=moved), graph.partition)
    assert_exact(scores_of(model, changed), scores_of(model, graph))


def test_a_segment_reads_only_its_own_configuration(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph = make_model(), make_inputs(segments=3)
    layouts = graph.features.configurations
    assert isinstance(layouts, LayoutFeatures)
    column = 0
    inside = int(graph.partition.segment_of[layouts.node_ids[column]])
    codes = layouts.codes.copy()
    codes[:, column] = 2  # a code of no configuration
    changed_layouts = replace(layouts, codes=codes)
    segment_of = graph.partition.segment_of
    partition = Partition(segment_of, local_codes(changed_layouts, segment_of, no_halo()))
    changed = GraphInputs(replace(graph.features, configurations=changed_layouts), partition)
    for j in range(3):
        before, after = (embed_rows(model, inputs, j, ROWS) for inputs in (graph, changed))
        assert torch.equal(before, after) == (j != inside)


def test_one_segment_is_the_whole_graph(make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, whole = make_model(), make_inputs()
    config = PartitionConfig(algorithm="topological", max_nodes=24, halo=0)
    cut = GraphInputs(whole.features, partition_graph(whole.features, config))
    assert_exact(scores_of(model, cut), scores_of(model, whole))
