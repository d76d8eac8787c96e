"""The real server answers as `hlorank rank` does, refuses what is wrong with one line of JSON, and keeps running."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.data.collection import Collection, graph_files
from hlorank.files import WEIGHTS
from hlorank.serving.request import request
from tests.servers import command, running

pytestmark = pytest.mark.slow
MakeRun = Callable[..., Path]
NAME = "layout.synthetic.random"
PATH, JSON = "/invocations", "application/json"


def asked(address: str, method: str, path: str, data: Any = None, media: str | None = None) -> tuple[int, Any]:
    """Status and answer; data that is not bytes goes in chunks, without its length."""
    connection = HTTPConnection(address, timeout=60)
    with closing(connection):
        connection.request(method, path, data, {} if media is None else {"Content-Type": media})
        answer = connection.getresponse()
        assert answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(answer.read())


def body(**record: Any) -> bytes:
    return json.dumps({"dataframe_records": [record]}).encode()


def packed(path: Path, **changes: Any) -> str:
    """An npz file of other arrays, in base64."""
    with np.load(path) as file:
        arrays = {key: value for key, value in {**file, **changes}.items() if value is not None}
    other = path.with_name("changed.npz")
    np.savez_compressed(other, allow_pickle=True, **arrays)
    return base64.b64encode(other.read_bytes()).decode()


def test_the_server(make_run: MakeRun, tiny_collections: Path, tmp_path: Path) -> None:
    import mlflow

    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": mlflow.get_tracking_uri(),
        "HLORANK_MAX_REQUEST_BYTES": "300000",
        "HLORANK_MAX_REQUESTS": "1",
    }
    model = f"models:/{NAME}@champion"
    folder = make_run({"evaluate/valid/kendall_tau": 0.5})
    subprocess.run(command("hlorank", "register", folder), env=environment, check=True)
    valid = graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")
    graphs = [Path(shutil.copy(path, tmp_path / path.name)) for path in valid]
    tiles = graph_files(tiny_collections / "raw", Collection.parse("tile:synthetic"), "valid")[0]
    tile = base64.b64encode(tiles.read_bytes()).decode()
    ranked = json.loads(
        subprocess.run(
            command("hlorank", "rank", "--model", model, *graphs, "--top", 7, "--json"),
            env=environment, capture_output=True, check=True,
        ).stdout
    )  # fmt: skip

    arguments = ("models", "serve", "-m", model, "--env-manager", "local")
    with running("/ping", environment, tmp_path / "server.log", *arguments) as address:

        def is_right() -> None:
            status, answer = asked(address, "POST", PATH, json.dumps(request(graphs, 7)).encode(), JSON)
            assert status == 200
            keys = ("graph", "configurations", "top")
            assert answer["predictions"] == [{key: one[key] for key in keys} for one in ranked]

        def is_refused(status: int, message: str, *call: Any) -> None:
            found, answer = asked(address, *call)
            assert (found, message in answer["message"]) == (status, True), answer
            assert answer.keys() == {"error_code", "message"}
            assert "\n" not in answer["message"]

        is_right()
        pickled, missing = packed(graphs[0], node_feat=np.array([{}])), packed(graphs[0], edge_index=None)
        for message, data in (
            ("valid JSON", b"{bad"),
            ("valid JSON", b"\xff\xfe"),
            ("a list", b"[]"),
            ("exactly one of the input fields", b"{}"),
            ("nested too deeply", b"[" * 100_000),
            ("missing inputs ['npz']", body(graph="mine")),
            ("in base64, found int", body(npz=5)),
            ("in base64, found", body(npz="?")),
            ("a complete npz (zip) file", body(npz="AAAA")),
            ("mine: npz: config_feat: expected layout configurations", body(npz=tile, graph="mine")),
            ("expected numbers (objects are never unpickled)", body(npz=pickled)),
            ("keys: expected", body(npz=missing)),
            ("top: expected at least 1, found 0", json.dumps(request(graphs, 0)).encode()),
            ("top: expected at most 200,000 configurations", json.dumps(request(graphs, 200_001)).encode()),
            ("'top'", json.dumps(request(graphs) | {"params": {"top": "all"}}).encode()),
        ):
            is_refused(400, message, "POST", PATH, data, JSON)
        for media, message in (
            (None, "found none"),
            ("text/csv", "found text/csv"),
            (f"{JSON}; charset=latin-1", "only supports UTF-8"),
        ):
            is_refused(415, message, "POST", PATH, b"{}", media)
        is_refused(413, "at most 300,000 bytes", "POST", PATH, b"x" * 300_001, JSON)
        is_refused(413, "at most 300,000 bytes", "POST", PATH, iter([b"x" * 200_000] * 2), JSON)
        is_refused(404, "Not Found", "GET", "/nothing")
        is_refused(405, "Method Not Allowed", "GET", PATH)
        with closing(HTTPConnection(address, timeout=60)) as slow:
            slow.putrequest("POST", PATH)
            slow.putheader("Content-Type", JSON)
            slow.putheader("Content-Length", "2")
            slow.endheaders()
            is_refused(404, "Not Found", "GET", "/nothing")  # by then, the server waits for the body
            is_refused(503, "at most 1 requests at a time", "POST", PATH, b"{}", JSON)
            slow.send(b"{}")
            assert slow.getresponse().status == 400
        is_right()

    (weights,) = (tmp_path / "artifacts").rglob(f"artifacts/model/{WEIGHTS}")
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    ended = subprocess.run(
        command("mlflow", *arguments, "--port", 1), env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode != 0
    assert f"{WEIGHTS}: sha256: expected" in ended.stdout + ended.stderr


_RUN = """
import json, sys, mlflow
mlflow.set_experiment("some")  # of the server; that of the copied database has its artifacts elsewhere
with mlflow.start_run(tags={"data": "some"}) as run:
    mlflow.log_metric("evaluate/valid/kendall_tau", 0.5)
recorded = {"run_id": run.info.run_id, "tracking_uri": mlflow.get_tracking_uri()}
open(sys.argv[1], "w").write(json.dumps(recorded))
"""


def test_a_tracking_server_by_the_environment_alone(
    linear_model: Callable[..., Path], tracking_database: Path, tiny_collections: Path, tmp_path: Path
) -> None:
    shutil.copy(tracking_database, tmp_path / "server.db")
    store = ("--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--artifacts-destination", tmp_path / "store")
    folder, here = linear_model(data="some"), tmp_path / "here"
    here.mkdir()
    graph = graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")[0]
    with running("/health", dict(os.environ), tmp_path / "log", "server", *store, "--workers", 1) as address:
        environment = {**os.environ, "MLFLOW_TRACKING_URI": f"http://{address}"}

        def told(*arguments: object) -> str:
            asked = command(*map(str, arguments))
            return subprocess.run(
                asked, cwd=here, env=environment, stdout=subprocess.PIPE, check=True, text=True
            ).stdout

        told("python", "-c", _RUN, folder / "run.json")
        (registered,) = json.loads(told("hlorank", "register", folder, "--json"))
        assert (registered["version"], registered["champion"]) == (1, True)
        rank = ("hlorank", "rank", graph, "--json", "--model")
        assert told(*rank, f"models:/{NAME}@champion") == told(*rank, folder)
    assert not list(here.iterdir())  # no store of its own
