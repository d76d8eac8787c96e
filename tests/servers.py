"""Programs of the environment that the tests run in, MLflow's servers among them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def command(name: str, *arguments: object) -> list[str]:
    """A command of the environment that the tests run in."""
    return [str(Path(sys.executable).with_name(name)), *map(str, arguments)]


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextmanager
def running(health: str, environment: dict[str, str], log: Path, *arguments: object) -> Iterator[str]:
    """The address of a server of MLflow that answers to a question of its health."""
    port = free_port()
    started = command("mlflow", *arguments, "--host", "127.0.0.1", "--port", port)
    with (
        log.open("w") as output,
        subprocess.Popen(started, env=environment, stdout=output, stderr=subprocess.STDOUT) as server,
    ):
        try:
            for _ in range(240):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=5).close()
                    break
                except OSError:
                    assert server.poll() is None, log.read_text()
                    time.sleep(0.5)
            else:
                pytest.fail(f"no server: {log.read_text()}")
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
