"""Generated tile kernels and their runtime."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.data.configurations import TileConfigurations
from hlorank.fetch.synthetic import (
    tile_kernel,
    tile_runtime,
)
from hlorank.fetch.synthetic.program import Program
from hlorank.fetch.synthetic.tiles import FAST_MEMORY
from tests.fetch.synthetic.drawn import (
    shape,
    tiles,
)


@settings(deadline=None, max_examples=60)
@given(nodes=st.integers(2, 60), configurations=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_kernels_are_sound(nodes: int, configurations: int, seed: int) -> None:
    kernel = tile_kernel(np.random.default_rng(seed), nodes, configurations, 0.2, 0.001)
    graph, feat = kernel.graph, tiles(kernel).feat
    assert graph.nodes == nodes
    assert len(feat) == configurations
    dims = shape(graph, nodes - 1)
    for start in (0, 8):
        bounds = feat[:, start : start + 6]
        assert (feat[:, start + 6] == bounds.sum(axis=1)).all()
        product = np.where(bounds > 0, bounds, 1).prod(axis=1) * bounds.any(axis=1)
        assert (feat[:, start + 7] == product).all()
    assert (feat[:, 8 : 8 + len(dims)] <= dims).all()
    if feat.any() and 12 * math.prod(dims) <= FAST_MEMORY:
        assert tuple(feat[0, 8 : 8 + len(dims)]) == dims  # the default is the largest tile that fits
    assert (feat[:, 8 + len(dims) : 14] == 0).all()
    assert (feat[:, 16:] == 0).all()
    assert kernel.measurements.normalizer is not None
    assert (kernel.measurements.normalizer == kernel.measurements.runtime[0]).all()
    assert np.setdiff1d(np.arange(nodes), graph.edge_index[:, 1]).tolist() == [nodes - 1]


def test_tile_runtime_of_a_dot() -> None:
    program = Program()
    operands = [program.add("parameter", (256, 512)), program.add("parameter", (512, 300))]
    program.add("dot", (256, 300), operands)
    feat = np.zeros((2, 24), dtype=np.float32)
    feat[0, [0, 6, 7, 8, 9, 14, 15]] = [200, 200, 200, 64, 128, 192, 8192]
    first, whole = tile_runtime(program.graph(), TileConfigurations(feat))
    # ceil(256 / 64) ceil(300 / 128) ceil(512 / 200) tiles of 64 x 128, which fills the registers.
    moved = 4 * (2 * 64 * 128 + 128 * 200)
    assert first == pytest.approx(4 * 3 * 3 * (300 + 8192 * 200 / 16_384 + moved / 300))
    moved = 4 * (2 * 256 * 384 + 300 * 512)  # 300 columns take 384 lanes; one tile, and it fits
    assert whole == pytest.approx(300 + 256 * 384 * 512 / 16_384 + moved / 300)


def test_large_tiles_spill_and_elementwise_work_counts() -> None:
    program = Program()
    x = program.add("parameter", (1024, 1024))
    program.add("tanh", (1024, 1024), [program.add("negate", (1024, 1024), [x])])
    whole = tile_runtime(program.graph(), TileConfigurations(np.zeros((1, 24), dtype=np.float32)))
    assert whole == pytest.approx(300 + 2**20 * 2 / 1024 + 8 * 2**20 / 300 * 4)


def test_kernels_vary_and_some_rows_repeat() -> None:
    kernels = [tile_kernel(np.random.default_rng(seed), 12, 50, 0.2, 0.001) for seed in range(30)]
    untiled = [not tiles(k).feat.any() for k in kernels]
    assert 0 < sum(untiled) < 15
    for kernel, zero in zip(kernels, untiled, strict=True):
        spread = kernel.measurements.runtime.max() / kernel.measurements.runtime.min()
        assert 1.2 < spread < 500
        distinct = len(np.unique(tiles(kernel).feat, axis=0))
        assert distinct == 1 if zero else distinct == 40
