"""Files of a folder, to compare folders, also after a kill."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from warnings import catch_warnings, simplefilter


def contents(root: Path) -> dict[str, bytes]:
    """Return the bytes of every file in a folder, hidden ones included, by its path."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def killed(work: Callable[[], object], function: str, call: int) -> bool:
    """Do work in a child that is killed at a call, from 0, of a function `module:name`; return True if it was."""
    with catch_warnings():
        simplefilter("ignore")  # of JAX, if an earlier test of this process has started it
        child = os.fork()
    if child == 0:
        module, name = function.split(":")
        owner, plain, calls = resolve_name(module), resolve_name(function), list[object]()

        def counted(*arguments: Any, **keywords: Any) -> Any:
            if len(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            calls.append(None)
            return plain(*arguments, **keywords)

        setattr(owner, name, counted)
        work()
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
