from __future__ import annotations

import numpy as np

from hlorank_collect.tiles.kernel import Kernel
from hlorank_collect.tiles.nest import Nest, Tile
from hlorank_collect.tiles.tile_sizes import choices, default_tile, draw_tiles

from .conftest import HarvestOf


def test_tiles_are_distinct_and_fit_and_the_default_is_first(dot: Kernel) -> None:
    nest = Nest(dot.body)
    tiles = draw_tiles(nest, 48, np.random.default_rng(0))
    assert len(set(tiles)) == len(tiles) == 48
    assert tiles[0] == default_tile(nest) == Tile((20, 36), (24,))
    for tile in tiles:
        assert all(1 <= size <= limit for size, limit in zip(tile.output, (20, 36), strict=True))
        assert 1 <= tile.reduction[0] <= 24
    assert tiles == draw_tiles(nest, 48, np.random.default_rng(0))
    assert tiles != draw_tiles(nest, 48, np.random.default_rng(1))


def test_a_small_kernel_has_few_tiles(harvest_of: HarvestOf) -> None:
    (kernel,) = harvest_of(lambda x: x + 1, (4,)).kernels
    tiles = draw_tiles(Nest(kernel.body), 48, np.random.default_rng(0))
    assert sorted(tile.output for tile in tiles) == [(1,), (2,), (3,), (4,)]


def test_the_default_tile_fills_inner_dimensions_first(harvest_of: HarvestOf) -> None:
    (kernel,) = harvest_of(lambda x, y: x @ y, (100, 600), (600, 300)).kernels
    assert default_tile(Nest(kernel.body)) == Tile((8, 300), (256,))


def test_choices_are_powers_of_two_three_times_those_and_divisors() -> None:
    assert choices(20) == [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20]
    assert choices(1) == [1]
