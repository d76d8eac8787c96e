"""`hlorank serve`: MLflow's scoring server for a folder, a run or a registered version."""

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import mlflow
import pytest

from hlorank.files import write_json
from hlorank.runs.pyfunc import make_request
from tests.cli.conftest import Command
from tests.servers import command, free_port, running, wait_for


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Model and address of the server, which is not started."""
    found: dict[str, Any] = {}

    def listen(_: object, sockets: list[socket.socket]) -> None:
        found["address"] = sockets[0].getsockname()

    monkeypatch.setattr("hlorank.runs.pyfunc.scoring_server", lambda ranker: found.update(method=ranker.spec.method))
    monkeypatch.setattr("uvicorn.Server.run", listen)
    return found


def test_the_first_line_names_the_model_and_the_address(model: Path, served: dict[str, Any], call: Command) -> None:
    shown, _ = call("serve", "--model", model, "--port", "0")
    host, port = served["address"]
    assert (served["method"], host) == ("linear_ranking", "127.0.0.1")
    assert shown == f"hlorank serves {model} (linear_ranking of layout:synthetic:random) at http://{host}:{port}\n"


def test_unusable_settings(model: Path, served: dict[str, Any], call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        error = call.error("serve", "--model", "nowhere", "--port", port, status=1)  # before the model is loaded
    assert "Address already in use" in error
    assert port in error
    call.error("serve", "--model", "nowhere", "--port", "0")
    monkeypatch.setenv(variable := "MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT", "1.5")
    assert variable in call.error("serve", "--model", model, "--port", "0")
    assert not served


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
    linear_model: Callable[..., Path],
    tracking_database: Path,
    tracking_environment: None,
    graphs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Command,
) -> None:
    database = shutil.copy(tracking_database, tmp_path / "server.db")
    store = ("--backend-store-uri", f"sqlite:///{database}", "--artifacts-destination", tmp_path / "store")
    folder, here, model = linear_model(data="some"), tmp_path / "here", "models:/layout.synthetic.random@champion"
    here.mkdir()
    monkeypatch.chdir(here)
    server = command("mlflow", "server", *store, "--workers", 1)
    with running("/health", dict(os.environ), tmp_path / "log", server) as tracking:
        uri = f"http://{tracking}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment("some")  # of the server; the artifacts of the copied experiments are elsewhere
        with mlflow.start_run(tags={"data": "some"}) as run:
            mlflow.log_metric("evaluate/valid/kendall_tau", 0.5)
        write_json(folder / "run.json", {"run_id": run.info.run_id, "tracking_uri": uri})
        (registered,) = call.json("register", folder)
        assert (registered["version"], registered["champion"]) == (1, True)
        ranked, same = (call.json("rank", *graphs, "--top", 7, "--model", given) for given in (model, folder))
        assert ranked == same
        assert not list(here.iterdir())  # no store was made
        keys = ("graph", "configurations", "top")
        expected = 200, {"predictions": [{key: graph[key] for key in keys} for graph in ranked]}
        for started in (
            command("hlorank", "serve", "--model", model),
            command("mlflow", "models", "serve", "-m", model, "--env-manager", "local"),
        ):
            with running("/ping", dict(os.environ), tmp_path / "served.log", started) as address:
                assert posted(address, json.dumps(make_request(graphs, 7)).encode()) == expected
                for body in (b"{bad", b'{"dataframe_records": [{"npz": "?"}]}'):
                    status, error = posted(address, body)
                    assert status == 400
                assert "npz: expected the bytes of an npz file in base64" in error["message"]


@contextmanager
def serving(model: Path, seconds: int = 600) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `hlorank serve`, whose output nobody reads after the first line; yield process and address."""
    started = command("hlorank", "serve", "--model", model, "--port", 0)
    environment = {**os.environ, "MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT": str(seconds)}
    with subprocess.Popen(
        started, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().rpartition("http://")[2].strip()
        finally:
            process.kill()


def connected(address: str) -> socket.socket:
    """Return a connection to a server."""
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)), 300)


def headers(body: str) -> bytes:
    """Return the headers of a request of rankings, whose body is described by one of them."""
    lines = "POST /invocations HTTP/1.1", "Host: x", "Content-Type: application/json", body, "", ""
    return "\r\n".join(lines).encode()


def sent(address: str, *parts: bytes) -> bytes:
    """Return the first line of the response to the parts of a request; none where the client leaves after them."""
    with connected(address) as client:
        for part in parts:
            client.sendall(part)
        return client.recv(2**12).partition(b"\r\n")[0] if part else b""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_proxy_of_the_page_refuses_what_the_server_takes(model: Path, graphs: list[Path], tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/serve.md").read_text(encoding="utf-8")
    body, proxy = json.dumps(make_request(graphs)).encode(), f"127.0.0.1:{free_port()}"
    length = headers(f"Content-Length: {len(body)}")
    with serving(model) as (_, address), ExitStack() as stack:
        block = page.partition("```nginx\n")[2].partition("```")[0].replace("443 ssl", proxy)
        paths = "".join(f"{of}_temp_path {tmp_path};" for of in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        text = f"user root; events {{}} http {{ access_log off; {paths} {block.replace('127.0.0.1:5002', address)} }}"
        (tmp_path / "nginx.conf").write_text(text)
        options = "-p", tmp_path, "-c", "nginx.conf", "-g", f"daemon off; error_log {tmp_path}/log; pid {tmp_path}/pid;"
        stack.callback(stack.enter_context(subprocess.Popen(["nginx", *map(str, options)])).terminate)
        wait_for(proxy)
        assert posted(proxy, body)[0] == 200
        assert b" 413 " in sent(proxy, headers(f"Content-Length: {2**27}"), b"a")
        with suppress(OSError):  # it may close the connection before all is sent
            chunk = b"%x\r\n%b\r\n" % (2**20, bytes(2**20))
            assert b" 413 " in sent(proxy, headers("Transfer-Encoding: chunked"), *[chunk] * 80)
        assert sent(proxy, length, body[:10]) == b""  # closed after client_body_timeout
        assert sent(proxy, length[:20]) in (b"", b"HTTP/1.1 408 Request Time-out")
        for _ in range(8):
            stack.enter_context(connected(proxy)).sendall(length + body[:10])
        assert b" 503 " in sent(proxy, length, body)


@pytest.mark.slow
def test_a_client_that_reads_no_response_does_not_keep_the_server_from_its_end(model: Path, graphs: list[Path]) -> None:
    body = json.dumps(make_request(graphs * 20, 1000)).encode()
    with serving(model, seconds=5) as (process, address), socket.socket() as client:
        # The response is larger than what the system keeps of it.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        host, _, port = address.partition(":")
        client.connect((host, int(port)))
        client.sendall(headers(f"Content-Length: {len(body)}") + body)
        assert client.recv(12) == b"HTTP/1.1 200"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


@pytest.mark.slow
def test_a_signal_ends_the_server_after_its_last_response(model: Path, graphs: list[Path]) -> None:
    """Wrong requests before, and a client that leaves, have put nothing into the output."""
    body = json.dumps(make_request(graphs * 20, 1)).encode()
    with serving(model) as (process, address), ExitStack() as stack:
        sent(address, headers("Content-Length: 10"), b"{", b"")
        assert sent(address, b"GET / \r\n\r\n").startswith(b"HTTP/1.1 400")
        clients = [stack.enter_context(connected(address)) for _ in range(16)]
        for client in clients:
            client.sendall(headers(f"Content-Length: {len(body)}") + body)
        assert clients[0].recv(1, socket.MSG_PEEK)  # one is ranked at a time
        process.send_signal(signal.SIGTERM)
        for client in clients:
            received = client.makefile("rb").read()
            assert received.startswith(b"HTTP/1.1 200")
            assert received.count(b'"configurations"') == 40
        assert process.communicate() == ("", "")
