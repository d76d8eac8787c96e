"""A module of small programs, and tasks that tune one of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hlorank_collect.autotune.autotune_tasks import TuneTask

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
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuneTask:
    """A task of tuning `dots` without a model."""
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    (tmp_path / "tuned_programs.py").write_text(PROGRAMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "tuned_programs", raising=False)
    return TuneTask(
        program="tuned_programs:dots",
        arguments="f32[8,16] f32[16,8]",
        collection="layout:cpu:random",
        output="tuned",
        configurations=12,
        seed=0,
        rounds=6,
        fast_compile=False,
        time_limit=300.0,
        core=None,
        batch=2,
        budget=4,
    )
