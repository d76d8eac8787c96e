"""A child process per task, supervised by its parent: a hang or a crash costs one configuration, not the run.

The parent writes the task as JSON to the child's standard input. The child writes events as JSON lines to a pipe whose
file number is its argument: `progress` before each step, then `done` with the result, or `skipped` with a reason.
"""

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
from typing import IO, Any, TextIO, TypeVar

from hlorank.config import ConfigError
from hlorank.files import DataError
from hlorank_collect.machine import limit_memory
from hlorank_collect.program import SkippedError
from hlorank_collect.task import Progress, Report, Task

_ATTEMPTS = 4  # a program that hangs or crashes in more configurations than this is not worth the time
_FLAGS = {
    # One thread, as the process has one core.
    "cpu": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    # Layouts, not the choice of kernels, are compared; without autotuning compilation is short. Triton's first
    # configuration, which it would take then, can be 40 times as slow as the library.
    "gpu": "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false",
}
_AnyTask = TypeVar("_AnyTask", bound=Task)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """Result of one program.

    Attributes:
        about: result of the child process; None where the program was not measured.
        reason: reason for a program that was not measured, empty for a measured one.
    """

    about: dict[str, Any] | None
    reason: str = ""


@dataclass(frozen=True)
class _Death:
    """A child process that ended without a result."""

    reason: str
    last: Progress


def environment(platform: str) -> dict[str, str]:
    """Return the environment of a child process: XLA's flags next to the user's, and the backend."""
    variables = {"XLA_FLAGS": " ".join(filter(None, [os.environ.get("XLA_FLAGS"), _FLAGS[platform]]))}
    if platform == "cpu":
        variables["JAX_PLATFORMS"] = "cpu"  # skip the search for accelerators
    return {**os.environ, **variables}


@contextmanager
def _child(task: Task, command: Sequence[str], errors: IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Yield a child process with a task, and the file number of its events; kill it at the end if it still runs."""
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
    """Yield the events of a child process until it ends.

    Raises:
        TimeoutError: no event arrived for `hang_seconds`.
    """
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while True:
            if not selector.select(hang_seconds):
                raise TimeoutError(
                    f"no progress for {hang_seconds:g} s (--hang-seconds): it is slow, or a loop in it never ends"
                )
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
        failed = next((line for line in lines if "Check failed" in line), "")  # why XLA ends its process
        why = " (out of memory?)" if name == "SIGKILL" else f": {failed}" if failed else ""
        return _Death(f"the process was ended by {name}{why}", last)
    return _Death(lines[-1] if lines else f"the process ended with status {status}", last)


def supervise(
    task: Task,
    *,
    hang_seconds: float,
    progress: Callable[[Progress], None] = lambda _: None,
    command: Sequence[str] | None = None,
) -> Outcome:
    """Measure one program in a child process.

    A configuration in which the process hangs or crashes is left out, and the program is started again without it, a
    few times. A process that hangs or crashes elsewhere ends the program.

    Args:
        task: the program.
        hang_seconds: seconds without an event after which a process is killed.
        progress: called with each progress of the child process.
        command: the child process, to which the file number of its events is appended; None runs `task.child`.
    """
    command = [sys.executable, "-m", task.child] if command is None else command
    for _ in range(_ATTEMPTS):
        match _attempt(task, command, hang_seconds, progress):
            case Outcome() as outcome:
                return outcome
            case _Death(reason, Progress(stage, None)):
                return Outcome(None, f"in stage {stage}: {reason}")
            case _Death(reason, Progress(_, str(name))):
                _log.warning("%s: started again without configuration %s: %s", task.program, name, reason)
                task = dataclasses.replace(task, left_out={**task.left_out, name: reason})
    return Outcome(None, f"the process hung or crashed in {_ATTEMPTS} configurations, the last time: {reason}")


def _send(events: TextIO, message: dict[str, Any]) -> None:
    events.write(json.dumps(message) + "\n")
    events.flush()  # raises where the parent has ended, and ends this process too


def run_child(kind: type[_AnyTask], work: Callable[[_AnyTask, Report], dict[str, Any]]) -> None:
    """Run the task of this child process, and send its events.

    Args:
        kind: class of the task.
        work: measures the task's program and returns the result.
    """
    task = kind(**json.load(sys.stdin))
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    limit_memory()
    with os.fdopen(int(sys.argv[1]), "w") as events:
        try:
            about = work(task, lambda progress: _send(events, {"progress": dataclasses.asdict(progress)}))
        except (SkippedError, ConfigError, DataError) as error:
            _send(events, {"skipped": str(error)})
        else:
            _send(events, {"done": about})
