from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hlorank.config import ConfigError
from hlorank_collect.program import require_jax, user_program


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that can be imported from the current folder only."""
    (tmp_path / "users_own.py").write_text(
        "import numpy as np\n"
        "def double(x, *rest): return 2 * x\n"
        "def arguments(): return (np.arange(3.0), {'table': np.eye(2)})\n"
        "def no_tuple(): return [1.0]\n"
        "constant = 3.5\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "users_own", raising=False)
    return "users_own"


def test_without_jax_the_error_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ConfigError, match=r"pip install 'hlorank\[collect\]'"):
        require_jax()
    with pytest.raises(ConfigError, match=r"needs jax"):
        user_program("math:sin", "f32[2]")


class TestUserProgram:
    @pytest.fixture(autouse=True)
    def _needs_jax(self) -> None:
        pytest.importorskip("jax", reason="needs jax (extra collect)")

    def test_arguments_by_shape(self, module: str) -> None:
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
    def test_refuses_references_without_a_function(self, module: str, reference: str, found: str) -> None:
        for role, arguments in (("function", (reference, "f32[2]")), ("arguments", (f"{module}:double", reference))):
            with pytest.raises(ConfigError, match=f"^{role} '{reference}': .*{found}"):
                user_program(*arguments)

    @pytest.mark.parametrize("shape", ["f32[?]", "f32[<=8]", "f64[2]", "f32[2,]", "f32[2]{0}"])
    def test_refuses_other_shapes(self, module: str, shape: str) -> None:
        with pytest.raises(ConfigError, match="not a shape") as raised:
            user_program(f"{module}:double", f"s32[1] {shape}")
        assert repr(shape) in str(raised.value)

    def test_a_program_has_its_own_arguments_and_a_function_needs_some(self, module: str) -> None:
        with (Path.cwd() / f"{module}.py").open("a") as file:
            file.write(
                "from hlorank_collect.program import JaxProgram\n"
                "ready = JaxProgram('net.b2', 'net', lambda: (double, arguments()))\n"
            )
        made = user_program(f"{module}:ready", None)
        assert (made.name, made.family) == ("net.b2", "net")
        with pytest.raises(ConfigError, match="its own"):
            user_program(f"{module}:ready", "f32[2]")
        with pytest.raises(ConfigError, match="needs --arguments"):
            user_program(f"{module}:double", None)
        with pytest.raises(ConfigError, match="returned a list"):
            user_program(f"{module}:double", f"{module}:no_tuple").build()
