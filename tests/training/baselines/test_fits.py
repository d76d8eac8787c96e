"""Fits of weights and of boosted trees: what they are fitted to, minima of their losses, and scores of libraries."""

import json
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from hlorank.featurize.features import GraphFeatures
from hlorank.metrics import kendall_tau
from hlorank.models.baselines.pooled_features import COPY_COLUMNS, PooledGraph
from hlorank.models.baselines.predictors import Analytical, Linear, Trees
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines import fit_trees as fit_trees_module
from hlorank.training.baselines.candidates import Fit
from hlorank.training.baselines.fit_linear import draw_differences, draw_pairs, fit_analytical, fit_linear
from tests.training.baselines.conftest import SmallData, needs_xgboost

DataOf = Callable[..., SmallData]
MAX_ROWS = "hlorank.training.baselines.candidates.MAX_ROWS"
both_kinds = pytest.mark.parametrize("collection", ["layout:synthetic:random", "tile:synthetic"])


def test_all_pairs_of_different_labels_are_drawn() -> None:
    labels = np.array([3.0, 1, 3, 2])
    pairs = np.stack(draw_pairs(np.random.default_rng(0), labels, 4000))
    found, counts = np.unique(pairs, axis=1, return_counts=True)
    assert found.T.tolist() == [[1, 0], [1, 2], [1, 3], [3, 0], [3, 2]]
    # The first of a pair is uniform, the second uniform among those with another label.
    shares = np.array([1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3 + 1 / 3, 1 / 2 + 1 / 3, 1 / 2 + 1 / 3]) / 4
    np.testing.assert_allclose(counts / 4000, shares, atol=0.03)


@both_kinds
def test_differences_are_those_of_a_graph(collection: str, data_of: DataOf, monkeypatch: pytest.MonkeyPatch) -> None:
    config, store, names = data_of(collection=collection)
    sizes, differences = input_sizes(store.spec), draw_differences(store, names, 40, config.seed)
    assert differences.shape[0] == 40 * len(names)
    monkeypatch.setattr(MAX_ROWS, 7 * len(names))
    assert len(draw_differences(store, names, 40, config.seed)) == 7 * len(names)
    of_graph = 1 + sizes.opcodes + sizes.node_columns
    np.testing.assert_array_equal(differences[:, :of_graph], 0)
    assert differences[:, of_graph:].any(axis=1).mean() > 0.5
    graph = store.open("train", names[0])
    rows, labels = graph.targets()
    x = PooledGraph(graph, sizes).rows(rows).astype(np.float64)
    possible = (x[:, None] - x)[labels[:, None] > labels]
    for difference in differences[:3]:
        assert (possible == difference).all(axis=1).any()


def test_weights_are_at_the_minimum(data_of: DataOf) -> None:
    config, store, names = data_of(baseline__strengths=[0.3, 0.01], baseline__pairs_per_graph=60)
    fit = fit_linear(store, names, config.baseline, config.seed)
    differences = draw_differences(store, names, config.baseline.pairs_per_graph, config.seed)
    assert [candidate.epoch for candidate in fit.candidates] == [1, 2]
    constant = ~differences.any(axis=0)
    for candidate, strength in zip(fit.candidates, config.baseline.strengths, strict=True):
        linear = cast("Linear", candidate.predictor)
        x, weight = differences / linear.scale, linear.weight
        np.testing.assert_allclose(np.mean(x**2, axis=0), ~constant)
        np.testing.assert_array_equal(weight[constant], 0)
        assert candidate.train_loss == pytest.approx(np.logaddexp(0, -(x @ weight)).mean())
        assert candidate.train_loss < np.log(2)
        slope = strength * weight - (x / (1 + np.exp(x @ weight))[:, None]).mean(axis=0)
        np.testing.assert_allclose(slope, 0, atol=1e-3)  # the objective is convex


@pytest.mark.parametrize("prior", [None, np.linspace(0, 0.5, COPY_COLUMNS)])
def test_weights_are_at_the_constrained_minimum(data_of: DataOf, prior: np.ndarray | None) -> None:
    config, store, names = data_of(baseline__strengths=[0.3, 0.01])
    fit = fit_analytical(store, names, config.baseline, config.seed, prior)
    parts = []
    for graph in (store.open("train", name) for name in names):
        rows, labels = graph.targets()
        system = np.column_stack([PooledGraph(graph, input_sizes(store.spec)).costs(rows), labels])
        parts.append((system - system.mean(axis=0)) / labels.std())
    x, y = np.concatenate(parts)[:, :-1], np.concatenate(parts)[:, -1]
    scale = np.sqrt(np.mean(x**2, axis=0))
    used = scale > 0
    center, count = (np.zeros(COPY_COLUMNS), len(y)) if prior is None else (prior, 30_000)
    for candidate, strength in zip(fit.candidates, config.baseline.strengths, strict=True):
        weight = cast("Analytical", candidate.predictor).weight
        assert weight.shape == (COPY_COLUMNS,)
        np.testing.assert_allclose(weight[~used], center[~used])
        assert candidate.train_loss == pytest.approx(np.mean((y - x @ weight) ** 2))

        scaled, columns = (weight * scale)[used], x[:, used] / scale[used]
        assert (scaled >= 0).all()
        assert scaled.any()
        pull = strength * (scaled - (center * scale)[used]) * count / len(y)
        slope = pull - columns.T @ (y - columns @ scaled) / len(y)
        np.testing.assert_allclose(slope[scaled > 0], 0, atol=1e-9)
        assert (slope[scaled == 0] >= -1e-9).all()  # the objective is convex, and weights are not negative


def test_the_weights_of_a_machine_are_found(data_of: DataOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runtimes of a machine that takes 2 ns for each byte inside, and 5 ns for all else that is copied."""
    config, store, names = data_of(baseline__strengths=[1e-9])
    sizes, true = input_sizes(store.spec), np.repeat([5.0, 5, 2, 2, 5], COPY_COLUMNS // 5)

    def targets(graph: GraphFeatures) -> tuple[np.ndarray, np.ndarray]:
        rows = np.arange(graph.distinct)
        return rows, 1e6 + PooledGraph(graph, sizes).costs(rows) @ true

    monkeypatch.setattr(GraphFeatures, "targets", targets)
    (candidate,) = fit_analytical(store, names, config.baseline, config.seed).candidates
    rows, labels = targets(graph := store.open("valid", store.graphs("valid")[0]))
    scores = candidate.predictor.score(PooledGraph(graph, sizes), rows)
    np.testing.assert_allclose(scores - scores[0], labels - labels[0], rtol=0.02, atol=0.02 * labels.std())
    strong = config.baseline.model_copy(update={"strengths": [1e9]})
    (candidate,) = fit_analytical(store, names, strong, config.seed, np.full(COPY_COLUMNS, -1.0)).candidates
    np.testing.assert_array_equal(cast("Analytical", candidate.predictor).weight, 1)  # not 0, which ranks nothing


def test_trees_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=(3000, 7)), 2).astype(np.float32)  # many rows equal a threshold or nearly so
    y = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + rng.normal(size=3000)
    regressor = HistGradientBoostingRegressor(max_iter=40, early_stopping=False, random_state=0)
    regressor.fit(x[:2000], y[:2000], rng.uniform(0.5, 2, 2000))
    trees = fit_trees_module.trees_of(regressor)
    trees.check(columns=7)
    fit_trees_module.check_trees(trees, x, regressor.predict(x), 0.0)
    with pytest.raises(RuntimeError):
        fit_trees_module.check_trees(trees.first(39), x, regressor.predict(x), 1e-4)
    staged = trees.staged(x)
    np.testing.assert_array_equal(staged[:, -1], regressor.predict(x))
    np.testing.assert_array_equal(staged[:, 1:], np.transpose(list(regressor.staged_predict(x))))


@both_kinds
def test_graphs_have_equal_weights(collection: str, data_of: DataOf, monkeypatch: pytest.MonkeyPatch) -> None:
    config, store, names = data_of(collection=collection)
    sample, labels = (
        fit_trees_module.draw_sample(store, names, 30, config.seed),
        [store.open("train", name).targets()[1] for name in names],
    )
    counts = [min(30, len(own)) for own in labels]
    assert len(sample.x) == len(sample.y) == len(sample.weight) == sum(counts)
    assert sample.counts.tolist() == counts
    assert [*map(len, sample.split(sample.y))] == counts
    assert sample.weight.mean() == pytest.approx(1)
    sums = [weight.sum() for weight in np.split(sample.weight, np.cumsum(counts)[:-1])]
    assert sums == pytest.approx([sum(counts) / len(names)] * len(names))
    with monkeypatch.context() as patched:
        patched.setattr(MAX_ROWS, 5 * len(names) + 1)
        assert fit_trees_module.draw_sample(store, names, 30, config.seed).counts.tolist() == [5] * len(names)
    everything = fit_trees_module.draw_sample(store, names, 10**9, config.seed)
    for own, y in zip(labels, everything.split(everything.y), strict=True):
        assert (y.mean(), y.std()) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
        assert kendall_tau(y, own) == pytest.approx(1)


@pytest.mark.parametrize(
    "fit_with", [fit_trees_module.fit_trees, pytest.param(fit_trees_module.fit_xgboost, marks=needs_xgboost)]
)
def test_candidates_are_the_first_trees(fit_with: Callable[..., Fit], data_of: DataOf) -> None:
    config, store, names = data_of(baseline__iterations=60, baseline__columns=0.5)
    fit = fit_with(store, names, config.baseline, config.seed)
    counts = [candidate.epoch for candidate in fit.candidates]
    assert (len(counts), counts[0], counts[-1]) == (50, 1, 60)  # not every number of trees is a candidate
    assert [candidate.steps for candidate in fit.candidates] == counts
    graph = PooledGraph(store.open("valid", store.graphs("valid")[0]), input_sizes(store.spec))
    rows = np.array([3, 0])
    each = np.stack([candidate.predictor.score(graph, rows) for candidate in fit.candidates], axis=1)
    np.testing.assert_array_equal(fit.scores(graph, rows), each)
    if fit_with is fit_trees_module.fit_trees:
        sample = fit_trees_module.draw_sample(store, names, config.baseline.rows_per_graph, config.seed)
        last = fit.candidates[-1]
        assert isinstance(last.predictor, Trees)
        error = last.predictor.staged(sample.x)[:, -1] - sample.y
        assert last.train_loss == pytest.approx(np.average(error**2, weights=sample.weight))


def test_grades_are_quantiles_and_equal_for_equal_runtimes() -> None:
    assert fit_trees_module.grades(np.array([5.0, 1, 2, 1000, 3, 4, 6, 7]), 4).tolist() == [1, 3, 3, 0, 2, 2, 1, 0]
    assert fit_trees_module.grades(np.array([2.0, 2, 1, 9, 2]), 5).tolist() == [2, 2, 4, 0, 2]


@needs_xgboost
def test_xgboost_learns_an_order_and_its_trees_score_alike(data_of: DataOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs differ in size and in the range of runtimes; many rows equal a threshold, and reach the same leaves."""
    xgboost, boosters = pytest.importorskip("xgboost"), list[Any]()
    rng, counts = np.random.default_rng(0), np.array([40, 300, 120, 60])
    x = np.round(rng.normal(size=(counts.sum(), 5)), 1).astype(np.float32)
    y = np.repeat([0, 100, -7, 3], counts) + np.repeat([1, 50, 0.1, 9], counts) * (x[:, 0] * x[:, 1] + np.sin(x[:, 2]))
    sample, train = fit_trees_module.Sample(x, y, counts), xgboost.train

    def keep(*given: Any) -> Any:
        boosters.append(train(*given))
        return boosters[-1]

    monkeypatch.setattr(xgboost, "train", keep)
    monkeypatch.setattr(fit_trees_module, "draw_sample", lambda *arguments: sample)
    config, store, _ = data_of(baseline__iterations=60, baseline__learning_rate=0.3)
    fit = fit_trees_module.fit_xgboost(store, [], config.baseline, config.seed)
    trees = fit.candidates[-1].predictor
    assert isinstance(trees, Trees)
    trees.check(columns=5)
    staged = trees.staged(x)
    for count in (1, 2, 60):
        expected = -boosters[0].inplace_predict(x, iteration_range=(0, count))
        np.testing.assert_allclose(staged[:, count], expected, rtol=1e-5, atol=1e-5)
    assert json.loads(boosters[0].save_config())["learner"]["objective"]["name"] == "rank:pairwise"
    taus = [kendall_tau(*pair) for pair in zip(sample.split(staged[:, -1]), sample.split(y), strict=True)]
    assert min(taus) > 0.8
    assert fit.candidates[-1].train_loss == pytest.approx(1 - np.mean(taus))
    monkeypatch.setattr(fit_trees_module, "trees_of_xgboost", lambda _: trees.first(0))
    with pytest.raises(RuntimeError):
        fit_trees_module.fit_xgboost(store, [], config.baseline, config.seed)
