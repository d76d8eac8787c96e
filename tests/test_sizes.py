"""Sizes of the project: a new feature makes room for itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES = {"src": 36_800, "src/hlorank_collect": 8_000, "tests": 38_000, "benchmarks": 6_000, "docs": 7_140}
MODULES = 302


def tracked(folder: str, suffix: str) -> list[Path]:
    """Return the files of a folder that git tracks, without generated ones."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split() if name.endswith(suffix) and not name.endswith("_pb2.py")]


@pytest.mark.parametrize("folder", LINES)
def test_lines(folder: str) -> None:
    files = tracked(folder, ".md" if folder == "docs" else ".py")
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= LINES[folder]


def test_modules() -> None:
    assert len(tracked("src", ".py")) <= MODULES
