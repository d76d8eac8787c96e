"""`hlorank serve`: MLflow's scoring server for a folder, a run or a registered version."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hlorank.cli.main import main
from hlorank.data.collection import Collection, graph_files
from hlorank.runs.pyfunc import make_request
from tests.servers import command, running

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Model and address of the server, which is not started."""
    found: dict[str, Any] = {}

    def listen(_: object, sockets: list[socket.socket]) -> None:
        found["address"] = sockets[0].getsockname()

    monkeypatch.setattr("hlorank.runs.pyfunc.scoring_server", lambda ranker: found.update(method=ranker.spec.method))
    monkeypatch.setattr("uvicorn.Server.run", listen)
    return found


def test_the_first_line_names_the_model_and_the_address(model: Path, served: dict[str, Any], capsys: Capture) -> None:
    assert main(["serve", "--model", str(model), "--port", "0"]) == 0
    host, port = served["address"]
    assert (served["method"], host) == ("linear_ranking", "127.0.0.1")
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"hlorank serves {model} (linear_ranking of layout:synthetic:random) at http://{host}:{port}"


def test_addresses_that_cannot_be_used(served: dict[str, Any], capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        assert main(["serve", "--model", "nowhere", "--port", str(port)]) == 1  # before the model is loaded
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Address already in use" in error
    assert str(port) in error
    assert main(["serve", "--model", "nowhere", "--port", "0"]) == 2
    assert not served


_RUN = """
import json, sys, mlflow
mlflow.set_experiment("some")  # an experiment of the server; the artifacts of the copied experiments are elsewhere
with mlflow.start_run(tags={"data": "some"}) as run:
    mlflow.log_metric("evaluate/valid/kendall_tau", 0.5)
recorded = {"run_id": run.info.run_id, "tracking_uri": mlflow.get_tracking_uri()}
open(sys.argv[1], "w").write(json.dumps(recorded))
"""


def posted(address: str, body: bytes) -> tuple[int, Any]:
    """Return status and value of the response to a request of rankings."""
    request = urllib.request.Request(f"http://{address}/invocations", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.slow
def test_rank_register_and_serve_on_a_tracking_server(
    linear_model: Callable[..., Path], tracking_database: Path, tiny_collections: Path, tmp_path: Path
) -> None:
    shutil.copy(tracking_database, tmp_path / "server.db")
    store = ("--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--artifacts-destination", tmp_path / "store")
    folder, here, model = linear_model(data="some"), tmp_path / "here", "models:/layout.synthetic.random@champion"
    here.mkdir()
    valid = graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")
    graphs = [Path(shutil.copy(path, tmp_path / path.name)) for path in valid]
    server = command("mlflow", "server", *store, "--workers", 1)
    with running("/health", dict(os.environ), tmp_path / "log", server) as tracking:
        environment = {**os.environ, "MLFLOW_TRACKING_URI": f"http://{tracking}"}

        def output(name: str, *arguments: object) -> str:
            done = subprocess.run(
                command(name, *arguments), cwd=here, env=environment, stdout=subprocess.PIPE, check=True, text=True
            )
            return done.stdout

        output("python", "-c", _RUN, folder / "run.json")
        (registered,) = json.loads(output("hlorank", "register", folder, "--json"))
        assert (registered["version"], registered["champion"]) == (1, True)
        rank = ("rank", *graphs, "--top", 7, "--json", "--model")
        ranked = json.loads(output("hlorank", *rank, model))
        assert ranked == json.loads(output("hlorank", *rank, folder))
        assert not list(here.iterdir())  # no store was made
        keys = ("graph", "configurations", "top")
        expected = 200, {"predictions": [{key: graph[key] for key in keys} for graph in ranked]}
        for started in (
            command("hlorank", "serve", "--model", model),
            command("mlflow", "models", "serve", "-m", model, "--env-manager", "local"),
        ):
            with running("/ping", environment, tmp_path / "served.log", started) as address:
                assert posted(address, json.dumps(make_request(graphs, 7)).encode()) == expected
                for body in (b"{bad", b'{"dataframe_records": [{"npz": "?"}]}'):
                    status, error = posted(address, body)
                    assert status == 400
                assert "npz: expected the bytes of an npz file in base64" in error["message"]


@pytest.mark.slow
def test_a_signal_ends_the_server_after_its_last_response(model: Path, graphs: list[Path]) -> None:
    body = json.dumps(make_request(graphs * 20, 1)).encode()
    started = command("hlorank", "serve", "--model", model, "--port", 0)
    environment = {**os.environ, "MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT": "600"}
    with subprocess.Popen(
        started, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            host, _, port = process.stdout.readline().rpartition("http://")[2].strip().partition(":")
            with socket.create_connection((host, int(port)), 300) as client:
                headers = "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"
                client.sendall("\r\n".join(["POST /invocations HTTP/1.1", *headers, "", ""]).encode() + body)
                time.sleep(1)  # the request is read, and perhaps ranked
                process.send_signal(signal.SIGTERM)
                received = b"".join(iter(lambda: client.recv(2**16), b""))
            assert received.startswith(b"HTTP/1.1 200")
            assert received.count(b'"configurations"') == 40
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
