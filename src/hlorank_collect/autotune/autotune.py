"""Tuning many programs, one after the other, in child processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hlorank.files import DataError
from hlorank_collect import worker
from hlorank_collect.autotune.autotune_task import AgainTask, TuneTask
from hlorank_collect.autotune.tuned import read_saved
from hlorank_collect.collect import Summary, collect_programs

TUNE = (sys.executable, "-m", "hlorank_collect.autotune.tune_program")
AGAIN = (sys.executable, "-m", "hlorank_collect.autotune.remeasure")


def _times(speedup: dict[str, float]) -> str:
    estimate, low, high = speedup["estimate"], speedup["low"], speedup["high"]
    return f"{estimate:.3f} times as fast as the default (95 % interval {low:.3f} to {high:.3f})"


def line(about: dict[str, Any]) -> str:
    """A tuned program in one line; `about` is what its JSON file holds."""
    effort = (
        f"{len(about['measured'])} of {about['candidates']} candidates measured, {len(about['left_out'])} left out, "
        f"{about['seconds']['all']:.0f} s"
    )
    if about["speedup"] is None:
        return f"keeps the default: no candidate works; {effort}"
    if not about["configuration"]:
        return f"keeps the default: the best candidate is {_times(about['speedup'])}; {effort}"
    return f"{_times(about['speedup'])}; {effort}"


def line_again(about: dict[str, Any]) -> str:
    """A program that was run again in one line; `about` is what the child process returns."""
    if not about["tuned"]:
        return f"runs with the default in {about['runtime_ns']['default'] / 1e6:.3f} ms"
    return f"runs in {about['runtime_ns']['tuned'] / 1e6:.3f} ms, {_times(about['speedup'])}"


def again_tasks(files: Sequence[Path], settings: dict[str, Any]) -> tuple[list[AgainTask], dict[str, str]]:
    """Tasks that run tuned programs beside the default, and measure both anew.

    Args:
        files: that tuning wrote.
        settings: the fields that all tasks share.

    Returns:
        the tasks, and what is wrong with the files that are missing or damaged, by file.
    """
    tasks, broken = [], {}
    for file in files:
        try:
            saved = read_saved(file)
        except DataError as error:
            broken[str(file)] = f"{error.key}: expected {error.expected}, found {error.found}"
            continue
        own = {"program": saved["program"], "arguments": saved["arguments"], "saved": str(file)}
        tasks.append(AgainTask(**settings | own | {"collection": f"layout:{saved['platform']}:random"}))
    return tasks, broken


def run_programs(
    tasks: Sequence[TuneTask] | Sequence[AgainTask],
    *,
    hang_seconds: float,
    echo: Callable[[str], object],
    check_machine: Callable[[], object],
) -> Summary:
    """Tunes programs, or runs tuned ones again; a configuration that kills or hangs the process is left out.

    Args:
        tasks: the programs; whatever happens to one, the others go on.
        hang_seconds: a child process that says nothing for so long is killed.
        echo: is given a line for each program.
        check_machine: called before the first program; what it raises ends the work.

    Raises:
        ConfigError: there is no such program, or the machine is busy.
    """
    again = isinstance(tasks[0], AgainTask)
    return collect_programs(
        tasks,
        is_complete=lambda _, __: False,
        line=line_again if again else line,
        hang_seconds=hang_seconds,
        echo=echo,
        check_machine=check_machine,
        supervise=partial(worker.supervise, command=AGAIN if again else TUNE),
    )
