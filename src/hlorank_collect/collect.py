"""Collecting many programs, one after the other: parallel measurements would disturb each other."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hlorank_collect import busy, task, worker
from hlorank_collect.layouts import record
from hlorank_collect.task import Task

_Task = TypeVar("_Task", bound=Task)
_SPEED_SECONDS = 3600.0  # programs differ, so that the time left follows from long stretches only


@dataclass(frozen=True)
class Summary:
    """What became of the programs, by name.

    Attributes:
        measured: those measured now.
        present: those that had been measured before with the same settings.
        left_out: those that could not be measured, with the reason.
    """

    measured: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def line(about: dict[str, Any]) -> str:
    """A measured program in one line; `about` is what its JSON file holds."""
    runtime = about["runtime_ns"]
    spread, gain = runtime["worst"] / runtime["best"], runtime["default"] / runtime["best"]
    return (
        f"{about['measured']} configurations, {about['rounds']} rounds, "
        f"split-half tau {_shown(about['split_half_tau'])} (ceiling {_shown(about['noise_ceiling'])}), "
        f"max / min {spread:.2f}, default / best {gain:.2f}, "
        f"{len(about['left_out'])} left out, {sum(about['seconds'].values()):.0f} s"
    )


def collect_layouts(
    tasks: Sequence[Task],
    *,
    hang_seconds: float,
    echo: Callable[[str], object],
    check_machine: Callable[[], object] = busy.require_quiet,
    supervise: Callable[..., worker.Outcome] = worker.supervise,
) -> Summary:
    """Measures layouts of programs; as `collect_programs`."""
    return collect_programs(
        tasks,
        is_complete=lambda one, name: record.complete(one.npz(name), one.fingerprint),
        line=line,
        hang_seconds=hang_seconds,
        echo=echo,
        check_machine=check_machine,
        supervise=supervise,
    )


def collect_programs(
    tasks: Sequence[_Task],
    *,
    is_complete: Callable[[_Task, str], bool],
    line: Callable[[dict[str, Any]], str],
    hang_seconds: float,
    echo: Callable[[str], object],
    check_machine: Callable[[], object],
    supervise: Callable[..., worker.Outcome],
) -> Summary:
    """Measures programs in child processes; what is measured already with the same settings stays as it is.

    Args:
        tasks: the programs; whatever happens to one, the others go on.
        is_complete: whether the program of a task, of this name, has been measured already.
        line: tells of a measured program; is given what its JSON file holds.
        hang_seconds: a child process that says nothing for so long is killed.
        echo: is given a line for each program.
        check_machine: called before the first program is measured; what it raises ends the collection.
        supervise: measures one.

    Raises:
        ConfigError: there is no such program, or the machine is busy.
    """
    named = {one.load().name: one for one in tasks}
    waiting = {name: one for name, one in named.items() if not is_complete(one, name)}
    summary = Summary(present=[name for name in named if name not in waiting])
    if summary.present:
        echo(f"{len(summary.present)} programs are measured already")
    if waiting:
        check_machine()
    start = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(elapsed_when_finished=True))
    bar = Progress(
        *columns,
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        speed_estimate_period=_SPEED_SECONDS,
        refresh_per_second=1,  # drawing takes time from nobody else
    )
    with bar:
        shown = bar.add_task("", total=len(waiting))
        for number, (name, one) in enumerate(waiting.items()):

            def progress(step: task.Progress, name: str = name, number: int = number) -> None:
                bar.update(shown, description=f"{name} ({step.stage})", completed=number + step.share)

            outcome = supervise(one, hang_seconds=hang_seconds, progress=progress)
            if outcome.about is None:
                summary.left_out[name] = outcome.reason
                result = f"left out: {outcome.reason}"
            else:
                summary.measured.append(name)
                result = line(outcome.about)
            elapsed = time.monotonic() - start
            left = timedelta(seconds=round(elapsed / (number + 1) * (len(waiting) - number - 1)))
            echo(f"[{number + 1}/{len(waiting)}, {left} left] {name}: {result}")
            bar.update(shown, completed=number + 1)
    return summary
