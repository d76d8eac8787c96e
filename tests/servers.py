"""Commands and servers of the environment that the tests run in."""

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
    """Return a command of the environment that the tests run in."""
    return [str(Path(sys.executable).with_name(name)), *map(str, arguments)]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextmanager
def running(health: str, environment: dict[str, str], log: Path, server: list[str]) -> Iterator[str]:
    """Run a server until the block ends, and return its address.

    Args:
        health: the path that responds once the server is ready.
        environment: of the server.
        log: file for its output.
        server: the command, without --host and --port.
    """
    port = free_port()
    started = [*server, "--host", "127.0.0.1", "--port", str(port)]
    with (
        log.open("w") as output,
        subprocess.Popen(started, env=environment, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            for _ in range(240):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=5).close()
                    break
                except OSError:
                    assert process.poll() is None, log.read_text()
                    time.sleep(0.5)
            else:
                pytest.fail(f"no server: {log.read_text()}")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
