"""A server of archives, and the folders that fetch writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fetch.tpugraphs.archives import XLA, archives

if TYPE_CHECKING:
    from tests.fetch.conftest import Server


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    return tmp_path / "downloads"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "raw" / XLA.path


@pytest.fixture
def served(server: Server) -> Server:
    server.files = archives()
    return server
