"""A module of small programs, and tasks that tune one of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hlorank_collect.autotune.tuned import TuneTask
from tests.hlorank_collect.tasks import small_task

PROGRAMS = """
import jax.numpy as jnp

def dots(x, w):
    return {"tanh": jnp.tanh(x @ w).reshape(-1, 4) @ jnp.ones((4, 3)), "sum": x.sum()}

def changed(x, w):
    return {"tanh": jnp.tanh(x @ w).reshape(-1, 4) @ jnp.ones((4, 3)), "sum": 2 * x.sum()}

def nothing(x, w):
    return x.sum() + w.sum()
"""


@pytest.fixture
def task(user_module: Callable[[str, str], Path]) -> TuneTask:
    """A task of tuning `dots` without a model."""
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    user_module("tuned_programs", PROGRAMS)
    return small_task(
        TuneTask,
        program="tuned_programs:dots",
        arguments="f32[8,16] f32[16,8]",
        collection="layout:cpu:random",
        output="tuned",
        configurations=12,
        rounds=6,
        time_limit=300.0,
        budget=4,
    )
