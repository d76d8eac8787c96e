"""Commands and servers of the environment that the tests run in, and PostgreSQL of the system."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


def wait_for(address: str) -> None:
    """Wait until a server listens."""
    host, _, port = address.partition(":")
    for _ in range(100):
        with suppress(OSError), socket.create_connection((host, int(port))):
            return
        time.sleep(0.1)
    pytest.fail(f"nothing listens on {address}")


@contextmanager
def running(health: str, environment: dict[str, str], log: Path, server: list[str]) -> Iterator[str]:
    """Run a server until the block ends, and return its address, once the path `health` responds."""
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


def postgresql_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs; None where it is not installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    if (config := shutil.which("pg_config")) is not None:
        found = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=True).stdout.strip()
        folders.insert(0, Path(found))
    return next((folder for folder in folders if (folder / "initdb").is_file()), None)


@contextmanager
def postgresql() -> Iterator[dict[str, str]]:
    """Yield libpq's variables of a server, as its superuser, until the block ends; skip where PostgreSQL is missing."""
    folder = postgresql_programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed: no pg_config, and no /usr/lib/postgresql/*/bin")
    # In a folder of its own: the server refuses to run as root, and another user cannot enter pytest's folders.
    with tempfile.TemporaryDirectory(prefix="hlorank-pg-", ignore_cleanup_errors=True) as place:
        as_user: list[str] = []
        if os.geteuid() == 0:
            names = {user.pw_name for user in pwd.getpwall()}
            user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            os.chown(place, user.pw_uid, user.pw_gid)
            as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        password, data, port = Path(place, "password"), Path(place, "data"), str(free_port())
        password.write_text("superuser\n")
        password.chmod(0o644)

        def call(program: str, *arguments: str) -> None:
            subprocess.run(
                [*as_user, str(folder / program), "-D", str(data), *arguments],
                cwd=place,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
                stdout=subprocess.DEVNULL,
                check=True,
            )

        call("initdb", "--username=postgres", f"--pwfile={password}", "--auth=scram-sha-256", "--no-sync")
        settings = f"-F -p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={place}"
        call("pg_ctl", "start", "-w", "-l", f"{place}/log", "-o", settings)
        try:
            yield {"PGHOST": "127.0.0.1", "PGPORT": port, "PGUSER": "postgres", "PGPASSWORD": "superuser"}
        finally:
            call("pg_ctl", "stop", "-w", "-m", "immediate")
