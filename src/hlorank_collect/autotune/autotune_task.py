"""What a child process that tunes a program is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hlorank_collect.task import Task


@dataclass(frozen=True)
class TuneTask(Task):
    """One program to tune.

    Of the fields that it shares with a task of collecting, `collection` says the backend and the search that draws
    the candidates, `configurations` how many there are, `rounds` how often the finalists are measured.
    """

    model: str | None = None
    """The folder of a trained model; None tries the candidates in the order drawn."""
    reference: str | None = None
    """What the user names the model by, and the saved file says: its folder may be a passing download."""
    batch: int = 5
    """Candidates measured before the ranking adapts to them."""
    budget: int = 5
    """Candidates measured, at most."""

    def saved(self, name: str) -> Path:
        """The JSON file of the program of this name."""
        return Path(self.output) / f"{name}.json"


@dataclass(frozen=True)
class AgainTask(Task):
    """A tuned program to run and measure again."""

    saved: str = ""
    """The JSON file that tuning wrote."""
