"""Scores of a model folder, with one model or an ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.models import scoring
from hlorank.models.compression.declarations import Recipe
from hlorank.models.compression.plan import Array, Plan
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs, GraphLoader
from hlorank.models.scoring import embed_configurations, score_configurations
from hlorank.models.serialization import ModelSpec, input_sizes, save_model
from hlorank.models.trained_model import load_trained

MEMORY = 2**30


def members_of(spec: ModelSpec, folder: Path) -> list[CostModel]:
    """Write a model of random members, and return them."""
    members = [CostModel(spec.model, input_sizes(spec.features), spec.aggregation).eval() for _ in range(spec.members)]
    save_model(folder, members, spec)
    return members


def test_scores_of_members_are_averaged_their_embeddings_concatenated_and_their_plans_shared(
    spec: ModelSpec, graphs: GraphLoader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = members_of(spec.model_copy(update={"members": 3}), tmp_path)
    (name, *_) = graphs.store.graphs("valid")
    features, partition = graphs.store.open("valid", name), graphs.open_partition("valid", name)
    graph, rows = graphs.open("valid", name), np.arange(features.distinct)
    alone = np.stack([score_configurations(member, graph, rows, MEMORY) for member in members])
    alone = (alone - alone.mean(axis=1, keepdims=True)) / alone.std(axis=1, keepdims=True)
    embedded = [embed_configurations(member, graph, rows, MEMORY) for member in members]
    planned: list[int] = []
    plan = GraphInputs.plan

    def recorded(self: GraphInputs, rows: Mapping[int, NDArray[np.int64]], recipe: Recipe) -> Plan[Array]:
        planned.extend(rows)
        return plan(self, rows, recipe)

    monkeypatch.setattr(GraphInputs, "plan", recorded)
    trained = load_trained(tmp_path, MEMORY)
    np.testing.assert_allclose(trained.score(features, partition), alone.mean(axis=0), rtol=1e-9, atol=1e-12)
    assert planned == [*range(len(graph.segments))]
    np.testing.assert_array_equal(trained.embed(features, partition), np.concatenate(embedded, axis=1))


def test_a_saved_model_averages_over_permutations(
    spec: ModelSpec, graphs: GraphLoader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Groups smaller than a graph, so that the order of configurations determines which are ranked together.
    monkeypatch.setattr(scoring, "RANKED_TOGETHER", 8)
    changes = {"block": ["sage", "configuration_attention", "gelu", "residual"], "permutations": 3}
    members_of(spec.model_copy(update={"model": spec.model.model_copy(update=changes)}), tmp_path)
    scored, original = list[int](), scoring.sum_segments

    def counted(*arguments: Any) -> object:
        scored.append(len(arguments[2]))
        return original(*arguments)

    monkeypatch.setattr(scoring, "sum_segments", counted)
    (name, *_) = graphs.store.graphs("valid")
    features, partition = graphs.store.open("valid", name), graphs.open_partition("valid", name)
    trained = load_trained(tmp_path, MEMORY)
    scores = trained.score(features, partition)
    assert sum(scored) == 3 * features.distinct
    np.testing.assert_array_equal(trained.score(features, partition), scores)  # the same orders on every call
    assert trained.embed(features, partition).shape[0] == len(scores)
