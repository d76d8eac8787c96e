"""Baselines: predictors score exactly, a folder returns what was saved, and wrong arrays and damage are errors."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures
from hlorank.files import SPEC, WEIGHTS, DataError, read_json, sha256_file, write_json
from hlorank.models.baselines.baseline import BASELINES, Baseline, BaselineSpec, load_baseline, save_baseline
from hlorank.models.baselines.pooled_features import COPY_COLUMNS, PooledGraph, changed_column, pooled_columns
from hlorank.models.baselines.predictors import Analytical, Linear, Predictor, RandomRanker, Trees
from hlorank.models.graph_inputs import InputSizes
from hlorank.models.scoring import load_trained
from hlorank.models.serialization import input_sizes, load_model, sealed
from hlorank.version import __version__
from tests.graphs import make_features
from tests.sections import baseline_config

SIZES = InputSizes("layout", node_columns=4, opcodes=6, tile_columns=0)
COLUMNS = pooled_columns(SIZES)
LINEAR = Linear(np.random.default_rng(0).normal(size=COLUMNS), np.random.default_rng(1).uniform(0.5, 2, COLUMNS))


@pytest.fixture
def features() -> GraphFeatures:
    return make_features(dtype=np.float32)


@pytest.fixture
def graph(features: GraphFeatures) -> PooledGraph:
    return PooledGraph(features, SIZES)


def make_trees(column: int = 1) -> Trees:
    """x[column] <= 0.5 ? 1 : (x[0] <= -1 ? 10 : 20), then a tree of one leaf, then x[0] <= 3 ? 1000 : 2000."""
    return Trees(
        root=np.array([0, 5, 6], dtype=np.int32),
        feature=np.array([column, 0, 0, 0, 0, 0, 0, 0, 0], dtype=np.int32),
        threshold=np.array([0.5, 0, -1, 0, 0, 0, 3, 0, 0]),
        left=np.array([1, 1, 3, 3, 4, 5, 7, 7, 8], dtype=np.int32),
        right=np.array([2, 1, 4, 3, 4, 5, 8, 7, 8], dtype=np.int32),
        value=np.array([0, 1, 0, 10, 20, 300, 0, 1000, 2000], dtype=np.float64),
        base=np.array([0.25]),
    )


def test_sums_of_trees() -> None:
    x = np.array([[0, 0.5], [-1, 0.75], [4, 0.75]], dtype=np.float32)
    staged = [[0.25, 1.25, 301.25, 1301.25], [0.25, 10.25, 310.25, 1310.25], [0.25, 20.25, 320.25, 2320.25]]
    trees = make_trees()
    trees.check(columns=2)
    np.testing.assert_array_equal(trees.staged(x), staged)
    for count in range(4):
        first = trees.first(count)
        first.check(columns=2)
        np.testing.assert_array_equal(first.staged(x), np.array(staged)[:, : count + 1])
    assert len(trees.first(1).value) == 5
    assert trees.staged(x[:0]).shape == (0, 4)


def test_scores_are_weighted_sums(graph: PooledGraph) -> None:
    LINEAR.check(COLUMNS)
    rows = np.array([4, 1, 4])
    scores = LINEAR.score(graph, rows)
    np.testing.assert_allclose(scores, (graph.rows(rows).astype(np.float64) / LINEAR.scale) @ LINEAR.weight)
    assert scores[0] == scores[2] != scores[1]
    assert scores.dtype == np.float64
    np.testing.assert_array_equal(np.concatenate([LINEAR.score(graph, row[None]) for row in rows]), scores)
    assert LINEAR.score(graph, rows[:0]).shape == (0,)


def test_a_single_column_and_no_weights(graph: PooledGraph) -> None:
    column, rows = changed_column(SIZES), np.arange(12)
    expected = graph.rows(rows)[:, column]
    for linear, scores in (
        (Linear.of_column(column, COLUMNS), expected),
        (Linear(np.zeros(COLUMNS), np.ones(COLUMNS)), np.zeros(12)),
    ):
        linear.check(COLUMNS)
        np.testing.assert_array_equal(linear.score(graph, rows), scores)


def test_analytical_scores_are_sums_of_bytes(graph: PooledGraph) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.uniform(size=(12, COPY_COLUMNS))
    graph.__dict__["costs"] = sizes.__getitem__  # a cached property
    analytical = Analytical(rng.uniform(size=COPY_COLUMNS))
    analytical.check(columns=7)
    rows = np.array([4, 1, 4])
    scores = analytical.score(graph, rows)
    np.testing.assert_allclose(scores, sizes[rows] @ analytical.weight)
    np.testing.assert_array_equal(np.concatenate([analytical.score(graph, row[None]) for row in rows]), scores)
    np.testing.assert_array_equal(Analytical(np.zeros(COPY_COLUMNS)).score(graph, rows), np.zeros(3))


def random_ranker(seed: int) -> RandomRanker:
    return RandomRanker(np.array([seed], dtype=np.int64))


def test_random_scores_depend_on_seed_name_and_row_only(features: GraphFeatures) -> None:
    rows = np.arange(12)

    def scores(seed: int, graph: GraphFeatures, rows: NDArray[np.int64] = rows) -> NDArray[np.float64]:
        return random_ranker(seed).score(PooledGraph(graph, SIZES), rows)

    first = scores(3, features)
    assert len(set(first.tolist())) == 12
    assert 0 <= first.min() < first.max() < 1
    np.testing.assert_array_equal(scores(3, make_features(seed=8, nodes=40, distinct=30)), first)
    np.testing.assert_array_equal(scores(3, features, np.array([7, 2, 2])), first[[7, 2, 2]])
    assert scores(3, features, rows[:0]).shape == (0,)
    others = (scores(4, features), scores(3, replace(features, name="other")))
    assert not any(set(first.tolist()) & set(other.tolist()) for other in others)


def test_scores_are_the_sums_over_all_trees_of_pooled_features(graph: PooledGraph) -> None:
    rows = np.array([3, 0, 7])
    trees = make_trees(changed_column(SIZES))
    trees.check(pooled_columns(SIZES))
    x = graph.rows(rows)
    np.testing.assert_array_equal(trees.score(graph, rows), trees.staged(x)[:, -1])
    assert trees.row_bytes == 64 * len(trees.root)


WRONG: list[tuple[Predictor, str, Callable[[Any], Any]]] = [
    (LINEAR, "weight", lambda a: a[:-1]),
    (LINEAR, "scale", lambda a: a.astype(np.float32)),
    (LINEAR, "weight", lambda a: np.where(a == a[3], np.nan, a)),
    (LINEAR, "scale", lambda a: np.where(a == a[5], 0, a)),
    (LINEAR, "scale", lambda a: a + np.inf),
    (Analytical(np.zeros(COPY_COLUMNS)), "weight", lambda a: a[:4]),
    (Analytical(np.zeros(COPY_COLUMNS)), "weight", lambda a: a + np.nan),
    (Analytical(np.zeros(COPY_COLUMNS)), "weight", lambda a: a - 1),
    (random_ranker(3), "seed", lambda a: a - 4),
    (random_ranker(3), "seed", lambda a: np.repeat(a, 2)),
    (random_ranker(3), "seed", lambda a: a.astype(np.float64)),
    (make_trees(), "root", lambda a: a + 5),
    (make_trees(), "root", lambda a: a - 1),
    (make_trees(), "feature", lambda a: a + COLUMNS),
    (make_trees(), "feature", lambda a: a - 1),
    (make_trees(), "left", lambda a: a * 0),  # a cycle
    (make_trees(), "right", lambda a: a + 1),
    (make_trees(), "value", lambda a: a + np.inf),
    (make_trees(), "threshold", lambda a: a * np.nan),
    (make_trees(), "threshold", lambda a: a[:-1]),
    (make_trees(), "left", lambda a: a.astype(np.int64)),
    (make_trees(), "base", lambda a: a[0]),
    (make_trees(), "base", lambda a: a + np.inf),
]


@pytest.mark.parametrize(("predictor", "name", "change"), WRONG)
def test_wrong_arrays_are_errors(predictor: Predictor, name: str, change: Callable[[Any], Any]) -> None:
    predictor.check(COLUMNS)
    arrays = vars(predictor)
    with pytest.raises(DataError, match=name):
        type(predictor).from_arrays({**arrays, name: change(arrays[name])}, COLUMNS)


@pytest.fixture
def store(tiny_collections: Path) -> FeatureStore:
    return FeatureStore(tiny_collections / "features/layout/synthetic/random")


def make_predictor(method: str, sizes: InputSizes) -> Predictor:
    """Make a predictor with different scores for different configurations."""
    columns, changed, rng = pooled_columns(sizes), changed_column(sizes), np.random.default_rng(0)
    if method == "linear_ranking":
        return Linear(rng.normal(size=columns), np.full(columns, 2.0))
    if method == "analytical":
        return Analytical(rng.uniform(size=COPY_COLUMNS))
    if method == "default_configuration":
        return Linear.of_column(changed, columns)
    return random_ranker(7) if method == "random" else make_trees(changed)


def spec_of(method: str, store: FeatureStore) -> BaselineSpec:
    return BaselineSpec(
        version=__version__,
        collection="layout:synthetic:random",
        method=method,
        data="0" * 16,
        steps=3,
        features=store.spec,
        settings=baseline_config(),
    )


@pytest.mark.parametrize("method", BASELINES)
def test_a_loaded_baseline_gives_the_same_scores(method: str, store: FeatureStore, tmp_path: Path) -> None:
    sizes, graph = input_sizes(store.spec), store.open("valid", store.graphs("valid")[0])
    predictor, spec = make_predictor(method, sizes), spec_of(method, store)
    save_baseline(tmp_path, predictor, spec)
    loaded, loaded_spec = load_baseline(tmp_path)
    assert loaded_spec.model_dump(mode="json") == spec.model_dump(mode="json")
    assert type(loaded.predictor) is type(predictor)
    for name, array in vars(predictor).items():
        np.testing.assert_array_equal(getattr(loaded.predictor, name), array, strict=True)
    scores = loaded.score(graph, 2**30)
    assert scores.shape == (graph.distinct,)
    assert len(np.unique(scores)) > 1
    np.testing.assert_array_equal(scores, Baseline(predictor, sizes).score(graph, 2**30))
    np.testing.assert_array_equal(loaded.score(graph, 1), scores)
    np.testing.assert_array_equal(load_trained(tmp_path, 2**30).score(graph, None), scores)
    save_baseline(tmp_path / "again", predictor, spec)
    for name in (WEIGHTS, SPEC):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize(
    ("arrays", "changes", "message"),
    [
        ({"other": np.zeros(1)}, {}, r"weights\.safetensors: weights: .*'other'"),
        ({"feature": np.full(9, 10**6, dtype=np.int32)}, {}, r"weights\.safetensors: feature: "),
        ({}, {"method": "linear_ranking"}, r"weights\.safetensors: weights: .*'scale', 'weight'"),
        ({}, {"method": "gst"}, r"model/spec\.json: .*method"),
        ({}, {"settings": {"leaves": 3}}, r"model/spec\.json: .*settings\.learning_rate"),
    ],
)
def test_damaged_folders_are_refused(
    arrays: dict[str, Any], changes: dict[str, Any], message: str, store: FeatureStore, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    save_baseline(folder, make_trees(), spec_of("xgboost", store))
    with pytest.raises(DataError, match=r"spec\.json: .*partition"):  # it is no cost model
        load_model(folder, torch.device("cpu"))
    save_file({**load_file(folder / WEIGHTS), **arrays}, folder / WEIGHTS)
    digest = {"weights_sha256": sha256_file(folder / WEIGHTS)}
    write_json(folder / SPEC, sealed(read_json(folder / SPEC) | digest | changes))
    with pytest.raises(DataError, match=message):
        load_baseline(folder)
