"""Sizes of the project: a new feature makes room for itself, and a reader takes in a module at one sitting."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES = {"src": 25_000, "src/hlorank_collect": 4_500, "tests": 23_000, "benchmarks": 3_600, "docs": 5_200}
MODULES, MODULE_LINES, FUNCTION_LINES, IMPORTS = 190, 350, 60, 15


def tracked(folder: str, suffix: str) -> list[Path]:
    """Return the files of a folder that git tracks, without generated ones."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split() if name.endswith(suffix) and not name.endswith("_pb2.py")]


@pytest.mark.parametrize("folder", LINES)
def test_lines(folder: str) -> None:
    files = tracked(folder, ".md" if folder == "docs" else ".py")
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= LINES[folder]


def test_modules() -> None:
    modules = tracked("src", ".py")
    assert len(modules) <= MODULES
    for path in modules:
        text = path.read_text(encoding="utf-8")
        tree = ast.walk(ast.parse(text))
        lengths, imported = [0], set()
        for node in tree:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append((node.end_lineno or 0) - node.lineno + 1)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hlorank"):
                imported.add(node.module)
        assert len(text.splitlines()) <= MODULE_LINES, path
        assert max(lengths) <= FUNCTION_LINES, path
        assert len(imported) <= IMPORTS, path
