"""Processes of `hlorank serve` and MLflow's servers: their responses equal those of `hlorank rank`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from hlorank.data.collection import Collection, graph_files
from hlorank.ranking.request import make_request
from tests.servers import command, running

pytestmark = pytest.mark.slow
MakeRun = Callable[..., Path]
NAME = "layout.synthetic.random"
PATH, JSON = "/invocations", "application/json"


def response(address: str, method: str, path: str, data: Any = None, media: str | None = None) -> tuple[int, Any]:
    """Return status and value; data that is not bytes is sent in chunks, without its length."""
    connection = HTTPConnection(address, timeout=60)
    with closing(connection):
        connection.request(method, path, data, {} if media is None else {"Content-Type": media})
        received = connection.getresponse()
        assert received.headers["Content-Type"] == JSON
        return received.status, json.loads(received.read())


def test_servers(make_run: MakeRun, tiny_collections: Path, tmp_path: Path) -> None:
    import mlflow

    environment = {**os.environ, "MLFLOW_TRACKING_URI": mlflow.get_tracking_uri()}
    model = f"models:/{NAME}@champion"
    folder = make_run({"evaluate/valid/kendall_tau": 0.5})
    subprocess.run(command("hlorank", "register", folder), env=environment, check=True)
    valid = graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")
    graphs = [Path(shutil.copy(path, tmp_path / path.name)) for path in valid]
    request = json.dumps(make_request(graphs, 7)).encode()
    rank = command("hlorank", "rank", "--model", model, *graphs, "--top", 7, "--json")
    ranked = json.loads(subprocess.run(rank, env=environment, capture_output=True, check=True).stdout)
    keys = ("graph", "configurations", "top")
    expected = (200, {"predictions": [{key: graph[key] for key in keys} for graph in ranked]})

    own = command("hlorank", "serve", "--model", model, "--max-request-bytes", 300_000, "--max-requests", 1)
    with running("/ping", environment, tmp_path / "hlorank.log", own) as address:

        def is_refused(status: int, message: str, *call: Any) -> None:
            found, error = response(address, *call)
            assert (found, message in error["message"]) == (status, True), error
            assert error.keys() == {"error_code", "message"}

        assert response(address, "POST", PATH, request, JSON) == expected
        is_refused(400, "JSON", "POST", PATH, b"{bad", JSON)
        is_refused(415, "text/csv", "POST", PATH, b"{}", "text/csv")
        is_refused(413, "at most 300,000 bytes", "POST", PATH, b"x" * 300_001, JSON)
        is_refused(413, "at most 300,000 bytes", "POST", PATH, iter([b"x" * 200_000] * 2), JSON)
        is_refused(404, "Not Found", "GET", "/nothing")
        with closing(HTTPConnection(address, timeout=60)) as slow:
            slow.putrequest("POST", PATH)
            slow.putheader("Content-Type", JSON)
            slow.putheader("Content-Length", "2")
            slow.endheaders()
            is_refused(404, "Not Found", "GET", "/nothing")  # afterwards, the server waits for the body
            assert response(address, "POST", PATH, request, JSON) == expected
            slow.send(b"{}")
            assert slow.getresponse().status == 400
        assert response(address, "POST", PATH, request, JSON) == expected
    assert "Traceback" not in (tmp_path / "hlorank.log").read_text()

    of_mlflow = command("mlflow", "models", "serve", "-m", model, "--env-manager", "local")
    with running("/ping", environment, tmp_path / "mlflow.log", of_mlflow) as address:
        assert response(address, "POST", PATH, request, JSON) == expected
        status, error = response(address, "POST", PATH, b'{"dataframe_records": [{"npz": "?"}]}', JSON)
        assert (status, error["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
        assert "npz: expected the bytes of an npz file in base64" in error["message"]

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        own += ["--port", str(taken.getsockname()[1])]
        ended = subprocess.run(own, env=environment, capture_output=True, check=False)
        assert ended.returncode == 1
        assert b"Address already in use" in ended.stderr


_RUN = """
import json, sys, mlflow
mlflow.set_experiment("some")  # an experiment of the server; the artifacts of the copied experiments are elsewhere
with mlflow.start_run(tags={"data": "some"}) as run:
    mlflow.log_metric("evaluate/valid/kendall_tau", 0.5)
recorded = {"run_id": run.info.run_id, "tracking_uri": mlflow.get_tracking_uri()}
open(sys.argv[1], "w").write(json.dumps(recorded))
"""


def test_a_tracking_server_that_the_environment_names(
    linear_model: Callable[..., Path], tracking_database: Path, tiny_collections: Path, tmp_path: Path
) -> None:
    shutil.copy(tracking_database, tmp_path / "server.db")
    store = ("--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--artifacts-destination", tmp_path / "store")
    folder, here = linear_model(data="some"), tmp_path / "here"
    here.mkdir()
    graph = graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")[0]
    server = command("mlflow", "server", *store, "--workers", 1)
    with running("/health", dict(os.environ), tmp_path / "log", server) as address:
        environment = {**os.environ, "MLFLOW_TRACKING_URI": f"http://{address}"}

        def output(name: str, *arguments: object) -> str:
            started = command(name, *arguments)
            done = subprocess.run(started, cwd=here, env=environment, stdout=subprocess.PIPE, check=True, text=True)
            return done.stdout

        output("python", "-c", _RUN, folder / "run.json")
        (registered,) = json.loads(output("hlorank", "register", folder, "--json"))
        assert (registered["version"], registered["champion"]) == (1, True)
        rank = ("rank", graph, "--json", "--model")
        assert output("hlorank", *rank, f"models:/{NAME}@champion") == output("hlorank", *rank, folder)
    assert not list(here.iterdir())  # no store was made
