"""Versions of registered models, and the choice of the champion."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from mlflow.utils.logging_utils import eprint

from hlorank.files import SPEC, WEIGHTS, DataError, read_json, write_json
from hlorank.runs.registry import MEASURES, Registration, register
from tests.runs.conftest import MakeRun, run_of

NAME = "layout.synthetic.random"
EVALUATED, TRAINED = MEASURES.values()


@pytest.fixture(autouse=True)
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register model folders without packages, which take seconds."""

    def log(folder: Path, _: Any, run_id: str, registered_model_name: str, tags: dict[str, str]) -> Any:
        eprint("Registered model already exists")  # as MLflow does
        client = mlflow.MlflowClient()
        if not client.search_registered_models(f"name='{registered_model_name}'"):
            client.create_registered_model(registered_model_name)
        version = client.create_model_version(registered_model_name, f"runs:/{run_id}/model", run_id, tags)
        return SimpleNamespace(registered_model_version=version.version)

    monkeypatch.setattr("hlorank.runs.registry.log_package", log)


def champion() -> int:
    return int(mlflow.MlflowClient().get_model_version_by_alias(NAME, "champion").version)


def outcome(registration: Registration) -> tuple[int, bool, bool]:
    return registration.version, registration.new, registration.champion


def test_a_better_model_becomes_champion(make_run: MakeRun) -> None:
    first = register(make_run({EVALUATED: 0.5, TRAINED: 0.9}))
    assert outcome(first) == (1, True, True)
    assert (first.model, first.method, first.seed) == (NAME, "linear_ranking", "7")
    assert first.valid_tau == {"evaluate": 0.5, "training": 0.9}
    # If both were evaluated, tau of training is not compared. An equal tau is not better.
    for steps, tau in ((4, 0.4), (5, 0.5)):
        other = register(make_run({EVALUATED: tau, TRAINED: 0.95}, steps=steps))
        assert not other.champion
        assert other.reason == f"valid tau {tau:.4f} by evaluate, 0.5000 of the champion, version 1"
    assert champion() == 1
    assert outcome(register(make_run({EVALUATED: 0.6}, steps=6))) == (4, True, True)
    assert champion() == 4


def test_tags_of_a_version(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run({EVALUATED: 0.5})
    registration = register(folder)
    spec, client = read_json(folder / SPEC), mlflow.MlflowClient()
    version = client.get_model_version(NAME, "1")
    assert version.run_id == registration.run_id == run_of(folder)
    tags = {"model": spec["spec_sha256"], "collection": "layout:synthetic:random", "method": "linear_ranking"}
    assert version.tags == {**tags, "data": spec["data"], "seed": "7", "valid_tau.evaluate": "0.500000"}
    assert registration.run_id in version.description
    assert "0.5000" in version.description
    assert "layout:synthetic:random" in client.get_registered_model(NAME).description
    client.update_registered_model(NAME, "mine")
    register(make_run({EVALUATED: 0.6}, steps=6))
    assert client.get_registered_model(NAME).description == "mine"
    assert "already exists" not in capsys.readouterr().err  # a line that MLflow prints


def test_registering_again_makes_no_second_version(make_run: MakeRun) -> None:
    folder, client = make_run(), mlflow.MlflowClient()
    run_id = run_of(folder)
    missing = register(folder)
    assert outcome(missing) == (1, True, False)
    assert "run the stage evaluate" in missing.reason
    client.log_metric(run_id, EVALUATED, 0.3)
    for reference in (folder, run_id, f"models:/{NAME}/1", f"models:/{NAME}@champion"):
        again = register(reference)
        assert outcome(again) == (1, False, True)
        assert again.valid_tau == {"evaluate": 0.3}
    assert len(client.search_model_versions(f"name='{NAME}'")) == 1


def test_only_comparable_metrics_are_compared(make_run: MakeRun) -> None:
    """Taus of other metrics, of other configurations of valid, or of other code say nothing about each other."""
    tags = {"hlorank.code": "new", "hlorank.evaluation": "new"}
    register(make_run({TRAINED: 0.5}, tags))
    folders = [
        make_run({EVALUATED: 0.9}, tags, steps=4),
        make_run({TRAINED: 0.9}, tags | {"hlorank.code": "old"}, steps=5),
        make_run({TRAINED: 0.9}, tags, {"trainer.validation_configs": 10}, steps=6),
    ]
    for folder in folders:
        other = register(folder)
        assert not other.champion
        assert "the champion, version 1" in other.reason
    mlflow.MlflowClient().log_metric(run_of(folders[0]), TRAINED, 0.6)
    assert register(folders[0]).reason == "valid tau 0.6000 by training, 0.5000 of the champion, version 1"
    assert champion() == 2
    other = register(make_run({EVALUATED: 0.95}, tags | {"hlorank.evaluation": "old"}, steps=7))
    assert (other.champion, champion()) == (False, 2)


def test_models_that_are_registered_at_once(make_run: MakeRun) -> None:
    folders = [make_run({EVALUATED: tau}, steps=1 + int(10 * tau)) for tau in (0.5, 0.9)]
    with ThreadPoolExecutor(4) as pool:
        registrations = list(pool.map(register, folders * 2))
    assert sorted(one.version for one in registrations) == [1, 1, 2, 2]
    assert [one.new for one in registrations].count(True) == 2
    assert {one.version for one in registrations if one.valid_tau["evaluate"] == 0.9} == {champion()}


def test_changed_data(make_run: MakeRun) -> None:
    register(make_run({EVALUATED: 0.5}, data="old"))
    folder = make_run({EVALUATED: 0.9}, data="new")
    other = register(folder)
    assert not other.champion
    for named in ("data new", "version 1, on old", "--champion"):
        assert named in other.reason
    assert (outcome(register(folder, move=True)), champion()) == ((2, False, True), 2)


def test_methods_with_other_segments_are_compared_by_evaluation_only(make_run: MakeRun) -> None:
    tags = {"features": "same"}
    register(make_run({EVALUATED: 0.5, TRAINED: 0.5}, tags, data="whole graphs"))
    assert register(make_run({EVALUATED: 0.6, TRAINED: 0.1}, tags, data="segments")).champion
    assert not register(make_run({TRAINED: 0.9}, tags, data="whole graphs", steps=4)).champion


def test_a_model_without_its_run(make_run: MakeRun) -> None:
    folder = make_run()
    write_json(folder / "run.json", {"run_id": "0" * 32, "tracking_uri": "http://elsewhere"})
    with pytest.raises(DataError, match="set MLFLOW_TRACKING_URI to http://elsewhere, or run the stage evaluate"):
        register(folder)
    evaluated = run_of(make_run({EVALUATED: 0.5}, {"data": "some", "model": read_json(folder / SPEC)["spec_sha256"]}))
    registration = register(folder)
    assert (registration.run_id, registration.champion) == (evaluated, True)


def test_models_that_cannot_be_registered(make_run: MakeRun) -> None:
    folder = make_run({EVALUATED: 0.5})
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"weights\.safetensors: sha256: expected"):
        register(folder)
