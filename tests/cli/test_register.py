"""`hlorank register`: its output and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hlorank.cli.main import main
from hlorank.files import DataError
from hlorank.runs.registry import Registration

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Calls of `register`, with model and `move`; the model `missing` does not exist."""
    calls: list[tuple[str, bool]] = []

    def register(reference: str, move: bool) -> Registration:
        if reference == "missing":
            raise DataError("model", "a model folder", "no such folder", file=reference)
        calls.append((reference, move))
        number = len(calls)
        taus = {"evaluate": 0.5, "training": 0.25} if number == 1 else {}
        name = "layout.cpu.random"
        return Registration(name, number, number == 1, "f" * 32, "gst", "3", "data1", taus, number == 1, "some reason")

    monkeypatch.setattr("hlorank.runs.registry.register", register)
    return calls


def test_the_table(registered: list[Any], capsys: Capture) -> None:
    assert main(["register", "one", "two"]) == 0
    assert registered == [("one", False), ("two", False)]
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1:2] + lines[3:] == [
        "model version champion method seed (evaluate) (training) data",
        "layout.cpu.random 1 yes gst 3 0.5000 0.2500 data1",
        "some reason",
        "layout.cpu.random 2 no gst 3 data1",
        "registered before; some reason",
    ]


def test_a_champion_that_a_later_model_replaces_is_none_in_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def register(reference: str, _: bool) -> Registration:
        return Registration("m", int(reference), True, "f" * 32, "gst", "3", "d", {}, champion=True, reason="better")

    monkeypatch.setattr("hlorank.runs.registry.register", register)
    assert main(["register", "1", "2", "--json"]) == 0
    assert [one["champion"] for one in json.loads(capsys.readouterr().out)] == [False, True]


def test_json_and_errors(registered: list[Any], capsys: Capture, tracking_environment: Callable[..., Any]) -> None:
    for arguments, named in ((["one", "two", "--champion"], "--champion: "), (["missing"], "missing: model: ")):
        assert main(["register", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {named}")
        assert not registered
    assert main(["register", "one", "--champion", "--json"]) == 0
    assert registered == [("one", True)]
    (printed,) = json.loads(capsys.readouterr().out)
    expected = {"model": "layout.cpu.random", "version": 1, "new": True, "champion": True}
    assert {key: printed[key] for key in expected} == expected
    assert printed["valid_tau"] == {"evaluate": 0.5, "training": 0.25}
