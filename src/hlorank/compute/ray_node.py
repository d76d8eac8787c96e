"""Calls in a worker process of a Ray cluster's node, after checks that the node can do the work."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hlorank.compute.messages import answer, refusal
from hlorank.config import ConfigError, import_plugin
from hlorank.config.plugins import imported_plugins
from hlorank.files import SHARED_VARIABLE, code_digest

_VISIBLE_SECONDS = 10.0  # within which a network file system shows a new file


def surroundings(marks: Iterable[Path], inputs: Iterable[Path]) -> str:
    """Return, as JSON, what a node must have in common with this process, besides the current folder.

    Args:
        marks: new files, one in each folder that tasks write to.
        inputs: folders and files that tasks read.
    """
    plugins = imported_plugins()
    visible = [*((mark.parent, mark) for mark in marks), *((path, path) for path in inputs)]
    return json.dumps(
        {
            "folder": str(Path.cwd()),
            "visible": {os.fspath(shown.absolute()): os.fspath(path.absolute()) for shown, path in visible},
            "plugins": plugins,
            "shared": os.environ.get(SHARED_VARIABLE),
            "version": version("hlorank"),
            "code": code_digest("hlorank", *plugins),
        }
    )


def call(expected: str, work: bytes) -> bytes:
    """Make a call on this node, as `messages.answer`; a ConfigError is the answer of a node that cannot work.

    Args:
        expected: the result of `surroundings` in the process that has the work.
        work: the call.
    """
    try:
        _begin(expected)
    except ConfigError as error:
        return refusal(str(error))
    return answer(work)


@cache  # once in each process
def _begin(expected: str) -> None:
    """Make this process like that which has the work.

    Raises:
        ConfigError: the node has another version of hlorank, or does not see a folder or a file.
    """
    wanted: dict[str, Any] = json.loads(expected)
    node = f"compute=ray: node {platform.node()}"
    for name in wanted["plugins"]:
        import_plugin(name)
    if version("hlorank") != wanted["version"] or code_digest("hlorank", *wanted["plugins"]) != wanted["code"]:
        own, other = version("hlorank"), wanted["version"]
        differs = f"{own}, and this process {other}" if own != other else f"{own} with other code than this process"
        raise ConfigError(f"{node} has hlorank {differs}; install the same on every node, and restart the cluster")
    remedy = "it must be on a file system that all nodes share, at the same path"
    try:
        os.chdir(wanted["folder"])
    except OSError as error:
        raise ConfigError(f"{node} cannot open the folder {wanted['folder']} ({error.strerror}); {remedy}") from None
    for path, inside in wanted["visible"].items():
        if not _appears(Path(inside)):
            raise ConfigError(f"{node} has another {path} than this process, or none; {remedy}")
    if wanted["shared"] is not None:
        os.environ[SHARED_VARIABLE] = wanted["shared"]


def _appears(path: Path) -> bool:
    """Return whether a file is visible here within a few seconds."""
    deadline = time.monotonic() + _VISIBLE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True
