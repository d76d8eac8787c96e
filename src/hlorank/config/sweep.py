"""Section `sweep`."""

from __future__ import annotations

from pydantic import Field

from hlorank.config.section import Section


class SweepConfig(Section):
    """Multiruns of trainings."""

    name: str | None
    """A sweep that is started again under its name continues where it ended; null starts a new one."""
    storage: str
    """Database in which searches keep their trials, as an address of Optuna and SQLAlchemy."""
    trial: int | None
    """Number of the training in its search, which sets it."""
    prune: bool
    """Stop trainings whose best validation Kendall tau is below the median of earlier ones at the same epoch."""
    prune_after_trials: int = Field(ge=0)
    """Trainings of a search before the first comparison."""
    prune_after_epochs: int = Field(ge=0)
    """Epochs that each training gets."""
