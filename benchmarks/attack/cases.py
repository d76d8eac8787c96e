"""Attacks on readers of files: each case runs in a process of its own, with limits of time and memory.

A case is accepted (with the right content), or it ends with a clean error: one of the package's exceptions, with a line
of at most 500 characters. All else is a finding: a traceback, more than 10 s of CPU time or a minute in all, more than
1 GB of memory, or wrong content.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hlorank.config import ConfigError
from hlorank.fetch.download import DownloadError
from hlorank.files import DataError, write_json

SECONDS, BYTES, LONGEST = 10, 10**9, 500
OUTCOMES = ("accepted", "clean errors", "tracebacks", "hangs", "memory", "wrong content")
FINDINGS = OUTCOMES[2:]
NAMES = ("<!--<script>", "a\x1b[31mb", "a\nb", "\udcff\udcfe", "\u202eabc", "[red]x[bold]", "=cmd()", "n" * 250)
"""Odd names of files."""
FORK = get_context("fork")


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


@dataclass(frozen=True)
class Outcome:
    """What became of a case: one of `OUTCOMES`, the message, and the seconds and bytes of memory that it took."""

    kind: str
    detail: str
    seconds: float = SECONDS
    bytes: int = 0
    name: str = ""


def write(name: str, data: bytes) -> Callable[[Path], object]:
    """Return the preparation of a case with one file."""
    return lambda folder: (folder / name).write_bytes(data)


def run_cases(cases: Iterator[Case], mutated: int) -> list[Outcome]:
    """Run all cases that are not mutated, which come first, and then a number of mutated ones; print findings."""
    outcomes = []
    for case in cases:
        if case.mutated and mutated == 0:
            break
        mutated -= case.mutated
        with tempfile.TemporaryDirectory(prefix="hlorank-attack-") as folder:
            outcomes.append(outcome_of(case, Path(folder)))
        if outcomes[-1].kind in FINDINGS:
            print(outcomes[-1], flush=True)
    return outcomes


def outcome_of(case: Case, folder: Path) -> Outcome:
    """Run a case in a process of its own."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_attack, args=(case, folder, sender))
    process.start()
    sender.close()
    try:
        found: Outcome = receiver.recv()
        process.kill()  # its threads may wait
    except EOFError:
        process.join()
        hangs = -(process.exitcode or 0) in (signal.SIGALRM, signal.SIGPROF)
        found = Outcome("hangs" if hangs else "tracebacks", f"exit code {process.exitcode}", name=case.name)
    process.join()
    return found


def _attack(case: Case, folder: Path, sender: Connection) -> None:
    """Run a case and send its outcome; the alarm of a hang ends the process."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    resource.setrlimit(resource.RLIMIT_AS, (6 * BYTES, 6 * BYTES))
    warnings.simplefilter("error")
    kind, detail, start = "accepted", "", time.monotonic()
    try:
        case.prepare(folder)
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of CPU time, so that a busy machine changes nothing
        signal.alarm(6 * SECONDS)
        case.run(folder)
    except BaseException as error:
        wrong = isinstance(error, WrongContentError)
        kind = "wrong content" if wrong else "clean errors" if _clean(error) else "tracebacks"
        detail = "".join(traceback.format_exception(error, limit=-4)) if kind == "tracebacks" else str(error)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    kind = "memory" if memory > BYTES else kind
    sender.send(Outcome(kind, ascii(detail[:4000]), round(time.monotonic() - start, 2), memory, case.name))


def _clean(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_clean, error.exceptions))
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return True
    message = str(error)
    return (
        isinstance(error, (DataError, ConfigError, DownloadError)) and len(message) <= LONGEST and message.isprintable()
    )


def row(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the numbers of cases by outcome, the slowest and the largest case, and the findings."""
    counts = Counter(one.kind for one in outcomes)
    slowest, largest = max(outcomes, key=lambda one: one.seconds), max(outcomes, key=lambda one: one.bytes)
    return {
        "attacked": len(outcomes),
        **{kind: counts[kind] for kind in OUTCOMES},
        "slowest_seconds": slowest.seconds,
        "largest_mb": round(largest.bytes / 1e6),
        "slowest": slowest.name,
        "largest": largest.name,
        "findings": [asdict(one) for one in outcomes if one.kind in FINDINGS],
    }


def report(attacks: Mapping[str, Sequence[Outcome]], path: Path | None) -> int:
    """Print a table, write it as JSON if there is a path, and return the exit status: 1 if there are findings."""
    rows = {name: row(outcomes) for name, outcomes in attacks.items()}
    columns = [name for name, value in next(iter(rows.values())).items() if isinstance(value, int | float)]
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for name, values in rows.items():
        print(f"| {name} | " + " | ".join(f"{values[column]:,}" for column in columns) + " |")
    if path:
        write_json(path, rows)
    return int(any(values["findings"] for values in rows.values()))
