"""The commands where the extra `collect` is not installed, in processes that cannot import jax."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMAND = """
import sys


class WithoutJax:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, WithoutJax())
from hlorank.cli.main import main

status = 0
try:
    status = main(sys.argv[1:])
except SystemExit as end:
    status = end.code
heavy = {"jax", "torch", "scipy", "sklearn", "mlflow"} & set(sys.modules)
assert not heavy, heavy
sys.exit(status)
"""
INSTALL = "pip install 'hlorank[collect]'"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, check=False)


def test_the_help_lists_the_commands_with_the_line_that_installs_them() -> None:
    found = run("--help")
    assert found.returncode == 0, found.stderr
    text = " ".join(found.stdout.split())  # argparse breaks lines
    for command in ("collect", "autotune"):
        assert f" {command} " in text
    assert text.count(INSTALL) == 2


@pytest.mark.parametrize(
    "arguments",
    [["collect"], ["collect", "--all", "--out", "out"], ["autotune"], ["autotune", "mlp.b64.forward", "--random"]],
)
def test_a_command_names_the_line_that_installs_it(arguments: list[str]) -> None:
    found = run(*arguments)
    assert found.returncode == 2
    assert found.stderr.startswith("error: ")
    assert INSTALL in found.stderr
    assert found.stderr.count("\n") == 1


def test_the_zoo_is_listed_without_jax() -> None:
    found = run("collect", "--list")
    assert found.returncode == 0, found.stderr
    assert "mlp.b64.forward" in found.stdout


def test_with_jax_the_help_of_all_commands_names_no_installation() -> None:
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    code = "import sys\nfrom hlorank.cli.main import main\nmain([])\nassert 'jax' not in sys.modules"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "collect" in found.stdout
    assert "pip install" not in found.stdout
