"""Modules of the user's programs, in the current folder."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = """
import jax
import jax.numpy as jnp
import numpy as np

def dots(x, w):
    return {"tanh": jnp.tanh(x @ w).reshape(-1, 4) @ jnp.ones((4, 3)), "sum": x.sum()}

def changed(x, w):
    return {"tanh": jnp.tanh(x @ w).reshape(-1, 4) @ jnp.ones((4, 3)), "sum": 2 * x.sum()}

def reshapes(x, w):
    return jnp.exp(x).T.reshape(16, -1).T @ w.reshape(-1, 8)

def nothing(x, w):
    return jnp.tanh(x) + w.sum()

def prints(x, w):
    jax.debug.print("{}", x[0, 0])
    return x @ w

def calls_back(x, w):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) @ w

def nan(x, w):
    return jnp.log(-jnp.ones(3)) + (x @ w).sum()

def breaks(x, w):
    raise KeyError("oops")
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Return a function that writes a module into the test's folder, makes it the current one, and returns it."""

    def write(name: str, text: str) -> Path:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.delitem(sys.modules, name, raising=False)
        return tmp_path

    return write


@pytest.fixture
def programs(user_module: Callable[[str, str], Path]) -> Path:
    """The current folder, with the module user_programs of functions of f32[8,16] and f32[16,8]."""
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    return user_module("user_programs", PROGRAMS)
