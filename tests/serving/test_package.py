"""A package holds all that loading needs but its requirements, and nothing that is pickled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hlorank
from hlorank.config import Config
from hlorank.data.collection import Collection, graph_files
from hlorank.files import SPEC, WEIGHTS, read_json, sha256_file
from hlorank.serving.package import REQUIRED, example, log_package, requirements
from hlorank.serving.ranker import Ranker
from hlorank.serving.request import Limits, read_graph, request
from hlorank.training.trainer import train

# What MLflow does among its own: types of its classes, and an index that it compares with pandas 3.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning"),
    pytest.mark.filterwarnings("ignore:Operation with range is deprecated:DeprecationWarning"),
]

ROOT = Path(hlorank.__file__).parents[2]
MakeRun = Callable[..., Path]

# Finds no hlorank but that of the package, and none of the project's dependencies that a package does not require.
_APART = """
import importlib.abc, importlib.util, json, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in REFUSED:
            raise ModuleNotFoundError(name)

package, body, source, REFUSED = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3], set(sys.argv[4:])
sys.path = [entry for entry in sys.path if entry != source]
sys.meta_path = [Refuse(), *(finder for finder in sys.meta_path if "editable" not in repr(finder).lower())]
assert importlib.util.find_spec("hlorank") is None
import mlflow, pandas
model = mlflow.pyfunc.load_model(package)
answers = model.predict(pandas.DataFrame(body["dataframe_records"]), body["params"])
import hlorank
print(json.dumps({"answers": answers, "hlorank": hlorank.__file__}))
"""
_MODULES = {"hydra-core": "hydra", "scikit-learn": "sklearn"}
# MLflow needs these itself.
_OF_MLFLOW = {"matplotlib", "requests", "scikit-learn", "sqlalchemy", "urllib3"}


def apart(package: Path, body: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """What the model of a package answers in a process that has no hlorank."""
    (tmp_path / "body.json").write_text(json.dumps(body))
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names = {re.split("[<>=]", line)[0] for line in pyproject["project"]["dependencies"]}
    refused = [_MODULES.get(name, name) for name in names - set(REQUIRED) - _OF_MLFLOW]
    assert {"dvc", "hydra", "lightning"} <= set(refused)
    command = [sys.executable, "-c", _APART, str(package), str(tmp_path / "body.json"), str(ROOT / "src"), *refused]
    ended = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


def package_of(tmp_path: Path) -> Path:
    (described,) = tmp_path.rglob("MLmodel")
    return described.parent


def test_a_package(make_run: MakeRun, tiny_collections: Path, tmp_path: Path) -> None:
    folder = make_run({})
    run_id = read_json(folder / "run.json")["run_id"]
    log_package(folder, Ranker(folder).spec, run_id)
    package = package_of(tmp_path / "artifacts")
    files = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    assert not {path.suffix for path in files} & {".pkl", ".pickle", ".pt", ".pth", ".joblib", ".pyc"}
    assert not [path for path in files if (package / path).read_bytes()[:1] == b"\x80"]  # as pickles begin
    for name in (SPEC, WEIGHTS):
        assert sha256_file(package / "artifacts" / "model" / name) == sha256_file(folder / name)
    source = Path(hlorank.__file__).parent
    own = {path.relative_to(source.parent) for path in source.rglob("*.py")}
    assert {path.relative_to("code") for path in files if path.parts[0] == "code" and path.suffix == ".py"} == own

    from mlflow.models import Model

    described = Model.load(str(package))
    flavor = described.flavors["python_function"]
    assert flavor["model_code_path"].endswith("model_code.py")
    assert "python_model" not in flavor
    signature = described.signature
    assert [(one.name, one.required) for one in signature.inputs] == [("npz", True), ("graph", False), ("extra", False)]
    assert [one.name for one in signature.outputs] == ["graph", "configurations", "top"]
    assert [(one.name, one.default) for one in signature.params] == [("top", 10)]
    assert (package / "requirements.txt").read_text().splitlines() == requirements()

    graphs = graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")
    told = apart(package, request(graphs, 3), tmp_path)
    assert Path(told["hlorank"]).is_relative_to(package / "code")
    for path, answer in zip(graphs, told["answers"], strict=True):
        given = read_graph(request([path])["dataframe_records"][0]["npz"], None, Ranker(folder).spec.features, Limits())
        order = Ranker(folder).rank(given.measured.graph, given.measured.configurations)
        assert [one["configuration"] for one in answer["top"]] == order[:3].tolist()


def test_a_package_of_a_run_changes_nothing_of_the_run(make_run: MakeRun) -> None:
    import mlflow

    folder = make_run({"some": 1.0})
    run_id = read_json(folder / "run.json")["run_id"]
    before = mlflow.get_run(run_id)
    log_package(folder, Ranker(folder).spec, run_id)
    after = mlflow.get_run(run_id)
    assert after.info.end_time == before.info.end_time
    assert after.info.status == "FINISHED"
    assert (after.data.params, after.data.metrics) == (before.data.params, before.data.metrics)
    assert mlflow.active_run() is None
    (model,) = mlflow.search_logged_models([after.info.experiment_id], output_format="list")
    assert model.source_run_id == run_id


@pytest.mark.slow
def test_a_graph_network_that_is_loaded_apart(
    settings: Callable[..., Config], make_run: MakeRun, tiny_collections: Path, tmp_path: Path
) -> None:
    run_id = read_json(make_run({}) / "run.json")["run_id"]
    train(settings(method="gst", model__block="[layer_norm,gatv2,gelu,residual]"), tmp_path / "gst")
    log_package(tmp_path / "gst", Ranker(tmp_path / "gst").spec, run_id)
    graphs = graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")
    (answer,) = apart(package_of(tmp_path / "artifacts"), request(graphs[:1], 3), tmp_path)["answers"]
    assert len(answer["top"]) == 3


def test_requirements_are_the_installed_versions() -> None:
    pins = dict(line.split("==") for line in requirements())
    assert list(pins) == list(REQUIRED)
    assert pins["torch"] == torch.__version__.partition("+")[0]


@pytest.mark.parametrize("address", ["layout:synthetic:random", "tile:synthetic"])
def test_the_example_can_be_answered(address: str, linear_model: Callable[..., Path]) -> None:
    ranker = Ranker(linear_model(address))
    (record,) = example(ranker.spec)["dataframe_records"]
    given = read_graph(record["npz"], record.get("extra"), ranker.spec.features, Limits())
    assert sorted(ranker.rank(given.measured.graph, given.measured.configurations)) == [0, 1]
