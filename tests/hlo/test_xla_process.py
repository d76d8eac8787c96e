"""Jobs of XLA in an interpreter of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.hlo import xla_process
from hlorank.hlo.xla_process import GROUP, XlaError, in_process

JOBS = """
import os, sys, time

def echo(data, *arguments):
    print("noise")
    return data + "".join(arguments).encode()

def refuse(data):
    raise ValueError("line 1\\nline 2")

def leave(data):
    sys.exit(0)

def abort(data):
    os.abort()

def quit(data):
    os._exit(7)

def sleep(data):
    time.sleep(60)

def jax(data):
    return str("jax" in sys.modules).encode()
"""


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points of a package of its own, and jaxlib."""
    (tmp_path / "own_jobs.py").write_text(JOBS)
    info = tmp_path / "own-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    names = ("echo", "refuse", "leave", "abort", "quit", "sleep", "jax", "lost")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{name} = own_jobs:{name}\n" for name in names))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(xla_process, "has_jaxlib", lambda: True)


def test_a_job_has_its_data_and_arguments_and_what_it_prints_is_no_result() -> None:
    assert in_process("echo", b"\x00\xff", " one", " two") == b"\x00\xff one two"
    assert in_process("jax", b"") == b"False"


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ("refuse", "line 1\nline 2"),
        ("leave", "0"),
        ("abort", "SIGABRT"),
        ("quit", "status 7"),
        ("sleep", "more than 3 seconds"),
        ("lost", "lost"),
        ("unknown", "no entry point unknown"),
    ],
)
def test_a_job_that_fails_has_a_reason(work: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_process, "MAX_SECONDS", 3 if work == "sleep" else 60)
    with pytest.raises(XlaError) as raised:
        in_process(work, b"")
    assert reason in str(raised.value)


def test_without_jaxlib_the_remedy_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_process, "has_jaxlib", lambda: False)
    with pytest.raises(XlaError, match="pip install"):
        in_process("echo", b"")
