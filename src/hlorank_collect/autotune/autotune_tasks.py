"""Tasks of tuning a program, and of running a tuned program again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hlorank.files import DataError
from hlorank_collect.autotune.tuned import read_saved
from hlorank_collect.task import Task


def _times(speedup: Mapping[str, float]) -> str:
    estimate, low, high = speedup["estimate"], speedup["low"], speedup["high"]
    return f"{estimate:.3f} times as fast as the default (95 % interval {low:.3f} to {high:.3f})"


@dataclass(frozen=True)
class TuneTask(Task):
    """One program to tune.

    Of the fields of all tasks, `collection` names the backend, `configurations` is the number of candidates, and
    `rounds` is that of measuring the finalists.
    """

    child = "hlorank_collect.autotune.tune_program"

    model: str | None = None
    """Folder of a trained model; None measures random candidates."""
    reference: str | None = None
    """The user's name of the model, which the saved file records: `model` may be a temporary download."""
    budget: int = 10
    """Maximum number of candidates measured."""

    def summarize(self, about: Mapping[str, Any]) -> str:
        """Return one line about a tuned program."""
        effort = (
            f"{len(about['measured'])} of {about['candidates']} candidates measured, "
            f"{len(about['left_out'])} left out, {about['seconds']['all']:.0f} s"
        )
        if about["speedup"] is None:
            return f"keeps the default: no candidate works; {effort}"
        if not about["configuration"]:
            return f"keeps the default: the best candidate is {_times(about['speedup'])}; {effort}"
        return f"{_times(about['speedup'])}; {effort}"

    def saved(self, name: str) -> Path:
        """Return the JSON file of the program of this name."""
        return Path(self.output) / f"{name}.json"


@dataclass(frozen=True)
class ApplyTask(TuneTask):
    """One program to measure with one configuration."""

    child = "hlorank_collect.autotune.apply_configuration"

    applied: str = ""
    """JSON file of the configuration, which `hlorank rank --export` wrote."""

    def saved(self, name: str) -> Path:
        """Return the JSON file of the program of this name, which is not that of a search."""
        return super().saved(f"{name}.applied")

    def summarize(self, about: Mapping[str, Any]) -> str:
        """Return one line about the measured configuration."""
        if about["speedup"] is None:
            return f"{self.applied} compiles to the same program as the default: there is nothing to measure"
        kept = "" if about["configuration"] else "keeps the default: the configuration is "
        return f"{kept}{_times(about['speedup'])}; {about['rounds']} rounds, {about['seconds']['all']:.0f} s"


@dataclass(frozen=True)
class RemeasureTask(Task):
    """A tuned program to run and measure again next to the compiler's default."""

    child = "hlorank_collect.autotune.remeasure"

    saved: str = ""
    """JSON file that tuning wrote."""

    def summarize(self, about: Mapping[str, Any]) -> str:
        """Return one line about a program that was run again."""
        if not about["tuned"]:
            return f"runs with the default in {about['runtime_ns']['default'] / 1e6:.3f} ms"
        return f"runs in {about['runtime_ns']['tuned'] / 1e6:.3f} ms, {_times(about['speedup'])}"


def remeasure_tasks(files: Sequence[Path], settings: Mapping[str, Any]) -> tuple[list[RemeasureTask], dict[str, str]]:
    """Return the tasks of measuring tuned programs again.

    Args:
        files: JSON files that tuning wrote.
        settings: the fields that all tasks share.

    Returns:
        The tasks, and the missing or damaged files -> reason.
    """
    tasks, broken = [], {}
    for file in files:
        try:
            saved = read_saved(file)
        except DataError as error:
            broken[str(file)] = f"{error.key}: expected {error.expected}, found {error.found}"
            continue
        own = {name: saved.get(name) for name in ("program", "arguments", "scale_batch")} | {"saved": str(file)}
        tasks.append(RemeasureTask(**{**settings, **own, "collection": f"layout:{saved['platform']}:random"}))
    return tasks, broken
