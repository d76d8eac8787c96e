"""The attack of benchmarks/attack_server.py on `hlorank serve`, with part of its kinds of requests."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from hlorank.data.collection import Collection, graph_files

SERVER = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "attack_server.py"))


def some_graph(tiny_collections: Path) -> Path:
    return graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")[0]


@pytest.mark.slow
def test_hostile_requests(linear_model: Callable[..., Path], tiny_collections: Path, tmp_path: Path) -> None:
    results = SERVER["attack"](linear_model(), some_graph(tiny_collections), tmp_path, 130)
    assert results["findings"] == []
    assert results["kinds"] >= 120
    assert results["correct requests"]["accepted"] == results["correct requests"]["attacked"]
    assert results["attack"]["clean errors"] > 90
