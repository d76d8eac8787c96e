"""A child process for each program, and the watch over it: what hangs or dies costs one configuration."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from hlorank_collect.task import Progress, Task

CHILD = (sys.executable, "-m", "hlorank_collect.layouts.measure_program")
_ATTEMPTS = 4  # a program that hangs or dies in more configurations than this is not worth the time
_FLAGS = {
    # One thread, as the process has one core.
    "cpu": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    # Layouts, not the choice of kernels, are what is compared; without autotuning compiles are short.
    "gpu": "--xla_gpu_autotune_level=0",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What became of one program.

    Attributes:
        about: what its JSON file holds; None where it was not measured.
        reason: why it was not measured; empty where it was.
    """

    about: dict[str, Any] | None
    reason: str = ""


@dataclass(frozen=True)
class _Death:
    """A child process that ended without a result."""

    reason: str
    last: Progress


def environment(platform: str) -> dict[str, str]:
    """The environment of a child process: XLA's flags beside the user's, and the backend."""
    variables = {"XLA_FLAGS": " ".join(filter(None, [os.environ.get("XLA_FLAGS"), _FLAGS[platform]]))}
    if platform == "cpu":
        variables["JAX_PLATFORMS"] = "cpu"  # looks for no accelerator
    return {**os.environ, **variables}


@contextmanager
def _child(task: Task, command: Sequence[str], errors: IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A child process that works on a task, and the file number of its events; killed at the end if it still runs."""
    reading, writing = os.pipe()
    try:
        try:
            process = subprocess.Popen(  # noqa: S603 (our own interpreter, or a test's)
                [*command, str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[writing],
                env=environment(task.platform),
            )
        finally:
            os.close(writing)
        with process:
            try:
                assert process.stdin is not None
                process.stdin.write(json.dumps(dataclasses.asdict(task)).encode())
                process.stdin.close()
                yield process, reading
            finally:
                process.kill()
    finally:
        os.close(reading)


def _events(reading: int, hang_seconds: float) -> Iterator[dict[str, Any]]:
    """The events of a child process until it ends.

    Raises:
        TimeoutError: none came for `hang_seconds`.
    """
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while True:
            if not selector.select(hang_seconds):
                raise TimeoutError(f"no sign of life for {hang_seconds:g} s")
            if not (data := os.read(reading, 2**16)):
                return
            *lines, buffer = (buffer + data).split(b"\n")
            yield from map(json.loads, lines)


def _attempt(
    task: Task, command: Sequence[str], hang_seconds: float, progress: Callable[[Progress], None]
) -> Outcome | _Death:
    last = Progress("start")
    with tempfile.TemporaryFile() as errors:
        with _child(task, command, errors) as (process, reading):
            try:
                for event in _events(reading, hang_seconds):
                    if "done" in event:
                        return Outcome(event["done"])
                    if "skipped" in event:
                        return Outcome(None, event["skipped"])
                    last = Progress(**event["progress"])
                    progress(last)
            except TimeoutError as error:
                return _Death(str(error), last)
            status = process.wait()
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    if status < 0:
        name = signal.Signals(-status).name
        return _Death(f"the process was ended by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}", last)
    return _Death(lines[-1] if lines else f"the process ended with status {status}", last)


def supervise(
    task: Task,
    *,
    hang_seconds: float,
    progress: Callable[[Progress], None] = lambda _: None,
    command: Sequence[str] = CHILD,
) -> Outcome:
    """Measures one program in a child process.

    A configuration in which the process hangs or dies is left out, and the program is begun again without it, a few
    times; a process that hangs or dies elsewhere ends the program.

    Args:
        task: the program.
        hang_seconds: a process that says nothing for so long is killed.
        progress: called with what the child process says.
        command: the child process; the number of the file for its events is appended.
    """
    for _ in range(_ATTEMPTS):
        match _attempt(task, command, hang_seconds, progress):
            case Outcome() as outcome:
                return outcome
            case _Death(reason, Progress(stage, None)):
                return Outcome(None, f"{reason}, in stage {stage}")
            case _Death(reason, Progress(_, str(name))):
                _log.warning("%s: begun again without configuration %s: %s", task.program, name, reason)
                task = dataclasses.replace(task, left_out={**task.left_out, name: reason})
    return Outcome(None, f"the process hung or died in {_ATTEMPTS} configurations, the last time: {reason}")
