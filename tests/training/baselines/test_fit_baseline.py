"""Fitting of the baselines: the choice on valid, determinism, what is kept without graphs, and the MLflow run."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.tracking import MlflowClient

import hlorank
from hlorank.config import Config, ConfigError
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import DataError
from hlorank.metrics import TRAIN_LOSS, VALID_TAU, kendall_tau
from hlorank.models.baselines.baseline import BASELINES, LAYOUT_BASELINES, load_baseline
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.serialization import input_sizes
from hlorank.stages.train import train
from hlorank.training.baselines.fit_baseline import RECIPES, fit_baseline
from hlorank.training.prepare import prepare
from hlorank.training.process_group import ALONE
from hlorank.training.setup import Trained
from tests.training.baselines.conftest import RIVALS, SmallData, with_library
from tests.training.training_helpers import History, Runs, Settings

DataOf = Callable[..., SmallData]
FILES = ["history.csv", "run.json", "spec.json", "weights.safetensors"]
RULES = ("random", "default_configuration")
TREES = ("gradient_boosting", *RIVALS)

every_baseline = pytest.mark.parametrize("method", [*map(with_library, BASELINES)])


def fitted(config: Config) -> Trained:
    return fit_baseline(prepare(config, ALONE), config.method, config.seed)


def scores_of(trained: Trained, store: FeatureStore, split: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of the configurations that training ranks, and their labels."""
    ((_, predictor),), graph = trained.predictors, store.open(split, name)  # type: ignore[arg-type] # of splits
    chosen, labels = graph.targets()
    return predictor.score(PooledGraph(graph, input_sizes(store.spec)), chosen), labels


def test_every_baseline_has_a_recipe() -> None:
    assert list(RECIPES) == list(BASELINES)
    assert {name for name, recipe in RECIPES.items() if not recipe.settings} == set(RULES)


@pytest.mark.parametrize("pretrained", ["own", "layout.cpu"])
def test_analytical_starts_with_the_weights_of_a_pretrained_model(
    pretrained: str, data_of: DataOf, tmp_path: Path, linear_model: Callable[..., Path]
) -> None:
    """The larger the strength, the nearer to them; without valid that of the largest one is kept."""
    own = str(tmp_path / "own")
    train(data_of(method="analytical").config, Path(own))
    values: dict[str, Any] = {"method": "analytical", "paths__pretrained": own if pretrained == "own" else pretrained}
    settings = data_of(**values, baseline__strengths=[1e-9, 1e9]).config
    start = load_baseline(Path(str(settings.paths.pretrained)))[0].predictor
    setup = prepare(settings, ALONE)
    assert setup.key != prepare(data_of(method="analytical", baseline__strengths=[1e-9, 1e9]).config, ALONE).key
    ((_, kept),) = fit_baseline(replace(setup, valid=[]), "analytical", 0).predictors
    np.testing.assert_allclose(vars(kept)["weight"], vars(start)["weight"], rtol=1e-3, atol=1e-9)
    assert len(fit_baseline(setup, "analytical", 0).history) == 2
    wrongs: list[dict[str, Any]] = [
        values | {"method": "linear_ranking"},
        *(values | {"paths__pretrained": model} for model in (linear_model(), "tile.cpu")),
    ]
    for wrong in wrongs:
        with pytest.raises(ConfigError, match=r"^paths\.pretrained="):
            prepare(data_of(**wrong).config, ALONE)


@every_baseline
def test_all_but_rules_need_graphs_to_train_on(method: str, data_of: DataOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FeatureStore, "trainable", lambda self, split: [])
    config, store, _ = data_of(method=method)
    if method not in RULES:
        with pytest.raises(DataError, match=f"{store.root}: train: "):
            fitted(config)
        return
    trained = fitted(config)
    assert (trained.tau, trained.steps, len(trained.history)) == (None, 1, 1)
    assert scores_of(trained, store, "train", store.graphs("train")[0])[0].any()


@pytest.mark.parametrize(
    ("method", "collection"),
    [
        *(with_library(method, "layout:synthetic:random") for method in BASELINES),
        *(with_library(method, "tile:synthetic") for method in BASELINES if method not in LAYOUT_BASELINES),
    ],
)
def test_the_candidate_that_is_best_on_valid_is_kept(method: str, collection: str, data_of: DataOf) -> None:
    config, store, _ = data_of(method=method, collection=collection)
    trained = fitted(config)
    strengths = dict.fromkeys(("linear_ranking", "analytical"), len(config.baseline.strengths))
    counts = {**dict.fromkeys(TREES, 12), **strengths}
    assert [row["epoch"] for row in trained.history] == list(range(1, 1 + counts.get(method, 1)))
    taus = [row["valid_kendall_tau"] for row in trained.history]
    assert trained.tau == max(taus)
    if method in TREES:
        assert trained.steps == 1 + taus.index(trained.tau)
    assert trained.steps == 1 if method in RULES else trained.steps >= 1
    assert [row["train_loss"] is None for row in trained.history] == [method in RULES] * len(taus)
    scored = [scores_of(trained, store, "valid", name) for name in store.trainable("valid")]
    assert trained.tau == pytest.approx(np.mean([kendall_tau(*pair) for pair in scored]))


@pytest.mark.parametrize("method", ["gradient_boosting", "random"])
def test_files_and_run(method: str, small: Settings, tmp_path: Path, history: History, runs: Runs) -> None:
    config = small(method=method)
    best = train(config, tmp_path / "model")
    _, spec = load_baseline(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == FILES
    assert (spec.version, spec.collection, spec.method) == (hlorank.__version__, "layout:synthetic:random", method)
    assert spec.settings == config.baseline
    (run,) = runs(config)
    assert (run.info.status, run.info.run_name) == ("FINISHED", f"{method} layout:synthetic:random")
    assert json.loads((tmp_path / "model" / "run.json").read_text())["run_id"] == run.info.run_id
    sections = {key.partition(".")[0] for key in run.data.params} - {"baseline"}
    assert sections == {"collection", "data", "method", "seed", "featurize", "trainer"}
    assert run.data.params.get("baseline.iterations") == ("12" if method in TREES else None)
    client, rows = MlflowClient(config.tracking.uri), history(tmp_path / "model")
    for key, column in ((TRAIN_LOSS, "train_loss"), (VALID_TAU, "valid_kendall_tau")):
        known = {int(row["epoch"]): float(row[column]) for row in rows if row[column]}
        assert {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, key)} == known
    seconds = client.get_metric_history(run.info.run_id, "train/seconds")
    assert [metric.step for metric in seconds] == [int(row["epoch"]) for row in rows]
    assert run.data.metrics["valid/best_kendall_tau"] == best
    assert ("train/step_seconds" in run.data.metrics) == (method not in RULES)
    assert run.data.metrics["train/peak_memory_bytes"] > 1e8


@every_baseline
def test_the_same_fit_gives_the_same_bits(method: str, small: Settings) -> None:
    few = {"method": method, "baseline__rows_per_graph": 30}
    trained = [fitted(small(**few, seed=seed)) for seed in (0, 0, 1)]
    first, second, other = (vars(one.predictors[0][1]) for one in trained)
    assert all(np.array_equal(array, second[name]) for name, array in first.items())
    same = all(np.array_equal(array, other[name]) for name, array in first.items())
    assert same == (method in LAYOUT_BASELINES)  # which draw nothing


@pytest.mark.parametrize(
    ("method", "min_tau"), [*(with_library(method, 0.5) for method in TREES), ("linear_ranking", 0.4)]
)
def test_fit(
    method: str, min_tau: float, data_of: DataOf, without_valid: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Training graphs are ranked far better than at random; without valid the smallest training loss is kept."""
    config, store, names = data_of(method=method, baseline__iterations=60)
    trained = fitted(config)
    assert "no graph of valid can be ranked" in caplog.text
    assert trained.tau is None
    assert {row["valid_kendall_tau"] for row in trained.history} == {None}
    assert trained.steps == 60 or method in ("linear_ranking", *RIVALS)  # their loss need not fall with each tree
    assert min(kendall_tau(*scores_of(trained, store, "train", name)) for name in names) > min_tau


def test_a_library_that_is_not_installed(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank.training.baselines.fit_baseline.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"method=xgboost: .*pip install 'hlorank\[rivals\]'"):
        prepare(small(method="xgboost"), ALONE)
