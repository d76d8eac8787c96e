from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from hlorank.config import ConfigError
from hlorank_collect.tiles.compiled_tiles import CompiledTiles, gcc_version
from hlorank_collect.tiles.kernel import Kernel
from hlorank_collect.tiles.nest import Nest
from hlorank_collect.tiles.reference import random_inputs
from hlorank_collect.tiles.tile_sizes import draw_tiles


def test_a_missing_gcc_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs gcc.*install"):
        gcc_version()


def test_tiles_are_timed(dot: Kernel, gcc: str, tmp_path: Path) -> None:
    nest = Nest(dot.body)
    rng = np.random.default_rng(0)
    tiles = draw_tiles(nest, 5, rng)
    compiled = CompiledTiles(nest, dot.body, tiles, random_inputs(dot.body, rng), tmp_path, timeout=60)
    # 17,280 multiply-adds take more than 100 ns and less than a second.
    assert all(100 < compiled.time(number) < 1e9 for number in range(5))


def test_gcc_has_a_time_limit(dot: Kernel, gcc: str, tmp_path: Path) -> None:
    nest = Nest(dot.body)
    rng = np.random.default_rng(0)
    with pytest.raises(subprocess.TimeoutExpired):
        CompiledTiles(nest, dot.body, draw_tiles(nest, 20, rng), random_inputs(dot.body, rng), tmp_path, timeout=0.001)
