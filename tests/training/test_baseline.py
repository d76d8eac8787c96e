"""Whole trainings of the baseline: what they fit, outputs, determinism, and what MLflow is told."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
import torch
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from sklearn.ensemble import HistGradientBoostingRegressor

import hlorank
from hlorank.collection import Collection
from hlorank.config import Config, ConfigError
from hlorank.featurize.store import FeatureStore
from hlorank.io import DataError
from hlorank.metrics import kendall_tau
from hlorank.models.baseline import load_baseline
from hlorank.models.open import GraphOpener
from hlorank.models.pooled import pooled_columns
from hlorank.training.baseline import draw_sample, train_baseline, trees_of

Settings = Callable[..., Config]
FILES = ["history.csv", "run.json", "spec.json", "weights.safetensors"]


@pytest.fixture
def boosting(settings: Settings) -> Settings:
    """Settings of a baseline of a few small trees, without segments."""

    def make(**values: Any) -> Config:
        few = {"baseline__iterations": 12, "baseline__min_leaf": 4, "paths__segments": "none"}
        return settings(**{"method": "gradient_boosting", **few, **values})

    return make


def store_of(config: Config) -> FeatureStore:
    return FeatureStore(Path(config.paths.features) / Collection.parse(config.collection).path)


def history(folder: Path) -> list[dict[str, str]]:
    """history.csv without what depends on the clock."""
    with (folder / "history.csv").open(newline="") as file:
        return [{key: row[key] for key in row if key != "step_seconds"} for row in csv.DictReader(file)]


def runs(config: Config) -> list[Run]:
    client = MlflowClient(config.tracking.uri)
    experiment = client.get_experiment_by_name(config.tracking.experiment)
    return [] if experiment is None else list(client.search_runs([experiment.experiment_id]))


def test_trees_are_those_of_scikit_learn() -> None:
    assert sklearn.__version__ == "1.9.1", "trees_of reads private attributes: check that they mean the same"
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=(3000, 7)), 2).astype(np.float32)  # many rows lie on a threshold's side by a hair
    y = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + rng.normal(size=3000)
    regressor = HistGradientBoostingRegressor(max_iter=40, early_stopping=False, random_state=0)
    regressor.fit(x[:2000], y[:2000], rng.uniform(0.5, 2, 2000))
    trees = trees_of(regressor)
    trees.check(columns=7)
    staged = trees.staged(x)
    np.testing.assert_array_equal(staged[:, -1], regressor.predict(x))
    np.testing.assert_array_equal(staged[:, 1:], np.transpose(list(regressor.staged_predict(x))))


@pytest.mark.parametrize("collection", ["layout:synthetic:random", "tile:synthetic"])
def test_graphs_weigh_the_same(collection: str, boosting: Settings) -> None:
    config = boosting(collection=collection, baseline__rows_per_graph=30)
    store = store_of(config)
    names = store.trainable("train")
    sample = draw_sample(store, names, config)
    counts = [min(30, len(store.open("train", name).targets()[0])) for name in names]
    assert len(sample.x) == len(sample.y) == len(sample.weight) == sum(counts)
    assert sample.weight.mean() == pytest.approx(1)
    sums = [weight.sum() for weight in np.split(sample.weight, np.cumsum(counts)[:-1])]
    assert sums == pytest.approx([sum(counts) / len(names)] * len(names))
    everything = draw_sample(store, names, boosting(collection=collection))
    counts = [len(store.open("train", name).targets()[0]) for name in names]
    for name, y in zip(names, np.split(everything.y, np.cumsum(counts)[:-1]), strict=True):
        assert (y.mean(), y.std()) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
        assert kendall_tau(y, store.open("train", name).targets()[1]) == pytest.approx(1)


@pytest.mark.parametrize("collection", ["layout:synthetic:random", "tile:synthetic"])
def test_outputs(collection: str, boosting: Settings, tmp_path: Path) -> None:
    config = boosting(collection=collection)
    best = train_baseline(config, tmp_path / "model")
    assert best is not None
    baseline, spec = load_baseline(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == FILES
    assert (spec.version, spec.collection, spec.method) == (hlorank.__version__, collection, "gradient_boosting")
    assert (spec.settings, spec.steps) == (config.baseline, len(baseline.trees.root))
    features = Path(config.paths.features) / Collection.parse(collection).path
    assert spec.data == GraphOpener(features, None, torch.device("cpu")).fingerprint
    assert baseline.trees.feature.max() < pooled_columns(baseline.sizes)
    rows = history(tmp_path / "model")
    assert [int(row["epoch"]) for row in rows] == list(range(1, 13))
    taus = [float(row["valid_kendall_tau"]) for row in rows]
    assert best == max(taus)
    assert spec.steps == 1 + taus.index(best)
    losses = [float(row["train_loss"]) for row in rows]
    assert 1 > losses[0] > losses[-1] > 0
    assert losses == sorted(losses, reverse=True)
    (run,) = runs(config)
    assert json.loads((tmp_path / "model" / "run.json").read_text())["run_id"] == run.info.run_id
    store = store_of(config)
    valid = [store.open("valid", name) for name in store.trainable("valid")]
    scored = [(baseline.score(graph, 2**30), *graph.targets()) for graph in valid]
    assert best == pytest.approx(np.mean([kendall_tau(scores[rows], labels) for scores, rows, labels in scored]))


def test_what_mlflow_is_told(boosting: Settings, tmp_path: Path) -> None:
    config = boosting()
    train_baseline(config, tmp_path / "model")
    (run,) = runs(config)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "layout:synthetic:random gradient_boosting seed 0")
    told = {"collection": "layout:synthetic:random", "method": "gradient_boosting", "trained": "True"}
    assert told.items() <= run.data.tags.items()
    assert run.data.params["baseline.iterations"] == "12"
    client = MlflowClient(config.tracking.uri)
    for key, column in (("train/loss", "train_loss"), ("valid/kendall_tau", "valid_kendall_tau")):
        logged = sorted(client.get_metric_history(run.info.run_id, key), key=lambda metric: metric.step)
        assert [metric.step for metric in logged] == list(range(1, 13))
        assert [metric.value for metric in logged] == [float(row[column]) for row in history(tmp_path / "model")]
    assert run.data.metrics["train/step_seconds"] > 0
    assert run.data.metrics["train/peak_memory_bytes"] > 1e8
    artifacts = {artifact.path for artifact in client.list_artifacts(run.info.run_id, "model")}
    assert artifacts == {f"model/{name}" for name in FILES}


def test_the_same_training_gives_the_same_bits(boosting: Settings, tmp_path: Path) -> None:
    few = {"baseline__rows_per_graph": 30}
    assert train_baseline(boosting(**few), tmp_path / "first") == train_baseline(boosting(**few), tmp_path / "second")
    for name in ("weights.safetensors", "spec.json"):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
    assert history(tmp_path / "second") == history(tmp_path / "first")
    train_baseline(boosting(**few, seed=1), tmp_path / "other")
    assert history(tmp_path / "other") != history(tmp_path / "first")


def test_it_learns(boosting: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranking of the graphs that it was fitted to is far better than chance; all trees are kept for them."""
    plain = FeatureStore.trainable
    monkeypatch.setattr(FeatureStore, "trainable", lambda self, split: plain(self, split) if split == "train" else [])
    config = boosting(baseline__iterations=60)
    assert train_baseline(config, tmp_path / "model") is None
    baseline, spec = load_baseline(tmp_path / "model")
    assert spec.steps == 60
    assert len(history(tmp_path / "model")) == 50  # not every number of trees is tried
    store = store_of(config)
    graphs = [store.open("train", name) for name in store.graphs("train")]
    assert min(kendall_tau(baseline.score(graph, 2**30), graph.targets()[1]) for graph in graphs) > 0.5


def test_nothing_to_validate_on(
    boosting: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = FeatureStore.trainable
    monkeypatch.setattr(FeatureStore, "trainable", lambda self, split: plain(self, split) if split == "train" else [])
    with caplog.at_level(logging.WARNING):
        assert train_baseline(boosting(), tmp_path / "model") is None
    assert "no graph of valid can be ranked" in caplog.text
    assert {row["valid_kendall_tau"] for row in history(tmp_path / "model")} == {""}


def test_nothing_to_train_on(
    boosting: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FeatureStore, "trainable", lambda self, split: [])
    config = boosting()
    with caplog.at_level(logging.WARNING):
        assert train_baseline(config, tmp_path / "model") is None
    assert "nothing is left to train on; the model has no trees" in caplog.text
    baseline, spec = load_baseline(tmp_path / "model")
    assert spec.steps == 0
    graph = store_of(config).open("test", store_of(config).graphs("test")[0])
    np.testing.assert_array_equal(baseline.score(graph, 2**30), np.zeros(graph.distinct))
    assert history(tmp_path / "model") == []
    (run,) = runs(config)
    assert (run.info.status, run.data.tags["trained"]) == ("FINISHED", "False")


@pytest.mark.parametrize(
    ("key", "value", "least"),
    [
        ("baseline.iterations", 0, "at least 1"),
        ("baseline.leaves", 1, "at least 2"),
        ("baseline.min_leaf", 0, "at least 1"),
        ("baseline.l2", -0.5, "at least 0"),
        ("baseline.rows_per_graph", 1, "at least 2"),
        ("baseline.learning_rate", 0.0, "above 0"),
        ("seed", -1, "at least 0"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    key: str, value: float, least: str, boosting: Settings, tmp_path: Path
) -> None:
    config = boosting(**{key: value})
    with pytest.raises(ConfigError, match=re.escape(f"{key}={value}: set it {'to ' * least.startswith('at')}{least}")):
        train_baseline(config, tmp_path / "model")
    assert not runs(config)
    assert not (tmp_path / "model").exists()


def test_missing_data_is_named(boosting: Settings, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="run the stage featurize"):
        train_baseline(boosting(paths__features=tmp_path / "none"), tmp_path / "model")
