"""Programs of the user: functions by their names, and their arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hlorank.config import ConfigError
from hlorank_collect.program import require_jax, user_program

MODULE = """
import numpy as np
from hlorank_collect.program import JaxProgram

constant = 3.5

def double(x, *rest): return 2 * x
def arguments(): return (np.arange(3.0), {'table': np.eye(2)})
def no_tuple(): return [1.0]

ready = JaxProgram('net.b2', 'net', lambda: (double, arguments()))
"""


@pytest.fixture
def module(user_module: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that can be imported from the current folder only."""
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    user_module("users_own", MODULE)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return "users_own"


def test_without_jax_the_error_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ConfigError, match=r"pip install 'hlorank\[collect\]'"):
        require_jax()
    with pytest.raises(ConfigError, match=r"needs jax"):
        user_program("math:sin", "f32[2]")


def test_arguments_by_shape(module: str) -> None:
    made = user_program(f"{module}:double", "f32[8,128] s32[8] pred[] bf16[4]")
    function, (floats, integers, scalar, short) = made.build()
    assert (floats.shape, floats.dtype) == ((8, 128), np.float32)
    assert floats.std() == pytest.approx(0.1, rel=0.1)
    np.testing.assert_array_equal(integers, np.zeros(8, dtype=np.int32), strict=True)
    np.testing.assert_array_equal(scalar, np.asarray(False), strict=True)
    assert (short.shape, str(short.dtype)) == ((4,), "bfloat16")
    np.testing.assert_array_equal(function(floats), 2 * floats)
    np.testing.assert_array_equal(made.build()[1][0], floats)
    assert (made.name, made.family) == ("users_own-double-f32-8-128-s32-8-pred-bf16-4", "users_own-double")


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("users_own:absent", "no attribute 'absent'"),
        ("users_own", "no colon"),
        ("users_own:", "not callable"),
        ("users_own:constant", "float"),
        ("not a name:f", "invalid format"),
    ],
)
def test_references_without_a_function_are_refused(module: str, reference: str, found: str) -> None:
    for role, arguments in (("function", (reference, "f32[2]")), ("arguments", (f"{module}:double", reference))):
        with pytest.raises(ConfigError, match=f"^{role} '{reference}': .*{found}"):
            user_program(*arguments)


def test_a_program_has_its_own_arguments_and_a_function_needs_shapes_or_a_tuple(module: str) -> None:
    made = user_program(f"{module}:ready", None)
    assert (made.name, made.family) == ("net.b2", "net")
    with pytest.raises(ConfigError, match="its own"):
        user_program(f"{module}:ready", "f32[2]")
    with pytest.raises(ConfigError, match="needs --arguments"):
        user_program(f"{module}:double", None)
    with pytest.raises(ConfigError, match="returned a list"):
        user_program(f"{module}:double", f"{module}:no_tuple").build()
    for shape in ("f32[?]", "f32[<=8]", "f64[2]", "f32[2,]", "f32[2]{0}"):
        with pytest.raises(ConfigError, match="not a shape") as raised:
            user_program(f"{module}:double", f"s32[1] {shape}")
        assert repr(shape) in str(raised.value)
