"""Loop nests compared with XLA, in tiles that divide the dimensions and in tiles that do not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlorank_collect.tiles.compiled_tiles import CompiledTiles
from hlorank_collect.tiles.kernel import Body, Kernel, UnsupportedKernelError
from hlorank_collect.tiles.nest import Nest, Tile
from hlorank_collect.tiles.reference import evaluate, random_inputs
from hlorank_collect.tiles.tile_sizes import default_tile
from hlorank_collect.verify import difference

from .conftest import HarvestOf

lax = jax.lax
POSITIONS = np.zeros((12,), np.int32)
FLAGS = np.zeros((12, 20), np.bool_)
BITS = np.zeros((12, 20), np.uint32)


def conv(x: Any, k: Any, layout: str = "NHWC", **options: Any) -> Any:
    kernel = "OIHW" if layout == "NCHW" else "HWIO"
    return lax.conv_general_dilated(x, k, dimension_numbers=(layout, kernel, layout), **options)


DILATED: dict[str, Any] = {
    "window_strides": (1, 1),
    "padding": ((2, 1), (1, 2)),
    "lhs_dilation": (2, 2),
    "rhs_dilation": (1, 2),
}
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "elementwise": (lambda x, y: jnp.tanh(x) * jnp.exp(y) + jnp.abs(x - y), ((12, 20), (12, 20))),
    "positive": (lambda x: jnp.log(x) + jax.lax.rsqrt(x) / jnp.power(x, 1.5), ((12, 20),)),
    "broadcast and select": (lambda x, b: jnp.where(x > b, x, b), ((12, 20), (20,))),
    "transpose": (lambda x: x.transpose(2, 0, 1) + 1, ((6, 10, 14),)),
    "reshape": (lambda x: jnp.sin(x).reshape(15, 8).T, ((12, 10),)),
    "slice, pad and reverse": (lambda x: jnp.pad(x[::2, 3:], ((1, 2), (0, 3)))[::-1] * 2, ((12, 20),)),
    "interior padding": (lambda x: lax.pad(jnp.tanh(x), 1.0, ((1, 0, 2), (0, 1, 1))), ((5, 7),)),
    "concatenate": (lambda x, y: jnp.concatenate([x, jnp.cos(y), x], 1), ((12, 7), (12, 10))),
    "iota": (lambda x: x + jnp.arange(20), ((12, 20),)),
    "gather": (lambda x, i: x[i] * 2, ((30, 20), POSITIONS)),
    "dynamic slice": (lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (7, 9)) * 2, ((30, 20), POSITIONS)),
    "dynamic update": (lambda x, y, i: lax.dynamic_update_slice(x + 1, y, (i[0], 3)), ((30, 20), (4, 5), POSITIONS)),
    "booleans": (lambda x, f: (x > 0) & ~f, ((12, 20), FLAGS)),
    "bits": (lambda x: (x << 5) ^ (x >> 3) | ~x, (BITS,)),
    "dot": (lambda x, y: x @ y, ((20, 24), (24, 36))),
    "dot of transposed": (lambda x, y: jnp.einsum("km,nk->mn", x, y), ((24, 20), (36, 24))),
    "batched dot": (lambda x, y: jnp.einsum("bhqd,bhkd->bhqk", x, y), ((2, 3, 10, 16), (2, 3, 14, 16))),
    "convolution": (lambda x, k: conv(x, k, window_strides=(1, 1), padding="SAME"), ((2, 9, 10, 6), (3, 3, 6, 8))),
    "strided": (lambda x, k: conv(x, k, "NCHW", window_strides=(2, 2), padding="SAME"), ((2, 6, 9, 10), (8, 6, 3, 3))),
    "dilated": (
        lambda x, k: conv(x, k, **DILATED),
        ((2, 9, 10, 6), (3, 3, 6, 8)),
    ),
    "depthwise": (
        lambda x, k: conv(x, k, window_strides=(1, 1), padding="SAME", feature_group_count=6),
        ((2, 9, 10, 6), (3, 3, 1, 6)),
    ),
    "grouped": (
        lambda x, k: conv(x, k, window_strides=(1, 1), padding="VALID", feature_group_count=3),
        ((2, 9, 10, 6), (3, 3, 2, 12)),
    ),
    "column sums": (lambda x: (x * 2).sum(0), ((50, 20),)),
    "row maxima": (lambda x: jnp.tanh(x).max(1), ((12, 50),)),
    "sum of all": (lambda x: x.sum() / 3, ((6, 20),)),
    "any": (lambda f: f.any(1), (FLAGS,)),
    "pooling": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"), ((2, 9, 9, 5),)),
}  # fmt: skip


def some_tiles(nest: Nest) -> list[Tile]:
    """Return the default tile, one tile of everything, tiles of one point, and sizes that mostly do not divide."""
    extents = (*nest.output, *nest.reduced)
    sizes = [extents, [1] * len(extents), [math.ceil(n / 2) for n in extents], [min(n, 3) for n in extents]]
    split = len(nest.output)
    return [default_tile(nest), *(Tile(tuple(some[:split]), tuple(some[split:])) for some in sizes)]


def check(body: Body, folder: Path) -> None:
    nest = Nest(body)
    tiles = some_tiles(nest)
    values = random_inputs(body, np.random.default_rng(0))
    expected = evaluate(body, values)
    assert np.isfinite(expected).all()
    compiled = CompiledTiles(nest, body, tiles, values, folder, timeout=60)
    for number, tile in enumerate(tiles):
        assert difference([expected], [compiled.run(number)]) is None, tile


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_tiles_compute_what_xla_computes(name: str, harvest_of: HarvestOf, gcc: str, tmp_path: Path) -> None:
    function, arguments = FUNCTIONS[name]
    found = harvest_of(function, *arguments)
    assert found.kernels
    assert not found.left_out
    for number, kernel in enumerate(found.kernels):
        (tmp_path / str(number)).mkdir()
        check(kernel.body, tmp_path / str(number))


def test_a_product_agrees_with_numpy(dot: Kernel, gcc: str, tmp_path: Path) -> None:
    nest = Nest(dot.body)
    left, right = random_inputs(dot.body, np.random.default_rng(0))
    compiled = CompiledTiles(nest, dot.body, [Tile((7, 5), (9,))], [left, right], tmp_path, timeout=60)
    np.testing.assert_allclose(compiled.run(0), left @ right, rtol=1e-4, atol=1e-5)


def test_a_wrong_result_is_found(dot: Kernel, gcc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nest = Nest(dot.body)
    function = Nest.function

    def one_short(self: Nest, name: str, tile: Tile) -> str:
        return re.sub(r"(start_r0 \+ \d+)", r"\1 - (start_r0 > 0)", function(self, name, tile))

    monkeypatch.setattr(Nest, "function", one_short)
    values = random_inputs(dot.body, np.random.default_rng(0))
    compiled = CompiledTiles(
        nest, dot.body, [Tile((20, 36), (24,)), Tile((20, 36), (8,))], values, tmp_path, timeout=60
    )
    expected = evaluate(dot.body, values)
    assert difference([expected], [compiled.run(0)]) is None
    assert difference([expected], [compiled.run(1)]) is not None


@pytest.mark.parametrize("tile", [Tile((20,), (24,)), Tile((21, 36), (24,)), Tile((20, 36), (0,)), Tile((20, 36))])
def test_a_tile_that_does_not_fit_is_refused(dot: Kernel, tile: Tile) -> None:
    with pytest.raises(ValueError, match=r"Tile\("):
        Nest(dot.body).function("f", tile)


def test_the_innermost_loop_accesses_memory_contiguously(harvest_of: HarvestOf) -> None:
    def innermost(function: Callable[..., Any], *shapes: tuple[int, ...]) -> str:
        (kernel,) = harvest_of(function, *shapes).kernels
        nest = Nest(kernel.body)
        found = re.search(r"simd.*\nfor \(long (\w+)", nest.function("f", default_tile(nest)))
        assert found
        return found[1]

    assert innermost(lambda x, y: x @ y, (20, 24), (24, 36)) == "i1"
    assert innermost(lambda x, y: jnp.einsum("mk,nk->mn", x, y), (20, 24), (36, 24)) == "r0"
    assert innermost(lambda x: x.sum(0), (20, 24)) == "i0"


def test_a_result_that_reads_a_sum_twice_is_left_out(harvest_of: HarvestOf, dot: Kernel) -> None:
    body = dot.body
    root = body.instructions[body.root]
    transposed = type(root)(opcode="transpose", id=900, operand_ids=[root.id], dimensions=[1, 0], shape=root.shape)
    transposed.shape.dimensions[:] = [36, 20]
    broadcast = type(root)(opcode="broadcast", id=901, operand_ids=[900], dimensions=[1, 2], shape=root.shape)
    broadcast.shape.dimensions[:] = [5, 36, 20]
    broadcast.shape.layout.minor_to_major[:] = [2, 1, 0]
    instructions = {**body.instructions, 900: transposed}
    Nest(Body(instructions, 900, body.regions))  # one sum for each point
    with pytest.raises(UnsupportedKernelError, match="contraction"):
        Nest(Body({**instructions, 901: broadcast}, 901, body.regions))
