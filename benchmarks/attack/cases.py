"""Attacks on readers of files: each case runs in a process of its own, with limits of time and memory."""

from __future__ import annotations

import errno
import os
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hlorank.config import ConfigError
from hlorank.fetch.download import DownloadError
from hlorank.files import DataError

from .counts import BYTES, SECONDS, Counts

LONGEST = 500
"""Characters of a clean error."""
NAMES = ("<!--<script>", "a\x1b[31mb", "a\nb", "\udcff\udcfe", "\u202eabc", "[red]x[bold]", "=cmd()", "n" * 250)
"""Odd names of files."""


class WrongContentError(Exception):
    """An accepted file with content other than its own."""


@dataclass(frozen=True)
class Case:
    """One attack: `prepare` writes files into an empty folder, and `run` reads them, with limits.

    Mutated cases are unlimited in number, others are few.
    """

    name: str
    prepare: Callable[[Path], object]
    run: Callable[[Path], None]
    mutated: bool = False


def run_cases(cases: Iterator[Case], mutated: int) -> Counts:
    """Run all cases that are not mutated, which come first, and then a number of mutated ones."""
    counts = Counts()
    for case in cases:
        if case.mutated and mutated == 0:
            break
        mutated -= case.mutated
        counts.attacked += 1
        with tempfile.TemporaryDirectory(prefix="hlorank-attack-") as folder:
            outcome, detail, seconds, memory = outcome_of(case, Path(folder))
        counts.add(outcome, case.name, detail, seconds, memory)
    return counts


def outcome_of(case: Case, folder: Path) -> tuple[str, str, float, int]:
    """Return the outcome of a case, its message, its seconds, and its peak memory in bytes."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        _run_in_child(case, folder, writing)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as file:
        outcome, seconds, detail = (*file.read().split("\n", 2), "", "", "")[:3]
    _, status, usage = os.wait4(process, 0)
    memory = usage.ru_maxrss * 1024
    if status:
        outcome = "hangs" if os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGPROF) else "tracebacks"
        detail = f"ended by signal {os.WTERMSIG(status)}"
    elif memory > BYTES:
        outcome = "memory"
    return outcome, detail, float(seconds or SECONDS), memory


def _run_in_child(case: Case, folder: Path, results: int) -> None:
    """Run a case, write its outcome to a file descriptor, and exit; the alarm of a hang ends the process."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    resource.setrlimit(resource.RLIMIT_AS, (6 * BYTES, 6 * BYTES))
    warnings.simplefilter("error")
    detail, start = "", 0.0
    try:
        case.prepare(folder)
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of CPU time, so that a busy machine changes nothing
        signal.alarm(6 * SECONDS)
        case.run(folder)
        outcome = "accepted"
    except WrongContentError as error:
        outcome, detail = "wrong content", str(error)
    except BaseException as error:
        outcome, detail = "clean errors", str(error)
        if not _clean(error):
            outcome, detail = "tracebacks", "".join(traceback.format_exception(error, limit=-4))
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    os.write(results, f"{outcome}\n{time.monotonic() - start:.2f}\n{detail[:4000]}".encode("utf-8", "backslashreplace"))
    os._exit(0)


def _clean(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_clean, error.exceptions))
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return True
    message = str(error)
    return (
        isinstance(error, (DataError, ConfigError, DownloadError)) and len(message) <= LONGEST and message.isprintable()
    )


def mutate(data: bytes, random: np.random.Generator) -> bytes:
    """Return bytes with a few flipped bits, or with a piece removed, inserted, repeated, or cut off."""
    changed = bytearray(data)
    start = int(random.integers(len(changed)))
    match int(random.integers(6)):
        case 0 | 1:
            for place in random.integers(len(changed), size=int(random.integers(1, 9))):
                changed[place] ^= 1 << int(random.integers(8))
        case 2:
            del changed[start:]
        case 3:
            del changed[start : start + int(random.integers(1, 64))]
        case 4:
            changed[start:start] = random.bytes(int(random.integers(1, 16)))
        case 5:
            changed[start:start] = changed[start : start + int(random.integers(1, 256))] * int(random.integers(1, 5))
    return bytes(changed)


def write(name: str, data: bytes) -> Callable[[Path], object]:
    """Return the preparation of a case with one file."""
    return lambda folder: (folder / name).write_bytes(data)
