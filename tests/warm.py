"""Python processes that start at once, for tests that run many commands: forks of one that has imported everything.

A command of hlorank imports PyTorch, Lightning and MLflow for seconds before it works for as long on tiny data, and
each call of DVC its own packages.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

IMPORTED = (
    "dvc.cli.parser",
    "dvc.repo.reproduce",
    "hlorank.evaluation.evaluate",
    "hlorank.runs.search",
    "hlorank.training.fit",
    "hydra.main",
    "mlflow.store.tracking.sqlalchemy_store",
)
"""What takes the time, but no module that is a program, which runpy would find imported already."""
# Programs of the folder: modules of hlorank and scripts of the standard input run in a fork, all else as without this
# module. Servers are killed by their process group, and measurements need a process that has done nothing else.
_PYTHON = """#!/bin/sh
[ "$1 $2" = "-P -m" ] && shift
case "$1 $2" in
  "-m hlorank."* | "- ") exec {python} -IS {client} {address} "$@" ;;
esac
exec {python} "$@"
"""
_COMMAND = """#!/bin/sh
case $1 in
  autotune | collect | serve | queue) exec {program} "$@" ;;
esac
exec {python} -IS {client} {address} {program} "$@"
"""


@contextlib.contextmanager
def warm_programs(folder: Path, code: Path) -> Iterator[None]:
    """Fill a folder with links to the programs of this environment; `python`, `hlorank` and `dvc` start at once.

    Args:
        folder: the folder, to be found first in PATH, as the `bin` of an environment.
        code: the folder that has the package hlorank.
    """
    address, python = folder / "warm.socket", Path(sys.executable)
    folder.mkdir(parents=True)
    for program in Path(sys.prefix, "bin").iterdir():
        (folder / program.name).symlink_to(program)
    names = {"python": python, "client": __file__, "address": address}
    for name, text in (("python", _PYTHON), ("hlorank", _COMMAND), ("dvc", _COMMAND), ("activate", "")):
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(text.format(**names, program=python.with_name(name)), encoding="utf-8")
        (folder / name).chmod(0o755)
    with subprocess.Popen(
        [python, __file__, "--serve", address],
        env={**os.environ, "PYTHONPATH": str(code)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            server.kill()


def serve(address: str) -> None:
    """Run what is asked for in forks, with the arguments, folder, variables and open files of who asks."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        os.write(1, b"ready\n")
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                data, files, *_ = socket.recv_fds(connection, 2**20, 3)
                for number, file in enumerate(files):
                    os.dup2(file, number)
                    os.close(file)
                connection.sendall(bytes([_status(**json.loads(data)) % 256]))
                os._exit(0)
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _status(arguments: list[str], folder: str, variables: Mapping[str, str]) -> int:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    module = arguments[0] == "-m"
    added = [place for place in variables.get("PYTHONPATH", "").split(":") if place not in sys.path]
    sys.argv, sys.path[:1] = arguments[module:], [folder, *added]
    code: Any = 0
    try:
        if module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        elif arguments == ["-"]:
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # as Python does at the end of a program
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined] # as at the end of a program, but without freeing memory
    atexit._run_exitfuncs()
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    sys.stdout.flush()
    return int(code)


def ask(address: str, arguments: list[str]) -> int:
    """Have a module (`-m` and its name), a program, or `-`, the standard input, run; return its status modulo 256."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        asked = {"arguments": arguments, "folder": str(Path.cwd()), "variables": dict(os.environ)}
        socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
        return (connection.recv(1) or b"\1")[0]


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
