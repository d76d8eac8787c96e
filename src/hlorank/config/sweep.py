"""Section `sweep`."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, model_validator

from hlorank.config.section import Section

SWEEP_NAME = re.compile(r"[\w.-][\w .-]*")
"""Names that a sweep may have; they are part of queries of MLflow."""


class SweepConfig(Section):
    """Multiruns of trainings."""

    name: str | None
    """A sweep that is started again under its name continues where it ended; null continues only an interrupted sweep
    of the same command."""
    storage: str
    """Database in which searches keep their trials, as an address of Optuna and SQLAlchemy."""
    trial: int | None
    """Number of the training in its search; set by the search."""
    prune: bool
    """Stop trainings whose best validation Kendall tau is below the median of earlier ones at the same epoch."""
    prune_after_trials: int = Field(ge=0)
    """Trainings of a search before the first comparison."""
    prune_after_epochs: int = Field(ge=0)
    """Epochs that each training gets."""

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        valid = self.name is None or SWEEP_NAME.fullmatch(self.name) is not None
        return self.require(valid, "name", "letters, digits, spaces, dots, dashes and underscores")
