"""Fixtures that tests of several packages share."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.io import SHARED_VARIABLE, shared_dir


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real TpuGraphs files; tests that need it are skipped where it is absent."""
    folder = shared_dir() / "data"
    if not (folder / "tpugraphs").is_dir():
        pytest.skip(f"no real data at {folder}; set {SHARED_VARIABLE}")
    return folder.resolve()
