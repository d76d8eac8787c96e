"""A module of small programs in the current folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = """
import jax.numpy as jnp

def dots(x, w):
    return jnp.tanh(x @ w).reshape(4, -1)

def reshapes(x, w):
    return jnp.exp(x).T.reshape(16, -1).T @ w.reshape(-1, 8)

def nothing(x, w):
    return x.sum() + w.sum()
"""
SHAPES = ["--arguments", "f32[16,8] f32[8,16]"]


@pytest.fixture
def folder(user_module: Callable[[str, str], Path]) -> Path:
    """The current folder, with the module cli_programs."""
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    return user_module("cli_programs", PROGRAMS)
