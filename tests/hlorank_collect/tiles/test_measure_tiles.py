from __future__ import annotations

from itertools import chain, repeat

import pytest

from hlorank_collect.tiles.compiled_tiles import CompiledTiles
from hlorank_collect.tiles.kernel import Kernel, UnsupportedKernelError
from hlorank_collect.tiles.measure_tiles import TooFastError, measure_tiles
from hlorank_collect.tiles.nest import Nest
from hlorank_collect.tiles.tile_task import TileTask


def _read(monkeypatch: pytest.MonkeyPatch, first: float, others: float) -> None:
    """Replace the runtimes, in ns, of the first run of a tile and of all others."""
    runtimes = chain([first], repeat(others))
    monkeypatch.setattr(CompiledTiles, "time", lambda *_, **__: next(runtimes))


def test_a_kernel_with_one_slow_trial_is_measured(task: TileTask, dot: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    _read(monkeypatch, 1e9, 1e6)
    measured = measure_tiles(dot, Nest(dot.body), task, lambda _: None)
    assert len(measured.tiles) == 4
    assert (measured.times == 1e6).all()


def test_slow_and_fast_kernels_are_left_out(task: TileTask, dot: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    _read(monkeypatch, 1e9, 1e8)
    with pytest.raises(UnsupportedKernelError, match="10 ms"):
        measure_tiles(dot, Nest(dot.body), task, lambda _: None)
    _read(monkeypatch, 1e6, 1e4)
    with pytest.raises(TooFastError, match="20 us"):
        measure_tiles(dot, Nest(dot.body), task, lambda _: None)
