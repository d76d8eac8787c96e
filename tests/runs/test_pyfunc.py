"""Packages: complete except for their requirements, and free of pickles."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import hlorank
from hlorank.config import Config
from hlorank.data.collection import Collection, graph_files
from hlorank.files import SPEC, WEIGHTS, read_json, sha256_file
from hlorank.ranking.limits import Limits
from hlorank.ranking.ranker import Ranker
from hlorank.ranking.request import make_request, parse_request
from hlorank.ranking.result import predictions
from hlorank.runs.pyfunc import REQUIRED, example, log_package, requirements
from hlorank.training.trainer import train

# Warnings of MLflow about its own code: types of its classes, and an index that it compares with pandas 3.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning"),
    pytest.mark.filterwarnings("ignore:Operation with range is deprecated:DeprecationWarning"),
]

ROOT = Path(hlorank.__file__).parents[2]
MakeRun = Callable[..., Path]

# Hides every hlorank but that of the package, and the dependencies of the project that a package does not require.
_ISOLATED = """
import importlib.abc, importlib.util, json, pathlib, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in REFUSED:
            raise ModuleNotFoundError(name)

package, body, REFUSED = sys.argv[1], json.load(open(sys.argv[2])), set(sys.argv[3:])
sys.path = [entry for entry in sys.path if not pathlib.Path(entry, "hlorank").is_dir()]
sys.meta_path = [Refuse(), *(finder for finder in sys.meta_path if "editable" not in repr(finder).lower())]
assert importlib.util.find_spec("hlorank") is None
import mlflow, pandas
model = mlflow.pyfunc.load_model(package)
predictions = model.predict(pandas.DataFrame(body["dataframe_records"]), body["params"])
import hlorank
print(json.dumps({"predictions": predictions, "hlorank": hlorank.__file__}))
"""
_MODULES = {"hydra-core": "hydra", "scikit-learn": "sklearn"}
# MLflow and PyTorch Geometric require these.
_INDIRECT = {
    "fastapi",
    "jinja2",
    "markupsafe",
    "matplotlib",
    "requests",
    "scikit-learn",
    "sqlalchemy",
    "urllib3",
    "uvicorn",
}


def name_of(requirement: str) -> str:
    """Return the name of the distribution in a requirement such as numpy>=2,<3."""
    return re.split(r"[^\w.-]", requirement)[0]


def isolated(package: Path, body: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Return the predictions of a package in a process that has no hlorank but the one in the package."""
    (tmp_path / "body.json").write_text(json.dumps(body))
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names = set(map(name_of, pyproject["project"]["dependencies"]))
    refused = [_MODULES.get(name, name.replace("-", "_")) for name in names - set(REQUIRED) - _INDIRECT]
    assert {"dvc", "hydra", "lightning"} <= set(refused)
    command = [sys.executable, "-c", _ISOLATED, str(package), str(tmp_path / "body.json"), *refused]
    ended = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    printed: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return printed


def package_of(tmp_path: Path) -> Path:
    (model,) = tmp_path.rglob("MLmodel")
    return model.parent


def test_a_package(make_run: MakeRun, tiny_collections: Path, tmp_path: Path) -> None:
    folder = make_run({})
    run_id = read_json(folder / "run.json")["run_id"]
    log_package(folder, Ranker(folder).spec, run_id)
    package = package_of(tmp_path / "artifacts")
    files = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    assert not {path.suffix for path in files} & {".pkl", ".pickle", ".pt", ".pth", ".joblib", ".pyc"}
    assert not [path for path in files if (package / path).read_bytes()[:1] == b"\x80"]  # the first byte of a pickle
    for name in (SPEC, WEIGHTS):
        assert sha256_file(package / "artifacts" / "model" / name) == sha256_file(folder / name)
    source = Path(hlorank.__file__).parent
    own = {path.relative_to(source.parent) for path in source.rglob("*.py")}
    assert {path.relative_to("code") for path in files if path.parts[0] == "code" and path.suffix == ".py"} == own

    from mlflow.models import Model

    logged = Model.load(str(package))
    flavor = logged.flavors["python_function"]
    assert flavor["model_code_path"].endswith("model_code.py")
    assert "python_model" not in flavor
    signature = logged.signature
    assert [(column.name, column.required) for column in signature.inputs] == [
        ("npz", True),
        ("graph", False),
        ("extra", False),
    ]
    assert [column.name for column in signature.outputs] == ["graph", "configurations", "top"]
    assert [(param.name, param.default) for param in signature.params] == [("top", 10)]
    assert (package / "requirements.txt").read_text().splitlines() == requirements()

    graphs = graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")
    body = make_request(graphs, 3)
    printed = isolated(package, body, tmp_path)
    assert Path(printed["hlorank"]).is_relative_to(package / "code")
    assert printed["predictions"] == predictions(Ranker(folder), parse_request(body), Limits())


def test_a_package_does_not_change_its_run(make_run: MakeRun) -> None:
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
@pytest.mark.parametrize("layer", ["gatv2", "mine:Conv"])
def test_a_graph_network_in_a_package(
    layer: str,
    settings: Callable[..., Config],
    make_run: MakeRun,
    make_plugin: Callable[[str, str], None],
    tiny_collections: Path,
    tmp_path: Path,
) -> None:
    make_plugin("mine", "from torch_geometric.nn import GraphConv\nclass Conv(GraphConv):\n    pass")
    run_id = read_json(make_run({}) / "run.json")["run_id"]
    train(settings(method="gst", model__block=f"[layer_norm,{layer},gelu,residual]"), tmp_path / "gst")
    log_package(tmp_path / "gst", Ranker(tmp_path / "gst").spec, run_id)
    graphs = graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")
    (graph,) = isolated(package_of(tmp_path / "artifacts"), make_request(graphs[:1], 3), tmp_path)["predictions"]
    assert len(graph["top"]) == 3


def test_requirements_are_dependencies_with_their_versions() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(REQUIRED) <= set(map(name_of, pyproject["project"]["dependencies"]))
    for requirement, name in zip(requirements(), REQUIRED, strict=True):
        assert requirement == f"{name}=={version(name).partition('+')[0]}"


@pytest.mark.parametrize("address", ["layout:synthetic:random", "tile:synthetic"])
def test_the_example_is_a_valid_request(address: str, linear_model: Callable[..., Path]) -> None:
    ranker = Ranker(linear_model(address))
    (graph,) = predictions(ranker, parse_request(example(ranker.spec)), Limits())
    assert sorted(entry["configuration"] for entry in graph["top"]) == [0, 1]
