"""Execution of tasks, one after the other unless all are estimates: parallel measurements would disturb each other."""

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

from rich.console import Console
from rich.progress import Progress as ProgressBar
from rich.progress import track

from hlorank.config import ConfigError
from hlorank.config.section import available_cores
from hlorank.files import counted
from hlorank_collect import child_process, machine
from hlorank_collect.task import Progress, Task
from hlorank_collect.xla import TPUS

_SPEED_SECONDS = 3600.0  # programs differ, so that only a long period predicts the remaining time


def run_tasks(
    tasks: Sequence[Task],
    *,
    hang_seconds: float,
    echo: Callable[[str], object],
    record: Callable[[str, str | None], object] = lambda *_: None,
    show: Callable[[Mapping[str, Any]], object] = lambda _: None,
    check_machine: Callable[[], object] = machine.require_quiet,
    supervise: Callable[..., child_process.Outcome] = child_process.supervise,
) -> dict[str, str]:
    """Measure programs in child processes, and return why some were left out, by name.

    Programs that were measured earlier with the same settings are kept.
    `record` gets each name, and the reason why it was left out or None; `show` gets each result, after its line.
    `check_machine` is called before the first measurement, and may end the run. Without a core, tasks run on the last.
    """
    named: dict[str, Task] = {}
    for task in tasks:
        if (other := named.setdefault(name := task.load().name, task)) is not task:
            both = f"programs {other.program} and {task.program}"
            raise ConfigError(f"{both}: both have the name {name}; give one of them")
    waiting = {name: task for name, task in named.items() if not task.is_complete(name)}
    left_out: dict[str, str] = {}
    for name in named.keys() - waiting.keys():
        record(name, None)
    if present := len(named) - len(waiting):
        echo(f"measured already: {counted(present, 'program')}")
    supervise = partial(supervise, hang_seconds=hang_seconds)
    if waiting:
        sys.stderr.write(f"{counted(len(waiting), 'program')} to measure\n")  # before seconds without a word
        check_machine()
    if all(task.platform in TPUS for task in waiting.values()):
        outcomes = in_threads(supervise, [*waiting.values()])
    else:
        outcomes = _one_by_one(waiting, supervise)
    start = time.monotonic()
    for number, ((name, task), outcome) in enumerate(zip(waiting.items(), outcomes, strict=True), start=1):
        record(name, outcome.reason if outcome.about is None else None)
        result = f"left out: {outcome.reason}" if outcome.about is None else task.summarize(outcome.about)
        left = timedelta(seconds=round((time.monotonic() - start) / number * (len(waiting) - number)))
        echo(f"[{number}/{len(waiting)}, {left} left] {name}: {result}")
        if outcome.about is None:
            left_out[name] = outcome.reason
        else:
            show(outcome.about)
    return left_out


def _one_by_one(
    waiting: Mapping[str, Task], supervise: Callable[..., child_process.Outcome]
) -> Iterator[child_process.Outcome]:
    """Measure programs, with a progress bar, or with a line for each stage where a terminal does not show it."""
    terminal = sys.stderr.isatty()
    bar = ProgressBar(
        console=Console(stderr=True),
        disable=not terminal,
        speed_estimate_period=_SPEED_SECONDS,
        refresh_per_second=1,  # drawing takes CPU time from the measurements
    )
    with bar:
        shown = bar.add_task("", total=len(waiting))
        stage = ""
        for number, (name, task) in enumerate(waiting.items()):

            def progress(step: Progress, name: str = name, number: int = number) -> None:
                nonlocal stage
                if not terminal and stage != step.stage:
                    sys.stderr.write(f"{name}: {step.stage}\n")
                stage = step.stage
                bar.update(shown, description=f"{name} ({stage})", completed=number + step.share)

            progress(Progress("start"))
            core = max(os.sched_getaffinity(0)) if task.core is None else task.core
            yield supervise(dataclasses.replace(task, core=core), progress=progress)
            bar.update(shown, completed=number + 1)


def in_threads(
    measure: Callable[[Task], child_process.Outcome], tasks: Sequence[Task]
) -> Iterator[child_process.Outcome]:
    """Yield the outcomes of programs whose runtimes are estimated, in order; a child process runs for each core."""
    with ThreadPool(available_cores()) as pool:  # the process ends without waiting for its threads
        outcomes, console = pool.imap(measure, tasks), Console(stderr=True)
        yield from track(outcomes, "Measuring estimates", len(tasks), console=console, disable=not sys.stderr.isatty())
