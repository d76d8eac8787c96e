"""Evaluation of models, logged into the runs of their trainings."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hlorank.compute import SERIAL
from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection
from hlorank.evaluation.evaluate_model import LOGGED, TABLE, evaluate, score_model
from hlorank.evaluation.protocol import PER_GRAPH, PREDICTIONS, SUBMISSION
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import METRICS, RUN, DataError, read_json, write_json
from hlorank.models.baselines.baseline import BASELINES
from hlorank.models.serialization import sealed
from hlorank.partition.partition_collection import partition_collection
from hlorank.training.baselines.train_baseline import train_baseline
from hlorank.training.trainer import train
from tests.sections import compute_config
from tests.training.baselines.conftest import with_library

Settings = Callable[..., Config]


def runs(config: Config) -> list[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(config.tracking.uri)
    experiment = client.get_experiment_by_name(config.tracking.experiment)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def trained(config: Config, folder: Path) -> float | None:
    return (train_baseline if config.method in BASELINES else train)(config, folder)


@pytest.mark.parametrize("collection", ["layout:synthetic:random", "tile:synthetic"])
@pytest.mark.parametrize("method", ["gst", "full", "gradient_boosting"])
def test_metrics_join_the_run_of_the_training(
    collection: str, method: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hlorank.evaluation.evaluate_model.one_segment", lambda _: True)
    config = settings(collection=collection, method=method)
    best = trained(config, tmp_path / "model")
    write_json(tmp_path / "model" / RUN, read_json(tmp_path / "model" / RUN) | {"experiment": "best_layout"})
    metrics = evaluate(config, tmp_path / "model", tmp_path / "report")
    written = read_json(tmp_path / "report" / METRICS)
    assert written["experiment"] == "best_layout"
    assert written.get("one_segment", False) == (method == "gst" and collection.startswith("layout"))
    (run,) = runs(config)
    logged = {f"evaluate/{name}": value for name, value in metrics.items() if name.rpartition("/")[2] in LOGGED}
    assert {"evaluate/valid/kendall_tau", "evaluate/test/slowdown_5"} <= logged.keys()
    assert {key: value for key, value in run.data.metrics.items() if key.startswith("evaluate/")} == logged
    assert run.data.metrics["curves/train_loss"] > 0
    assert metrics["test/graphs"] == 1
    store = FeatureStore(Path(config.paths.features) / Collection.parse(collection).path)
    assert run.data.tags["features"] == store.fingerprint
    assert run.data.tags["model"] == read_json(tmp_path / "model" / "spec.json")["spec_sha256"]
    if collection.startswith(
        "layout"
    ):  # repeated configurations apart, these are the graphs and configurations of validation
        assert metrics["valid/kendall_tau"] == pytest.approx(best, abs=0.05)
    (report,) = (tmp_path / "artifacts").rglob("report")
    assert {path.name for path in report.iterdir()} == {path.name for path in (tmp_path / "report").iterdir()}
    assert evaluate(config, tmp_path / "model", tmp_path / "again") == metrics
    assert len(runs(config)) == 1
    (path,) = (tmp_path / "artifacts").rglob(TABLE)
    table = read_json(path)
    assert table["columns"][:2] == ["graph", "kendall_tau"], "what MLflow groups by and shows"
    assert [row[0] for row in table["data"]] == [
        *("valid/synthetic_valid_000", "valid/synthetic_valid_001", "test/synthetic_test_000")
    ], "once, after two evaluations"
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": TABLE, "type": "table"}]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gst", "gradient_boosting"])
def test_worker_processes_write_the_same_tables(
    method: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(method=method, trainer__max_epochs=1)
    trained(config, tmp_path / "model")
    collection, folders = (
        Collection.parse(config.collection),
        (Path(config.paths.features), Path(config.paths.segments)),
    )
    monkeypatch.setattr("hlorank.evaluation.evaluate_model._MIN_NODE_STATES", 0)
    for workers in (None, 1, 2):
        compute = SERIAL if workers is None else compute_config(workers=workers)
        output = tmp_path / f"{workers}"
        score_model(tmp_path / "model", collection, *folders, config.evaluate, output, "cpu", 1, compute)
    for name in (METRICS, PER_GRAPH, PREDICTIONS, SUBMISSION):
        assert len({(tmp_path / f"{workers}" / name).read_bytes() for workers in (None, 1, 2)}) == 1


def test_models_with_attention_rank_the_same_groups_in_validation_and_evaluation(
    settings: Settings, tmp_path: Path
) -> None:
    layers = {"model__block": "[sage,squeeze_excite,configuration_attention,gelu,residual]"}
    config = settings(method="gst", **layers)
    best = train(config, tmp_path / "model")
    metrics = evaluate(config, tmp_path / "model", tmp_path / "report")
    assert metrics["valid/kendall_tau"] == pytest.approx(best, abs=0.05)
    with pytest.raises(ConfigError, match=r"model.block: .*configuration_attention.* method .*full, gst_one, gst"):
        train(settings(method="gst_efd", **layers), tmp_path / "refused")


def test_segments_with_a_halo_are_trained_and_evaluated(settings: Settings, tmp_path: Path) -> None:
    path = Collection.parse("layout:synthetic:random").path
    config = settings(method="gst_e", paths__segments=tmp_path / "segments", partition__max_nodes=20, partition__halo=1)
    partition_collection(Path(config.paths.features) / path, config.partition, tmp_path / "segments" / path)
    best = train(config, tmp_path / "model")
    metrics = evaluate(config, tmp_path / "model", tmp_path / "report")
    assert metrics["valid/kendall_tau"] == pytest.approx(best, abs=0.05)
    with pytest.raises(DataError, match=r"data: expected data [0-9a-f]{16}.*re-run the stage train"):
        evaluate(settings(), tmp_path / "model", tmp_path / "report")
    gated = settings(method="gst", paths__segments=tmp_path / "segments", model__block="[sage,squeeze_excite]")
    with pytest.raises(ConfigError, match=r"model.block: squeeze_excite .* partition.halo"):
        train(gated, tmp_path / "refused")
    assert len(runs(config)) == 1


def test_a_model_without_its_run_gets_one(settings: Settings, tmp_path: Path) -> None:
    config = settings()
    train(config, tmp_path / "model")
    (trained,) = runs(config)
    write_json(tmp_path / "model/run.json", {"run_id": "0" * 32, "tracking_uri": config.tracking.uri})
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "model").iterdir()}
    for _ in range(2):
        metrics = evaluate(config, tmp_path / "model", tmp_path / "report")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "model").iterdir()} == files
    (own,) = [run for run in runs(config) if run.info.run_id != trained.info.run_id]
    assert own.data.tags["run"] == "evaluated elsewhere"
    logged = {name for name in own.data.metrics if name.startswith("evaluate/valid/")}
    assert logged == {f"evaluate/valid/{name}" for name in ("kendall_tau", "slowdown_1", "slowdown_5", "slowdown_10")}
    assert own.data.metrics["evaluate/valid/slowdown_5"] == pytest.approx(metrics["valid/slowdown_5"])


@pytest.mark.parametrize("method", [*map(with_library, BASELINES)])
def test_a_baseline_needs_no_segments(method: str, settings: Settings, tmp_path: Path) -> None:
    config = settings(method=method, paths__segments=tmp_path / "none")
    train_baseline(config, tmp_path / "model")
    assert evaluate(config, tmp_path / "model", tmp_path / "report")["valid/graphs"] == 2
    tiles = settings(method=method, collection="tile:synthetic")
    with pytest.raises(DataError, match=r"model/spec.json: data: expected data [0-9a-f]{16}.*re-run the stage train"):
        evaluate(tiles, tmp_path / "model", tmp_path / "other")


def test_a_model_of_other_data_is_refused(settings: Settings, tmp_path: Path) -> None:
    train(settings(), tmp_path / "model")
    tiles = settings(collection="tile:synthetic")
    spec = read_json(tmp_path / "model/spec.json")
    write_json(tmp_path / "model/spec.json", sealed(spec | {"whole_graph": True}))
    with pytest.raises(DataError, match=r"model/spec.json: data: expected data [0-9a-f]{16}.*re-run the stage train"):
        evaluate(tiles, tmp_path / "model", tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_an_untrained_model_is_warned_about(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings()
    train(config, tmp_path / "model")
    spec = read_json(tmp_path / "model/spec.json")
    write_json(tmp_path / "model/spec.json", sealed(spec | {"steps": 0}))
    with caplog.at_level(logging.WARNING):
        evaluate(config, tmp_path / "model", tmp_path / "report")
    assert [record.levelname for record in caplog.records if "synthetic:random: " in record.getMessage()] == ["WARNING"]
