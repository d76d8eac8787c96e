"""A child process per task, supervised by its parent: a hang or a crash costs one configuration, not the run."""

import dataclasses
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import psutil

from hlorank.config import ConfigError
from hlorank.files import DataError
from hlorank_collect.machine import limit_memory
from hlorank_collect.program import SkippedError
from hlorank_collect.task import Progress, Task
from hlorank_collect.xla import TPUS

_FLAGS = {
    # One thread, as the process has one core.
    "cpu": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    # Layouts, not the choice of kernels, are compared; without autotuning compilation is short. Triton's first
    # configuration, which it would take then, can be 40 times as slow as the library.
    "gpu": "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false",
}
# libtpu compiles for a TPU that is not there: it asks no metadata server, locks no device, and warns of neither.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}
_ASLEEP = 10  # a child that waits for something, and uses no CPU time, gets so many times its limit
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """Result of the child process of one program, or the reason why it was not measured."""

    about: dict[str, Any] | None
    reason: str = ""


def environment(platform: str) -> dict[str, str]:
    """Return the environment of a child process: XLA's flags next to the user's, and the backend."""
    variables = {"XLA_FLAGS": " ".join(filter(None, [os.environ.get("XLA_FLAGS"), _FLAGS.get(platform)]))}
    if platform not in ("gpu", "tpu"):
        variables["JAX_PLATFORMS"] = "cpu"  # skip the search for accelerators
    if platform in TPUS:
        variables |= _NO_TPU
    return {**os.environ, **variables}


def _work(task: Task, events: Connection, errors: Path) -> None:
    """Run a task in this child process; send each `Progress`, and at the end an `Outcome`."""
    for path, number in ((Path(os.devnull), 1), (errors, 2)):
        with path.open("ab", buffering=0) as file:
            os.dup2(file.fileno(), number)
    os.environ.update(environment(task.platform))
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    limit_memory()
    try:
        # Sending raises where the parent has ended, and ends this process too.
        events.send(Outcome(resolve_name(task.work)(task, events.send)))
    except (SkippedError, ConfigError, DataError) as error:
        events.send(Outcome(None, str(error)))


def _attempt(
    task: Task, hang_seconds: float, progress: Callable[[Progress], None], errors: Path
) -> Outcome | tuple[str, Progress]:
    """Return the outcome of a child process, or why it ended without a result, and its last step."""
    last = Progress("start")
    context = multiprocessing.get_context("spawn")  # a process that imports jax must not be a fork
    reading, writing = context.Pipe(duplex=False)
    errors.touch()  # for a child that ends before its work
    process = context.Process(target=_work, args=(task, writing, errors))
    # The end of the parent's main thread ends a child of another thread, which Python would wait for.
    process.daemon = threading.current_thread() is not threading.main_thread()
    # Ctrl-C is for the parent, which ends the child: that inherits the mask, and hears none from its first moment.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    writing.close()
    try:
        while _arrives(reading, psutil.Process(process.pid), hang_seconds):
            match reading.recv():
                case Outcome() as outcome:
                    return outcome
                case Progress() as last:
                    progress(last)
        slow = "it is slow, or a loop in it never ends"
        return f"no progress in {hang_seconds:g} s of CPU time (--hang-seconds): {slow}", last
    except EOFError:
        process.join()
        return _reason(process.exitcode or 0, errors.read_text(errors="replace").strip().splitlines()), last
    finally:
        process.kill()
        process.join()
        reading.close()


def _arrives(reading: Connection, child: psutil.Process, limit: float) -> bool:
    """Wait for a message or the child's end, False if it hangs; CPU time counts, as the machine may have other work."""
    used, latest = sum(child.cpu_times()[:2]), time.monotonic() + _ASLEEP * limit
    while not reading.poll(min(1.0, limit)):
        if sum(child.cpu_times()[:2]) - used > limit or time.monotonic() > latest:
            return False
    return True


def _reason(status: int, lines: list[str]) -> str:
    """Return why a child process ended, from its exit status and the lines of its standard error."""
    if status >= 0:
        return lines[-1] if lines else f"the process ended with status {status}"
    name = signal.Signals(-status).name
    failed = next((line for line in lines if "Check failed" in line), "")  # why XLA ends its process
    return f"the process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else failed and f": {failed}")


def supervise(task: Task, *, hang_seconds: float, progress: Callable[[Progress], None] = lambda _: None) -> Outcome:
    """Measure a program in a child process, which starts again without a configuration that hangs or crashes it."""
    for _ in range(task.attempts):
        with tempfile.TemporaryDirectory(prefix="hlorank-child-") as folder:
            ended = _attempt(task, hang_seconds, progress, Path(folder) / "errors")
        match ended:
            case Outcome() as outcome:
                return outcome
            case (reason, Progress(stage, None)):
                return Outcome(None, f"in stage {stage}: {reason}")
            case (reason, Progress(_, str(name))):
                _log.warning("%s: started again without configuration %s: %s", task.program, name, reason)
                task = dataclasses.replace(task, left_out={**task.left_out, name: reason})
    return Outcome(None, f"the process hung or crashed in {task.attempts} configurations, the last time: {reason}")
