"""A task that tunes a small program."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlorank_collect.autotune.tuned import TuneTask
from tests.hlorank_collect.tasks import small_task


@pytest.fixture
def task(programs: Path) -> TuneTask:
    """A task of tuning `dots` without a model."""
    return small_task(
        TuneTask,
        program="user_programs:dots",
        arguments="f32[8,16] f32[16,8]",
        collection="layout:cpu:random",
        output="tuned",
        configurations=12,
        rounds=6,
        time_limit=300.0,
        budget=4,
    )
