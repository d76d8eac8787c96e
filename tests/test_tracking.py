"""Runs in MLflow: new, continued, failed, and as children of a sweep."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import hlorank
from hlorank.config import Config, TrackingConfig, to_plain
from hlorank.tracking import PARENT_VARIABLE, URI_VARIABLE, SweepRun, flatten, open_run, tracking_uri

ROOT = Path(hlorank.__file__).parents[2]


@pytest.fixture
def tracking(settings: Callable[..., Config]) -> TrackingConfig:
    return settings().tracking


def client(config: TrackingConfig) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(config.uri)


def runs(config: TrackingConfig) -> list[Any]:
    experiment = client(config).get_experiment_by_name(config.experiment)
    return list(client(config).search_runs([experiment.experiment_id]))


def test_a_new_run(tracking: TrackingConfig, tmp_path: Path) -> None:
    import mlflow

    with open_run(tracking, "name", {"method": "gst"}) as (run_id, resumed):
        mlflow.log_metric("loss", 1.5)
        (tmp_path / "note.txt").write_text("text")
        mlflow.log_artifact(str(tmp_path / "note.txt"))
    assert not resumed
    (run,) = runs(tracking)
    assert (run.info.run_id, run.info.run_name, run.info.status) == (run_id, "name", "FINISHED")
    assert run.data.tags["method"] == "gst"
    assert "mlflow.parentRunId" not in run.data.tags
    assert run.data.metrics == {"loss": 1.5}
    assert [path.name for path in (tmp_path / "artifacts").rglob("*.txt")] == ["note.txt"]
    assert (tmp_path / "mlflow.db").is_file()


def test_a_run_goes_on(tracking: TrackingConfig) -> None:
    import mlflow

    with open_run(tracking, "first", {"a": "1"}) as (first, _):
        pass
    with open_run(tracking, "second", {"a": "2"}, first) as (run_id, resumed):
        mlflow.log_metric("loss", 1.5)
    assert (run_id, resumed) == (first, True)
    (run,) = runs(tracking)
    assert (run.info.run_name, run.data.tags["a"], run.data.metrics) == ("first", "1", {"loss": 1.5})
    assert run.info.status == "FINISHED"


def test_a_run_goes_on_in_its_own_experiment(tracking: TrackingConfig) -> None:
    with open_run(tracking, "first", {}) as (first, _):
        pass
    other = replace(tracking, experiment="other")
    with open_run(other, "second", {}):
        pass
    with open_run(other, "third", {}, first) as (run_id, resumed):
        assert (run_id, resumed) == (first, True)
    assert len(runs(other)) == 1


def test_unknown_and_deleted_runs_give_way_to_new_ones(tracking: TrackingConfig) -> None:
    with open_run(tracking, "new", {}, "0" * 32) as (first, resumed):
        assert not resumed
    client(tracking).delete_run(first)
    with open_run(tracking, "newer", {}, first) as (second, resumed):
        assert not resumed
    assert [run.info.run_id for run in runs(tracking)] == [second] != [first]


def test_an_exception_marks_the_run_as_failed(tracking: TrackingConfig) -> None:
    with pytest.raises(KeyError), open_run(tracking, "name", {}):
        raise KeyError
    (run,) = runs(tracking)
    assert run.info.status == "FAILED"


def test_the_commit_of_the_current_folder(
    tracking: TrackingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    (repository / "inside").mkdir(parents=True)
    monkeypatch.chdir(repository / "inside")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q", ".."], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "empty"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    with open_run(tracking, "name", {}):
        pass
    (run,) = runs(tracking)
    assert run.data.tags["mlflow.source.git.commit"] == head


def test_the_variable_has_the_last_word(
    tracking: TrackingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(tmp_path / "mlflow.db", tmp_path / "other.db")
    other = f"sqlite:///{tmp_path}/other.db"
    assert tracking_uri(tracking) == tracking.uri
    monkeypatch.setenv(URI_VARIABLE, other)
    assert tracking_uri(tracking) == other
    with open_run(tracking, "name", {}):
        pass
    assert client(tracking).get_experiment_by_name(tracking.experiment) is None
    assert len(runs(replace(tracking, uri=other))) == 1


def test_each_configuration_has_its_own_store(tracking: TrackingConfig, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "mlflow.db", tmp_path / "other.db")
    other = replace(tracking, uri=f"sqlite:///{tmp_path}/other.db")
    for config, name in ((tracking, "first"), (other, "second"), (tracking, "third")):
        with open_run(config, name, {}):
            pass
    assert sorted(run.info.run_name for run in runs(tracking)) == ["first", "third"]
    assert [run.info.run_name for run in runs(other)] == ["second"]


def test_only_a_local_store_is_told_where_artifacts_go(
    tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    from hlorank.tracking import open_experiment

    created: dict[str, str | None] = {}
    monkeypatch.setattr(mlflow, "get_experiment_by_name", lambda name: None)
    monkeypatch.setattr(
        mlflow, "create_experiment", lambda name, artifact_location: created.update({name: artifact_location})
    )
    monkeypatch.setattr(mlflow, "set_experiment", lambda name: type("Experiment", (), {"experiment_id": "7"}))
    assert open_experiment(tracking) == "7"
    assert created == {"hlorank": Path(tracking.artifacts).as_uri()}
    assert open_experiment(replace(tracking, uri="http://127.0.0.1:5000")) == "7"
    assert created == {"hlorank": None}


def test_flatten() -> None:
    nested = {"a": 1, "b": {"c": [1, 2], "d": {"e": None}}, "f": {}}
    assert flatten(nested) == {"a": 1, "b.c": [1, 2], "b.d.e": None}


def sweep(job: str, config: Config) -> Any:
    hydra = {"job": {"name": job}, "overrides": {"task": ["method=full,gst", "seed=0,1"]}}
    return OmegaConf.create({**to_plain(config), "hydra": hydra})


def test_a_sweep_is_the_parent_of_its_trainings(settings: Callable[..., Config]) -> None:
    config = settings()
    callback, composed = SweepRun(), sweep("train", config)
    callback.on_multirun_start(config=composed)
    with open_run(config.tracking, "child", {}):
        pass
    callback.on_multirun_end(config=composed)
    with open_run(config.tracking, "alone", {}):
        pass
    by_name = {run.info.run_name: run for run in runs(config.tracking)}
    parent = by_name.pop("sweep method=full,gst seed=0,1")
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["hlorank.sweep"] == "method=full,gst seed=0,1"
    assert by_name["child"].data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert "mlflow.parentRunId" not in by_name["alone"].data.tags
    assert PARENT_VARIABLE not in os.environ


def test_a_multirun_of_another_stage_is_no_sweep(settings: Callable[..., Config]) -> None:
    callback, composed = SweepRun(), sweep("fetch", settings())
    callback.on_multirun_start(config=composed)
    assert PARENT_VARIABLE not in os.environ
    callback.on_multirun_end(config=composed)
    assert client(settings().tracking).get_experiment_by_name("hlorank") is None


@pytest.mark.slow
@pytest.mark.parametrize("methods", ["full,gst", "full,unknown"])
def test_a_real_multirun(methods: str, settings: Callable[..., Config], tmp_path: Path) -> None:
    config = settings()
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    subtrees = {name: to_plain(getattr(config, name)) for name in ("paths", "trainer", "tracking")}
    values = [f"{name}={value}" for name, value in flatten(subtrees).items()] + [f"collection={config.collection}"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "hlorank.stages.train", "-m", f"method={methods}", "seed=0,1", *values],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    good = methods == "full,gst"
    assert (done.returncode == 0) == good, done.stderr
    found = {run.info.run_name: run for run in runs(config.tracking)}
    (sweep_name,) = [name for name in found if name.startswith("sweep ")]
    parent = found.pop(sweep_name)
    assert parent.info.status == ("FINISHED" if good else "FAILED")
    trained = ["full", "gst"] if good else ["full"]
    assert sorted(found) == [f"layout:synthetic:random {method} seed {seed}" for method in trained for seed in (0, 1)]
    for run in found.values():
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.info.status == "FINISHED"
    folders = {path.parent.name for path in (tmp_path / "multirun").rglob("weights.safetensors")}
    assert folders == set("0123"[: 2 * len(trained)])
