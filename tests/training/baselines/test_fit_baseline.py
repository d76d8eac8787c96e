"""Trainings of the baselines: outputs, the choice on valid, determinism, and the MLflow run."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

import hlorank
from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import DataError, one_process
from hlorank.metrics import TRAIN_LOSS, VALID_TAU, kendall_tau
from hlorank.models.baselines.baseline import BASELINES, LAYOUT_BASELINES, load_baseline
from hlorank.models.graph_inputs import GraphLoader
from hlorank.runs.store import FINGERPRINT, PARENT_VARIABLE
from hlorank.stages.train import train
from hlorank.training.baselines.fit_baseline import RECIPES
from tests.training.baselines.conftest import RIVALS, with_library

Settings = Callable[..., Config]
History = Callable[[Path], list[dict[str, str]]]
Runs = Callable[[Config], list[Run]]
StoreOf = Callable[[Config], FeatureStore]
FILES = ["history.csv", "run.json", "spec.json", "weights.safetensors"]
RULES = ("random", "default_configuration")
TREES = ("gradient_boosting", *RIVALS)
KINDS = [
    *(with_library(method, "layout:synthetic:random") for method in BASELINES),
    *(with_library(method, "tile:synthetic") for method in BASELINES if method not in LAYOUT_BASELINES),
]

every_kind = pytest.mark.parametrize(("method", "collection"), KINDS)
every_baseline = pytest.mark.parametrize("method", [*map(with_library, BASELINES)])


def test_every_baseline_has_a_recipe() -> None:
    assert list(RECIPES) == list(BASELINES)
    assert {name for name, recipe in RECIPES.items() if recipe.untrained is None} == set(RULES)


@every_kind
def test_outputs(
    method: str, collection: str, small: Settings, store_of: StoreOf, tmp_path: Path, history: History, runs: Runs
) -> None:
    config = small(method=method, collection=collection)
    best = train(config, tmp_path / "model")
    assert best is not None
    baseline, spec = load_baseline(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == FILES
    assert (spec.version, spec.collection, spec.method) == (hlorank.__version__, collection, method)
    assert spec.settings == config.baseline
    features = Path(config.paths.features) / Collection.parse(collection).path
    assert spec.data == GraphLoader(features, None).fingerprint
    rows = history(tmp_path / "model")
    counts = {
        **dict.fromkeys(TREES, 12),
        **dict.fromkeys(("linear_ranking", "analytical"), len(config.baseline.strengths)),
    }
    assert [int(row["epoch"]) for row in rows] == list(range(1, 1 + counts.get(method, 1)))
    taus = [float(row["valid_kendall_tau"]) for row in rows]
    assert best == max(taus)
    if method in TREES:
        assert spec.steps == 1 + taus.index(best)
    assert spec.steps == 1 if method in RULES else spec.steps >= 1
    (run,) = runs(config)
    assert json.loads((tmp_path / "model" / "run.json").read_text())["run_id"] == run.info.run_id
    store = store_of(config)
    valid = [store.open("valid", name) for name in store.trainable("valid")]
    scored = [(baseline.score(graph, 2**30), *graph.targets()) for graph in valid]
    assert best == pytest.approx(np.mean([kendall_tau(scores[rows], labels) for scores, rows, labels in scored]))


def test_losses(small: Settings, tmp_path: Path, history: History) -> None:
    """The loss falls with the number of trees and rises with the strength of regularization; rules have none."""
    losses = {}
    for method in BASELINES.keys() - RIVALS:
        train(small(method=method), tmp_path / method)
        losses[method] = [row["train_loss"] for row in history(tmp_path / method)]
    trees, weights = ([float(loss) for loss in losses[name]] for name in ("gradient_boosting", "linear_ranking"))
    assert 1 > trees[0] > trees[-1] > 0
    assert trees == sorted(trees, reverse=True)
    assert 0 < weights[0] < weights[-1] < np.log(2)
    assert weights == sorted(weights)
    assert losses["random"] == losses["default_configuration"] == [""]


@every_baseline
def test_the_mlflow_run(method: str, small: Settings, tmp_path: Path, history: History, runs: Runs) -> None:
    config = small(method=method)
    train(config, tmp_path / "model")
    (run,) = runs(config)
    assert (run.info.status, run.info.run_name) == ("FINISHED", f"{method} layout:synthetic:random")
    told = {"collection": "layout:synthetic:random", "method": method, "trained": "True"}
    assert told.items() <= run.data.tags.items()
    sections = {key.partition(".")[0] for key in run.data.params}
    assert sections == {"collection", "method", "seed", "featurize", "trainer"} | (
        set() if method in RULES else {"baseline"}
    )
    assert run.data.params.get("baseline.iterations") == ("12" if method in TREES else None)
    client, rows = MlflowClient(config.tracking.uri), history(tmp_path / "model")
    for key, column in ((TRAIN_LOSS, "train_loss"), (VALID_TAU, "valid_kendall_tau")):
        logged = sorted(client.get_metric_history(run.info.run_id, key), key=lambda metric: metric.step)
        known = {int(row["epoch"]): float(row[column]) for row in rows if row[column]}
        assert {metric.step: metric.value for metric in logged} == known
    seconds = client.get_metric_history(run.info.run_id, "train/seconds")
    assert [metric.step for metric in seconds] == [int(row["epoch"]) for row in rows]
    assert 0 < min(metric.value for metric in seconds) <= run.data.metrics["train/seconds"] < 60
    assert ("train/step_seconds" in run.data.metrics) == (method not in RULES)
    assert run.data.metrics["train/peak_memory_bytes"] > 1e8
    artifacts = {artifact.path for artifact in client.list_artifacts(run.info.run_id, "model")}
    assert artifacts == {f"model/{name}" for name in FILES}


@every_baseline
def test_the_same_training_gives_the_same_bits(method: str, small: Settings, tmp_path: Path, history: History) -> None:
    few = {"method": method, "baseline__rows_per_graph": 30}
    assert train(small(**few), tmp_path / "first") == train(small(**few), tmp_path / "second")
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    for name in ("weights.safetensors", "spec.json"):
        assert (second / name).read_bytes() == (first / name).read_bytes()
    assert history(second) == history(first)
    train(small(**few, seed=1), other)
    same = (other / "weights.safetensors").read_bytes() == (first / "weights.safetensors").read_bytes()
    assert same == (method in LAYOUT_BASELINES)  # which draw nothing


@pytest.mark.parametrize(
    ("method", "min_tau"), [*(with_library(method, 0.5) for method in TREES), ("linear_ranking", 0.4)]
)
def test_it_learns(
    method: str, min_tau: float, small: Settings, store_of: StoreOf, tmp_path: Path, without_valid: None
) -> None:
    """Training graphs are ranked far better than at random; without valid the smallest training loss is kept."""
    config = small(method=method, baseline__iterations=60)
    assert train(config, tmp_path / "model") is None
    baseline, spec = load_baseline(tmp_path / "model")
    assert spec.steps == 60 or method in ("linear_ranking", *RIVALS)  # their loss need not fall with each tree
    store = store_of(config)
    graphs = [store.open("train", name) for name in store.graphs("train")]
    assert min(kendall_tau(baseline.score(graph, 2**30), graph.targets()[1]) for graph in graphs) > min_tau


@every_baseline
def test_nothing_to_validate_on(
    method: str,
    small: Settings,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    without_valid: None,
    history: History,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert train(small(method=method), tmp_path / "model") is None
    assert "no graph of valid can be ranked" in caplog.text
    assert {row["valid_kendall_tau"] for row in history(tmp_path / "model")} == {""}


@every_baseline
def test_nothing_to_train_on(
    method: str,
    small: Settings,
    store_of: StoreOf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    history: History,
    runs: Runs,
) -> None:
    """A rule needs no graphs."""
    monkeypatch.setattr(FeatureStore, "trainable", lambda self, split: [])
    config, rule = small(method=method), method in RULES
    with caplog.at_level(logging.WARNING):
        assert train(config, tmp_path / "model") is None
    assert ("no graph to train on" in caplog.text) == (not rule)
    baseline, spec = load_baseline(tmp_path / "model")
    assert spec.steps == int(rule)
    graph = store_of(config).open("test", store_of(config).graphs("test")[0])
    assert baseline.score(graph, 2**30).any() == rule
    assert len(history(tmp_path / "model")) == int(rule)
    (run,) = runs(config)
    assert (run.info.status, run.data.tags["trained"]) == ("FINISHED", "False")


def test_tiles_have_no_default(small: Settings, tmp_path: Path, runs: Runs) -> None:
    config = small(method="default_configuration", collection="tile:synthetic")
    with pytest.raises(ConfigError, match=r"method=default_configuration: .*tile:synthetic"):
        train(config, tmp_path / "model")
    assert not runs(config)
    assert not (tmp_path / "model").exists()


def test_a_library_that_is_not_installed(
    small: Settings, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(method="xgboost")
    monkeypatch.setattr("hlorank.training.baselines.fit_trees.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"method=xgboost: .*pip install 'hlorank\[rivals\]'"):
        train(config, tmp_path / "model")
    assert not runs(config)


def test_missing_features_are_an_error(small: Settings, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="stage featurize"):
        train(small(paths__features=tmp_path / "none"), tmp_path / "model")


@pytest.mark.parametrize("method", ["linear_ranking", "random"])
def test_a_sweep_does_not_repeat_a_finished_training(
    method: str, small: Settings, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(method=method)
    best = train(config, tmp_path / "first")
    (run,) = runs(config)
    assert run.data.metrics["valid/best_kendall_tau"] == best
    assert run.data.metrics["train/seconds"] > 0
    monkeypatch.setenv(PARENT_VARIABLE, run.info.run_id)
    assert train(small(method=method, model__width=4), tmp_path / "again") == best  # not of `model`
    assert not (tmp_path / "again").exists()
    assert len(runs(config)) == 1
    train(small(method=method, seed=1), tmp_path / "other")
    assert len(runs(config)) == 2


def test_a_baseline_is_fitted_by_one_process_at_a_time(
    small: Settings, tmp_path: Path, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    config = small(method="random")
    train(config, tmp_path / "first")
    (first,) = runs(config)
    lock = Path(config.paths.state) / "locks" / first.data.tags[FINGERPRINT]
    thread = Thread(target=train, args=(config, tmp_path / "second"))
    with caplog.at_level(logging.INFO), one_process(lock, "it"):
        thread.start()
        while "waiting for it" not in caplog.text:
            assert thread.is_alive()
            time.sleep(0.01)
        assert len(runs(config)) == 1
    thread.join()
    assert len(runs(config)) == 1, "it takes the result of the other one"
    for name in FILES:
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
