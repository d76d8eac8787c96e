"""Tile kernels: small fused programs, tile sizes for them, and an analytic runtime.

With output dimensions D_i tiled by t_i and contracted dimensions K_j (window sizes, then input features, of a
convolution; the contracted one of a dot) tiled by k_j, the runtime in ns is

    runtime = tiles * (TILE_OVERHEAD + compute + bytes / BANDWIDTH * (SPILL if bytes > FAST_MEMORY else 1))
    tiles   = product of ceil(D_i / t_i) * product of ceil(K_j / k_j)
    padded  = product of t_i, with the minor-most t rounded up to 128 and the next one to 8
    compute = padded * (elementwise nodes / LANES + product of k_j / MACS)
    bytes   = element size * (2 * padded + t_minor * product of k_j)

so small tiles have overhead, large ones spill, and sizes that do not divide waste work in the remainder. Bounds that
are all 0 are one whole tile.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator

from hlorank.data.configurations import LAYOUT_DIMS, TILE_FEATURES, MeasuredGraph, Measurements, TileConfigurations
from hlorank.data.graph import Float32, Graph, Int64
from hlorank.fetch.synthetic.layouts import measure
from hlorank.fetch.synthetic.program import (
    BINARY,
    DIMS,
    ELEMENT,
    ELEMENT_BYTES,
    ELEMENTWISE,
    INPUT_FEATURE,
    OPCODES,
    UNARY,
    WINDOW_SIZE,
    Program,
    Shape,
    convolution_columns,
)
from hlorank.fetch.synthetic.runtime import Float64

TILE_OVERHEAD = 300.0  # ns
BANDWIDTH = 300.0  # bytes per ns
FAST_MEMORY = 2**21  # bytes
SPILL = 4.0
LANES = 1024.0  # elementwise operations per ns
MACS = 16_384.0  # multiply-adds per ns

MIN_NODES, MAX_NODES = 2, 60
# Tiles with equal features: one kernel in five has all-zero rows, whose runtimes spread by this much.
_UNTILED, _UNSEEN = 0.2, 0.2
_KERNEL, _OUTPUT = 0, 8
_ATTEMPTS = 8
_MAX_TILES = 128


def tile_kernel(
    rng: Generator, nodes: int, configurations: int, repeated: float, noise: float, name: str = "synthetic"
) -> MeasuredGraph:
    """Draw a kernel with measured tile sizes.

    Args:
        rng: random generator of every choice.
        nodes: number of nodes, 2 to 60; from 4 on, half of the kernels have a dot or a convolution.
        configurations: their number; the first is the default tile, the largest that fits into fast memory.
        repeated: share of the configurations that repeat another one exactly; more if the kernel has too few.
        noise: standard deviation of the log-normal factor of each measurement.
        name: the kernel's name.

    Returns:
        The kernel; runtimes in ns are `tile_runtime` times noise, the normalizer is the default tile's runtime. One
        kernel in five has only all-zero rows with different runtimes, as some real ones have.
    """
    graph = _build_kernel(rng, nodes)
    untiled = rng.random() < _UNTILED
    distinct = max(1, configurations - round(repeated * configurations))
    rows = np.zeros((1, TILE_FEATURES), dtype=np.float32) if untiled else _draw_tiles(rng, graph, distinct)
    order = np.concatenate([np.arange(len(rows)), rng.integers(len(rows), size=configurations - len(rows))])
    order[1:] = rng.permutation(order[1:])
    tiles = TileConfigurations(rows[order])
    runtime = tile_runtime(graph, tiles)
    measured = measure(rng, runtime, math.hypot(noise, _UNSEEN) if untiled else noise)
    return MeasuredGraph(name, graph, tiles, Measurements(measured, np.full_like(measured, measured[0])))


def tile_runtime(graph: Graph, tiles: TileConfigurations) -> Float64:
    """Return the runtime without noise, (configurations,) float64, ns, by the formula of the module."""
    dims, contracted = _extents(graph)
    t = _bounds(tiles.feat, _OUTPUT, dims)
    k = _bounds(tiles.feat, _KERNEL, contracted)
    count = np.ceil(dims / t).prod(axis=1) * np.ceil(contracted / k).prod(axis=1)
    lanes = np.array([1] * (len(dims) - 2) + [8, 128][-len(dims) :])
    padded = (np.ceil(t / lanes) * lanes).prod(axis=1)
    depth = k.prod(axis=1) if len(contracted) else np.zeros(len(t))
    work = np.isin(graph.node_opcode, [OPCODES[name] for name in ELEMENTWISE]).sum()
    width = ELEMENT_BYTES[graph.node_feat[-1, ELEMENT : ELEMENT + len(ELEMENT_BYTES)].argmax()]
    moved = width * (2 * padded + t[:, -1] * depth)
    transfer = moved / BANDWIDTH * np.where(moved > FAST_MEMORY, SPILL, 1.0)
    return np.asarray(count * (TILE_OVERHEAD + padded * (work / LANES + depth / MACS) + transfer))


def _extents(graph: Graph) -> tuple[Int64, Int64]:
    """Return the root's dimensions, and the contracted ones of the kernel's dot or convolution."""
    dims = graph.node_feat[:, DIMS : DIMS + LAYOUT_DIMS].astype(np.int64)
    root = dims[-1][dims[-1] > 0]
    for node in np.flatnonzero(np.isin(graph.node_opcode, [OPCODES["convolution"], OPCODES["dot"]])):
        operand = dims[graph.edge_index[np.searchsorted(graph.edge_index[:, 0], node), 1]]
        if graph.node_opcode[node] == OPCODES["dot"]:
            return root, operand[operand > 0][-1:]
        window = graph.node_feat[node, WINDOW_SIZE : WINDOW_SIZE + len(root) - 2].astype(np.int64)
        return root, np.append(window, operand[int(graph.node_feat[node, INPUT_FEATURE])])
    return root, np.zeros(0, dtype=np.int64)


def _bounds(feat: Float32, start: int, extents: Int64) -> Float64:
    """Return (configurations, dimensions) tile sizes, the whole extent where they are 0."""
    bounds = feat[:, start : start + len(extents)].astype(np.float64)
    return np.where(bounds > 0, bounds, extents)


def _build_kernel(rng: Generator, nodes: int) -> Graph:
    program = Program()
    if nodes == MIN_NODES:
        dims: Shape = (int(rng.choice((8, 32, 100))), int(rng.choice((64, 300, 1024))))
        program.add("copy", dims, [program.add("parameter", dims)])
        return _finish(program)
    product = nodes >= 4 and rng.random() < 0.5
    value = _product(rng, program) if product else program.add("parameter", _draw_dims(rng, int(rng.integers(2, 5))))
    dims = program.dims[value]
    values = [value]
    while (left := nodes - len(program)) > 0:
        kind = rng.random()
        if left >= 2 and kind < 0.2:
            values.append(program.add("add", dims, [values[-1], program.add("parameter", dims)]))
        elif left >= 3 and kind < 0.4:
            scalar = program.add("broadcast", dims, [program.add("constant", ())])
            values.append(program.add("multiply", dims, [values[-1], scalar]))
        elif kind < 0.7 and len(values) > 1:
            other = values[rng.integers(len(values) - 1)]
            values.append(program.add(str(rng.choice(BINARY)), dims, [values[-1], other]))
        else:
            values.append(program.add(str(rng.choice(UNARY)), dims, values[-1:]))
    return _finish(program)


def _finish(program: Program) -> Graph:
    program.mark_root()
    return program.graph()


def _draw_dims(rng: Generator, rank: int) -> Shape:
    return (*rng.choice((2, 7, 14, 16, 28, 56), rank - 1).tolist(), int(rng.choice((48, 64, 128, 256, 320, 1000))))


def _product(rng: Generator, program: Program) -> int:
    """Add a convolution or a dot of two parameters, and return it."""
    if rng.random() < 0.5:
        rows, depth, columns = (int(size) for size in rng.choice((64, 100, 256, 512, 1024), 3))
        operands = [program.add("parameter", (rows, depth)), program.add("parameter", (depth, columns))]
        return program.add("dot", (rows, columns), operands)
    dims = _draw_dims(rng, 4)
    window, features = (int(rng.choice((1, 3, 5))),) * 2, int(rng.choice((32, 64, 128, 256)))
    operands = [program.add("parameter", dims), program.add("parameter", (*window, dims[-1], features))]
    columns_of = convolution_columns(window, 1, 4)
    return program.add("convolution", (*dims[:-1], features), operands, columns=columns_of)


def _draw_tiles(rng: Generator, graph: Graph, wanted: int) -> Float32:
    """Draw up to `wanted` distinct rows, the default tile first; a row has at most about _MAX_TILES tiles."""
    dims, contracted = _extents(graph)
    extents = np.concatenate([dims, contracted])
    rows = _rows(_default_tile(graph, dims, contracted)[None], len(dims))
    for _ in range(_ATTEMPTS):
        cuts = rng.uniform(0, math.log(_MAX_TILES), (wanted, 1)) * rng.dirichlet(np.ones(len(extents)), wanted)
        sizes = np.ceil(extents / np.floor(np.exp(cuts))).astype(np.int64)
        rows = np.concatenate([rows, _rows(sizes, len(dims))])
        _, first = np.unique(rows, axis=0, return_index=True)
        rows = rows[np.sort(first)]
    return rows[:wanted]


def _default_tile(graph: Graph, dims: Int64, contracted: Int64) -> Int64:
    """Return the whole extents, halved from the major-most dimension on until a tile fits into fast memory."""
    tile = np.concatenate([dims, contracted])
    width = int(ELEMENT_BYTES[graph.node_feat[-1, ELEMENT : ELEMENT + len(ELEMENT_BYTES)].argmax()])
    while 3 * width * tile[: len(dims)].prod() > FAST_MEMORY:
        largest = int(np.argmax(tile[: len(dims) - 1] > 1)) if (tile[: len(dims) - 1] > 1).any() else len(dims) - 1
        tile[largest] = -(-tile[largest] // 2)
    return tile


def _rows(tiles: Int64, rank: int) -> Float32:
    """Return the official columns of (configurations, output then contracted dimensions) tile sizes."""
    rows = np.zeros((len(tiles), TILE_FEATURES), dtype=np.float32)
    for start, bounds in ((_OUTPUT, tiles[:, :rank]), (_KERNEL, tiles[:, rank:])):
        if bounds.shape[1]:  # the product of no bounds is 0
            rows[:, start : start + bounds.shape[1]] = bounds
            rows[:, start + 6] = bounds.sum(axis=1)
            rows[:, start + 7] = bounds.prod(axis=1)
    return rows
