"""Rankers as models of MLflow: records, limits, the scoring server, and packages free of pickles."""

import asyncio
import base64
import io
import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

import hlorank
from hlorank.config import Config
from hlorank.data.collection import Collection, graph_files, read_graph
from hlorank.files import SPEC, WEIGHTS, DataError, read_json, sha256_file, write_json
from hlorank.models.serialization import sealed
from hlorank.ranking.ranked import rank_program
from hlorank.ranking.ranker import Ranker
from hlorank.runs import pyfunc
from hlorank.runs.pyfunc import REQUIRED, log_package, make_request, rank_records, scoring_server
from hlorank.stages.train import train
from tests.graphs import matrix_product
from tests.runs.conftest import run_of

ROOT = Path(hlorank.__file__).parents[2]
LAYOUT, TILE = "layout:synthetic:random", "tile:synthetic"


@pytest.fixture(scope="module")
def ranker(linear_model: Callable[..., Path]) -> Ranker:
    return Ranker(linear_model())


@pytest.fixture(scope="module")
def graphs(tiny_collections: Path) -> list[Path]:
    return graph_files(tiny_collections / "raw", Collection.parse(LAYOUT), "valid")


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def refusal(ranker: Ranker, npz: object, **fields: object) -> str:
    """Return the message about a request with one graph."""
    with pytest.raises(DataError) as caught:
        rank_records(ranker, [{"npz": npz, **fields}])
    message = str(caught.value)
    assert "\n" not in message
    assert "/" not in message.partition(":")[0]  # no path of the server
    return message


@pytest.mark.parametrize("top", [1, 1000])
def test_predictions_are_rankings(ranker: Ranker, graphs: list[Path], top: int) -> None:
    ranked = rank_records(ranker, make_request(graphs)["dataframe_records"], top)
    assert [graph["graph"] for graph in ranked] == [path.stem for path in graphs]
    for graph, path in zip(ranked, graphs, strict=True):
        measured = read_graph(path, "layout")
        scores = ranker.score(measured.graph, measured.configurations)
        order = np.argsort(scores, kind="stable")[:top]
        best = zip(range(1, len(order) + 1), order.tolist(), scores[order].tolist(), strict=True)
        assert [(one["rank"], one["configuration"], one["score"]) for one in graph["top"]] == [*best]
        assert graph["configurations"] == len(scores)


def test_requests_of_files_and_of_tiles(
    linear_model: Callable[..., Path], tiny_collections: Path, ranker: Ranker, graphs: list[Path], tmp_path: Path
) -> None:
    path = tmp_path / "some.npz"
    with pytest.raises(FileNotFoundError):
        make_request([path])
    path.write_bytes(graphs[0].read_bytes())
    sent = {"graph": "some", "npz": encoded(path.read_bytes())}
    assert make_request([path])["dataframe_records"] == [sent]
    kernel = graph_files(tiny_collections / "raw", Collection.parse(TILE), "valid")[0]
    records = make_request([kernel])["dataframe_records"]
    (graph,) = rank_records(Ranker(linear_model(TILE)), records, 2)
    assert len(graph["top"]) == 2
    assert "config_feat: expected layout configurations" in refusal(ranker, **records[0])


def test_too_much_is_refused_before_it_is_decoded(ranker: Ranker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("base64.b64decode", lambda *_, **__: pytest.fail("a graph was decoded"))
    graphs, tops = "request: graphs", "params: top"
    for count, top, key in ((0, 1, graphs), (1001, 1, graphs), (3, 66_667, tops), (1, 0, tops)):
        with pytest.raises(DataError, match=f"^{key}: expected at "):
            rank_records(ranker, [{"npz": "AAAA"}] * count, top)


def test_programs_are_ranked_as_the_command_does_and_refused_where_they_do_not_compile(
    ranker: Ranker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "m.hlo.pb").write_bytes(matrix_product().SerializeToString())
    (record,) = make_request([path])["dataframe_records"]
    assert record == {"graph": "m.hlo", "program": encoded(path.read_bytes())}
    (ranked,) = rank_records(ranker, [record], 2)
    known = rank_program(path, ranker, "", 2, 256, 0)
    assert (ranked["graph"], ranked["configurations"], ranked["top"]) == ("m.hlo", len(known.scores), known.top)
    assert ranked["top"][1]["changes"]

    def refused(program: object) -> str:
        with pytest.raises(DataError, match=r"^mine: program") as caught:
            rank_records(ranker, [{"graph": "mine", "program": program}], 2)
        return str(caught.value).removeprefix("mine: program: ")

    assert refused(5).startswith("expected a program as text")
    assert "another text" in refused("no base64")
    assert refused("").endswith("an empty file")
    monkeypatch.setattr(pyfunc, "MAX_PROGRAM", len(path.read_bytes()) - 1)
    assert refused(record["program"]).startswith("expected at most ")
    monkeypatch.undo()
    features = ranker.spec.features.model_copy(update={"backend": "cpu"})
    other = SimpleNamespace(spec=SimpleNamespace(features=features))
    with pytest.raises(DataError, match=r"mine: program: file: .*entry_computation_id"):
        rank_records(other, [{"graph": "mine", "program": record["program"]}])  # type: ignore[arg-type] # its features do


def test_wrong_graphs_are_refused(ranker: Ranker, graphs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    data = graphs[0].read_bytes()
    with np.load(graphs[0], allow_pickle=False) as file:
        whole = dict(file)

    def packed(**changes: object) -> bytes:
        arrays: dict[str, Any] = {key: array for key, array in {**whole, **changes}.items() if array is not None}
        np.savez_compressed(made := io.BytesIO(), allow_pickle=True, **arrays)
        return made.getvalue()

    for value in (None, 5, "ä", "A*A="):
        assert refusal(ranker, value).startswith("npz: expected the bytes of an npz file in base64, found ")
    place = len(data) // 3  # 300 bytes are more than a header in the archive
    for broken, found in (
        (b"", "file: expected a complete npz (zip) file"),
        (data[: len(data) // 2], "file: expected a complete npz (zip) file"),
        (data[:place] + bytes(300) + data[place + 300 :], ""),
        (packed(node_feat=None), "keys: expected ['config_runtime', 'edge_index', "),
        (packed(node_feat=np.array([{"a": 1}], dtype=object)), "node_feat: expected numbers (objects are never"),
        (packed(node_feat=np.full((100_000, 700), 0, dtype=np.float32)), "arrays: expected at most 134,217,728 byte"),
    ):
        assert refusal(ranker, encoded(broken), graph="mine").startswith(f"mine: npz: {found}")
    distinct = len(read_graph(graphs[0], "layout").configurations.codebook)  # type: ignore[union-attr] # layouts
    monkeypatch.setattr(pyfunc, "MAX_LAYOUTS", distinct)
    rank_records(ranker, [{"npz": encoded(data)}])
    monkeypatch.setattr(pyfunc, "MAX_LAYOUTS", distinct - 1)
    assert "distinct" in refusal(ranker, encoded(data))


@pytest.mark.parametrize(
    ("key", "shape", "message"),
    [
        ("config_runtime", (200_001,), "at most 200,000 rows, found 200,001"),
        ("node_opcode", (100_001,), "at most 100,000 rows, found 100,001"),
        ("edge_index", (1_000_001, 2), "at most 1,000,000 rows, found 1,000,001"),
        ("node_config_feat", (99_999, 336, 1), "at most 33,554,432 configurable nodes of all configurations, found"),
    ],
)
def test_sizes_are_refused_by_their_header(
    key: str, shape: tuple[int, ...], message: str, ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("read", "chunks"):
        monkeypatch.setattr(f"hlorank.data.collection.NpzFile.{name}", lambda *_: pytest.fail("an array was read"))
    np.savez_compressed(file := io.BytesIO(), **{key: np.zeros(shape, dtype=np.int8)})  # type: ignore[arg-type] # of NumPy
    assert refusal(ranker, encoded(file.getvalue())).startswith(f"npz: {key}: expected {message}")


def test_data_frames(ranker: Ranker, graphs: list[Path]) -> None:
    model, records = pyfunc.RankingModel(ranker), make_request(graphs[:2])["dataframe_records"]
    del records[1]["graph"]  # a column that one row lacks
    wide = pd.DataFrame([records[0]] * 2000).join(pd.DataFrame({f"k{n}": ["x"] * 2000 for n in range(2000)}))
    ranked = model.predict(None, pd.DataFrame([*records[:1], records[1] | {"program": None}]), {"top": 3})
    assert [(graph["graph"], len(graph["top"])) for graph in ranked] == [(graphs[0].stem, 3), ("", 3)]
    assert ranked[:1] == model.predict(None, wide[:1], {"top": 3})
    for table in (wide, wide[["k0"]][:1]):
        with pytest.raises(mlflow.MlflowException) as caught:
            model.predict(None, table)
        assert caught.value.get_http_status_code() == 400


async def respond(app: Any, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Send a request to an ASGI application, and return the status and the value of its response."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    await app({"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}, receive, send)
    content, status = b"".join(message.get("body", b"") for message in sent[1:]), sent[0]["status"]
    return status, None if status == 504 else json.loads(content.strip() or "null")


def test_the_scoring_server(ranker: Ranker, graphs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests at once are ranked one after another, and a wrong one does not disturb the others."""
    monkeypatch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "")  # MLflow sets it, for good
    app, body = scoring_server(ranker), make_request(graphs, 3)
    expected = 200, {"predictions": rank_records(ranker, body["dataframe_records"], 3)}
    columns = ["npz", "graph"]
    rows = [[record[column] for column in columns] for record in body["dataframe_records"]]
    split = {"dataframe_split": {"columns": columns, "data": rows}, "params": body["params"]}
    wrong = {"dataframe_records": [{"npz": "?", "graph": "mine"}]}
    others = [{"dataframe_records": [given]} for given in ({"graph": "mine"}, {}, {"npz": 5})]
    active = list[int]()

    def ranked_alone(*arguments: Any) -> list[dict[str, Any]]:
        active.append(1)
        time.sleep(0.05)
        assert len(active) == 1, "two requests at once"
        active.pop()
        return rank_records(*arguments)

    monkeypatch.setattr(pyfunc, "rank_records", ranked_alone)

    async def requests() -> list[tuple[int, Any]]:
        posts = [respond(app, "POST", "/invocations", one) for one in (body, split, body, wrong, *others, 5)]
        return await asyncio.gather(*posts, respond(app, "GET", "/ping"))

    *ranked, refused, missing, empty, field, number, ping = asyncio.run(requests())
    assert ranked == [expected] * 3
    assert (refused[0], refused[1]["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert "mine: npz: expected the bytes of an npz file in base64, found " in refused[1]["message"]
    assert [status for status, _ in (missing, empty, field, number)] == [400] * 4
    assert ping == (200, None)


def test_a_request_that_takes_too_long(ranker: Ranker, graphs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets status 504, and so do those that wait for it, which are not ranked afterwards."""
    monkeypatch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "")
    monkeypatch.setenv("MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT", "1")
    app, body, ended, ranked = scoring_server(ranker), make_request(graphs, 3), threading.Event(), list[int]()

    def rank(*arguments: Any) -> list[dict[str, Any]]:
        ranked.append(1)
        ended.wait()
        return rank_records(*arguments)

    async def requests() -> list[int]:
        tasks = [asyncio.create_task(respond(app, "POST", "/invocations", body)) for _ in range(3)]
        try:
            for waited in islice(asyncio.as_completed(tasks, timeout=60), 2):
                await waited
        finally:
            ended.set()
        return [status for status, _ in (*[await task for task in tasks], await respond(app, "GET", "/ping"))]

    monkeypatch.setattr(pyfunc, "rank_records", rank)
    assert asyncio.run(requests()) == [504, 504, 504, 200]
    assert len(ranked) == 1


class Exploit:
    """Object whose unpickling makes a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self._folder,)


@pytest.mark.parametrize("name", [WEIGHTS, SPEC])
def test_a_package_with_a_damaged_model_is_refused(
    name: str, linear_model: Callable[..., Path], make_plugin: Callable[[str, str], None]
) -> None:
    """Before a plugin that it names is imported."""
    make_plugin("mine", "")
    folder = linear_model()
    made, model = folder / "made", pyfunc.RankingModel()
    path, content = folder / name, (folder / name).read_bytes()
    changed = content.replace(b'"plugins": {}', b'"plugins": {"mine": ""}') if name == SPEC else content[:-1] + b"x"
    for damaged in (changed, content[: len(content) // 2], pickle.dumps(Exploit(made))):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=name):
            model.load_context(SimpleNamespace(artifacts={"model": str(folder)}))
    if name == WEIGHTS:  # the pickle, with its digest in the specification
        write_json(folder / SPEC, sealed(read_json(folder / SPEC) | {"weights_sha256": sha256_file(path)}))
        with pytest.raises(DataError, match=name):
            model.load_context(SimpleNamespace(artifacts={"model": str(folder)}))
    assert not made.exists()
    assert "mine" not in sys.modules
    assert vars(model)["_ranker"] is None


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
_INDIRECT = {"jinja2", "matplotlib", "psutil", "requests", "scikit-learn", "sqlalchemy", "urllib3", "uvicorn"}


def isolated(package: Path, body: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Return the predictions of a package in a process that has no hlorank but the one in the package."""
    (tmp_path / "body.json").write_text(json.dumps(body))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [project["optional-dependencies"][name] for name in ("rank", "pipeline")]
    names = {re.split(r"[^\w.-]", line)[0] for line in chain(project["dependencies"], *extras)} - {project["name"]}
    assert set(REQUIRED) <= names
    refused = [_MODULES.get(name, name.replace("-", "_")) for name in names - set(REQUIRED) - _INDIRECT]
    assert {"dvc", "hydra", "lightning"} <= set(refused)
    command = [sys.executable, "-c", _ISOLATED, str(package), str(tmp_path / "body.json"), *refused]
    ended = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    printed: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return printed


def test_a_package(
    settings: Callable[..., Config], make_plugin: Callable[[str, str], None], graphs: list[Path], tmp_path: Path
) -> None:
    make_plugin("mine", "from torch_geometric.nn import GraphConv\nclass Conv(GraphConv):\n    pass")
    folder, layers = tmp_path / "gst", "[layer_norm,mine:Conv,gelu,residual]"
    train(settings(method="gst", model__block=layers, trainer__max_epochs=1), folder)
    run_id = run_of(folder)
    before = mlflow.get_run(run_id)
    log_package(folder, Ranker(folder).spec, run_id)
    after = mlflow.get_run(run_id)
    assert (after.info.end_time, after.info.status) == (before.info.end_time, "FINISHED")
    assert (after.data.params, after.data.metrics) == (before.data.params, before.data.metrics)
    assert mlflow.active_run() is None
    package, _ = mlflow.search_logged_models([after.info.experiment_id], output_format="list")
    assert (package.name, package.source_run_id) == ("ranker", run_id)

    (package,) = (path.parent for path in (tmp_path / "artifacts").rglob("MLmodel"))
    files = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    assert not {path.suffix for path in files} & {".pkl", ".pickle", ".pt", ".pth", ".joblib", ".pyc"}
    assert not [path for path in files if (package / path).read_bytes()[:1] == b"\x80"]  # the first byte of a pickle
    for name in (SPEC, WEIGHTS):
        assert sha256_file(package / "artifacts" / "model" / name) == sha256_file(folder / name)
    source = Path(hlorank.__file__).parent
    own = {path.relative_to(source.parent) for path in source.rglob("*.py")} | {Path("mine/__init__.py")}
    assert {path.relative_to("code") for path in files if path.parts[0] == "code" and path.suffix == ".py"} == own
    pinned = [f"{name}=={version(name).partition('+')[0]}" for name in REQUIRED]
    assert (package / "requirements.txt").read_text().splitlines() == pinned

    body = make_request(graphs, 3)
    printed = isolated(package, body, tmp_path)
    assert Path(printed["hlorank"]).is_relative_to(package / "code")
    assert printed["predictions"] == rank_records(Ranker(folder), body["dataframe_records"], 3)
