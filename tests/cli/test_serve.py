"""`hlorank serve`: options of the application and its server."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hlorank.cli.main import main
from hlorank.ranking.limits import Limits
from tests.servers import free_port

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of the application and the server, which are not made."""
    found: dict[str, Any] = {}

    def make_app(ranker: Any, limits: Limits, timeout: float) -> str:
        found.update(method=ranker.spec.method, limits=limits, timeout=timeout)
        return "app"

    def listen(sockets: list[socket.socket]) -> None:
        (bound,) = sockets
        found["address"] = bound.getsockname()

    monkeypatch.setattr("hlorank.serving.app.make_app", make_app)
    monkeypatch.setattr("uvicorn.Config", lambda app, **options: found.update(app=app, **options))
    monkeypatch.setattr("uvicorn.Server", lambda _: SimpleNamespace(run=listen))
    return found


def test_defaults(model: Path, served: dict[str, Any], capsys: Capture) -> None:
    assert main(["serve", "--model", str(model)]) == 0
    about = {"app": "app", "method": "linear_ranking", "limits": Limits(), "timeout": 60}
    expected = about | {"address": ("127.0.0.1", 5002)}
    assert {name: served[name] for name in expected} == expected
    (line,) = capsys.readouterr().out.splitlines()
    for part in (str(model), "layout:synthetic:random", "http://127.0.0.1:5002"):
        assert part in line


def test_any_free_port(model: Path, served: dict[str, Any], capsys: Capture) -> None:
    assert main(["serve", "--model", str(model), "--port", "0"]) == 0
    host, port = served["address"]
    assert port > 0
    assert capsys.readouterr().out.endswith(f"http://{host}:{port}\n")


def test_options(model: Path, served: dict[str, Any]) -> None:
    names, port = list(Limits.model_fields), free_port()
    limits = [f"--max-{name.replace('_', '-')}={number}" for number, name in enumerate(names, start=1)]
    assert main(["serve", "--model", str(model), "--host", "0.0.0.0", f"--port={port}", "--timeout=9", *limits]) == 0
    assert served["limits"].model_dump() == {name: number for number, name in enumerate(names, start=1)}
    assert (served["address"], served["timeout"]) == (("0.0.0.0", port), 9)


@pytest.mark.parametrize("option", ["--max-nodes", "--timeout", "--memory"])
def test_numbers_out_of_range(option: str, model: Path, served: dict[str, Any], capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--model", str(model), option, "0"])
    assert f"{option}: expected at least 1, found 0" in capsys.readouterr().err
    assert not served


def test_addresses_that_cannot_be_used(model: Path, served: dict[str, Any], capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--model", str(model), "--port", "99999"])
    assert "--port: expected at most 65535, found 99999" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        assert main(["serve", "--model", str(model), "--port", str(port)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: 127.0.0.1:{port}: ")
    assert error.count("\n") == 1
    assert not served


def test_models_that_cannot_be_served(
    linear_model: Callable[..., Path], served: dict[str, Any], capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["serve", "--model", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("error: nowhere: model: expected a model folder")
    assert not served
    assert main(["serve", "--model", str(linear_model(steps=0))]) == 0
    assert "never trained" in caplog.text
