"""Costs of layouts: copies of tensors to other layouts, which and how they read, and on TPUs padding to tiles.

XLA's layout assignment propagates the layouts that configured operations demand, and inserts a copy where a tensor has
another layout than its user demands (`layout_assignment.h` of openxla/xla). Elementwise operations and transposes take
any layout, on TPUs others, too (`copy_tensors`). Here, as a simplification, all other results are row-major, XLA's
default, and operations demand no layout of their operands.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS, LAYOUT_VALUES
from hlorank.data.graph import Float32, Graph, Int64
from hlorank.featurize.columns import DIMS, DIMS_PRODUCT, element_bytes, node_layout, row_major, without_ones
from hlorank.featurize.features import column_blocks, distinct_rows
from hlorank.featurize.index_maps import operand_pairs
from hlorank.featurize.tile_padding import computed_layouts, tile_padding, without_defaults
from hlorank.hlo.node_features import CONFIGURABLE, DIMENSIONS, OPCODES

Codes = NDArray[np.unsignedinteger[Any]]

COSTS = 3
"""Columns of `copy_moves` and `tile_padding`, of which a collection has those of its backend."""
READS = 7
"""Columns of `copied_bytes`."""
COLUMN, FLEXIBLE, LAST, ITEM_BYTES = range(4)
AXES, SHAPE, GIVEN = (slice(4 + place * LAYOUT_DIMS, 4 + (place + 1) * LAYOUT_DIMS) for place in range(3))
"""Columns of the tensors that `copy_tensors` returns."""

_LINE_BYTES = 64
_CACHES = np.array([16e3, 48e3, 512e3, 4e6])
_TENSORS = (-1, len(LAYOUT_TENSORS), LAYOUT_DIMS)
_TRANSPOSE, _RESHAPE, _CONCATENATE = OPCODES["transpose"], OPCODES["reshape"], OPCODES["concatenate"]
# Operations whose result may have the shape of an operand, but not each element where the operand has it.
_MOVING = [
    *(OPCODES[name] for name in (*CONFIGURABLE, "reverse", "sort", "copy", "gather", "scatter", "concatenate", "pad")),
    *(OPCODES[name] for name in ("dynamic-slice", "dynamic-update-slice", "slice", "reduce", "reduce-window")),
    *(OPCODES[name] for name in ("select-and-scatter", "iota", "parameter", "constant", "tuple", "get-tuple-element")),
]
# Operations whose result has the dimensions of an operand in their order, with other sizes.
_KEEPING = [OPCODES[name] for name in ("pad", "slice", "dynamic-slice", "dynamic-update-slice", "reverse")]
_KEEPING += [OPCODES["reduce-window"], OPCODES["select-and-scatter"]]
_GIVEN = [OPCODES["parameter"], OPCODES["reshape"]]


def _kept_in_order(before: Int64, after: Int64, sizes: NDArray[Any]) -> tuple[Int64, Int64, NDArray[np.bool_], Any]:
    """Compare layouts (..., 6), minor_to_major padded with -1, of tensors of sizes (..., 6), 0 for no dimension.

    A layout of fewer dimensions, as on TPUs, gives the order of the minor dimensions. The result is both layouts
    without dimensions of size 1, which change no order in memory; a mask of the dimensions, (..., 6) from the minor
    dimension outwards, that a copy leaves in place; and the number of elements that stay contiguous.
    """
    dims = np.pad(np.maximum(sizes, 1).astype(np.float64), [(0, 0)] * (sizes.ndim - 1) + [(0, 1)], constant_values=1)
    before, after = without_ones(before, sizes), without_ones(after, sizes)
    same = np.logical_and.accumulate((before == after) | (after < 0), axis=-1)
    kept = np.take_along_axis(dims, before % (LAYOUT_DIMS + 1), axis=-1)
    return before, after, same, np.where(same, kept, 1).prod(axis=-1)


def copy_moves(own: NDArray[np.int8], shares: Float32, layouts: NDArray[np.int8], shapes: Float32) -> Float32:
    """Return the cost of copies of output, input and kernel from their layouts in the graph, `own`, to `layouts`.

    Both are (rows, 18); a layout without dimensions moves nothing. `shapes`, (rows, 18), are the dimensions, 0 for
    none, and `shares`, (rows, 3), the tensors' shares in the bytes of the graph. The result, (rows, 3), has the sum of
    the shares of tensors whose layout differs, the sum of the shares of tensors whose minor dimension differs, and the
    sum of share / sqrt(elements that stay contiguous) over tensors whose layout differs.
    """
    source, target = (part.reshape(_TENSORS).astype(np.int64) for part in (own, layouts))
    before, _, same, run = _kept_in_order(source, target, shapes.reshape(_TENSORS))
    moved = (before >= 0).any(axis=2) & ~same[..., -1]
    columns = np.stack([moved, moved & ~same[..., 0], moved / np.sqrt(run)], axis=2)
    summed: NDArray[np.float64] = (shares[..., None] * columns).sum(axis=1)
    return summed.astype(np.float32)


def copied_bytes(before: Int64, after: Int64, sizes: Int64, item_bytes: Int64) -> NDArray[np.float64]:
    """Return the bytes of copies of tensors, by how they are read.

    A copy is a loop nest over the new layout, from the minor dimension outwards. It reads in order if both layouts have
    the same minor dimension. Otherwise each element is in another cache line, and a line is read again after as many
    iterations as the loops within the old minor dimension have.

    Layouts and sizes are (copies, 6), as `_kept_in_order` takes them. The result, (copies, `READS`), is zero for equal
    layouts: the bytes of tensors that are read in order; of tensors of which up to 16 kB, 48 kB, 512 kB, 4 MB or more
    are touched before a line is read again, about the sizes of caches; and of all tensors, divided by the elements that
    stay contiguous.
    """
    before, after, same, run = _kept_in_order(before, after, sizes)
    dims = np.pad(np.maximum(sizes, 1).astype(np.float64), ((0, 0), (0, 1)), constant_values=1)
    total = dims.prod(axis=1) * item_bytes
    minor = (after == before[:, :1]).argmax(axis=1)
    copies = np.arange(len(before))
    loops = np.insert(np.take_along_axis(dims, after % (LAYOUT_DIMS + 1), axis=1), 0, 1, axis=1)
    touched = np.minimum(np.cumprod(loops, axis=1)[copies, minor] * _LINE_BYTES, total)
    columns = np.zeros((len(before), READS))
    columns[copies, np.where(minor == 0, 0, 1 + np.searchsorted(_CACHES, touched))] = total
    columns[:, -1] = total / run
    return np.where(same[:, -1:], 0, columns)


def own_layouts(graph: Graph, tensors: Int64) -> NDArray[np.int8]:
    """Return the layouts in the graph of `configured_tensors`, row-major where none was captured: (nodes, 18)."""
    own = np.where(tensors[..., None] >= 0, layouts_of(graph)[tensors], -1)
    return own.astype(np.int8).reshape(-1, LAYOUT_VALUES)


def layouts_of(graph: Graph) -> Int64:
    """Return the layout of each node's result in the graph, row-major where none was captured: (nodes, 6)."""
    captured = node_layout(graph.node_feat)
    rank = (graph.node_feat[:, DIMS] > 0).sum(axis=1)
    return np.where((captured >= 0).any(axis=1, keepdims=True), captured, row_major(rank))


def byte_shares(graph: Graph, tensors: Int64) -> Float32:
    """Return the shares of `configured_tensors` in the bytes of all results of the graph, 0 for no tensor."""
    sizes = graph.node_feat[:, DIMS_PRODUCT].astype(np.float64) * element_bytes(graph.node_feat)
    return np.where(tensors >= 0, sizes[tensors] / max(sizes.sum(), 1), 0).astype(np.float32)


def configured_tensors(graph: Graph, node_ids: Int64, codebook: NDArray[np.int8], codes: Codes) -> Int64:
    """Return the nodes of output, input and kernel of configurable nodes, (nodes, 3), -1 for none.

    The order of operands is inferred by a heuristic: `operand_pairs`.
    """
    named = np.array([codebook[rows].max(axis=0) for rows in _used(codes)]).reshape(_TENSORS).max(axis=2)
    return np.column_stack([node_ids, operand_pairs(graph, node_ids, named[:, 1:].astype(np.int64) + 1)])


def sized_layouts(
    graph: Graph, tensors: Int64, codebook: NDArray[np.int8], codes: Codes, *, costs: bool, on_tpu: bool = False
) -> tuple[NDArray[np.int8], Float32, Float32, Codes]:
    """Return codebook, sizes, costs and codes of `LayoutFeatures`, given a codebook of distinct rows of layouts.

    A row of layouts has other sizes at a node of other shapes, and costs something else where the tensors have other
    layouts, so the rows of the new codebook are the distinct triples of layouts, sizes and costs. At each node, old and
    new codes are in bijection and in the same order, but on a TPU, where layouts are those of `without_defaults`; the
    new ones have the smallest unsigned type that fits.
    """
    used = _used(codes)
    shapes = np.where(tensors[..., None] >= 0, graph.node_feat[:, DIMS][tensors], np.float32(0))
    shapes = shapes.reshape(-1, LAYOUT_VALUES)
    costly = tensors if costs else np.full_like(tensors, -1)
    shares = byte_shares(graph, costly)
    cost: Callable[..., Float32] = tile_padding if on_tpu else copy_moves
    own = graph.node_opcode[tensors[:, :1]].astype(np.int8) if on_tpu else own_layouts(graph, costly)
    first, kind_of = distinct_rows(np.hstack([shapes, own, shares], dtype=np.float32))

    # Nodes of equal tensors share rows, and so do nodes where the layouts order equal sizes and move as much.
    lengths = [len(rows) for rows in used]
    keys = np.concatenate(used) * len(first) + np.repeat(kind_of, lengths)
    keys, pair_of = np.unique(keys, return_inverse=True)
    row, kind = np.divmod(keys, len(first))
    at, layouts = first[kind], codebook[row]
    if on_tpu:
        layouts = without_defaults(own[at], layouts, shapes[at])
        row = distinct_rows(layouts)[1]
    sizes = _ordered(shapes[at], layouts)
    costs_of_rows = cost(own[at], shares[at], layouts, shapes[at])
    _, read_of = distinct_rows(np.hstack([sizes, costs_of_rows]))
    keys, pair, code_of = np.unique(row * len(keys) + read_of, return_index=True, return_inverse=True)

    new = np.empty(codes.shape, dtype=np.min_scalar_type(len(keys) - 1))
    numbers = np.split(code_of[pair_of], np.cumsum(lengths)[:-1])
    table = np.empty(len(codebook), dtype=new.dtype)
    for part, block in column_blocks(codes):
        columns = np.empty(block.shape, dtype=new.dtype)
        for node, (old, column) in enumerate(zip(block, columns, strict=True), part.start):
            table[used[node]] = numbers[node]
            column[:] = table[old]
        new[:, part] = columns.T
    return layouts[pair], sizes[pair], costs_of_rows[pair], new


def _used(codes: Codes) -> list[Int64]:
    """Return the codes of each configurable node, increasing."""
    return [np.flatnonzero(np.bincount(column)) for _, block in column_blocks(codes) for column in block]


def _ordered(shapes: Float32, layouts: NDArray[np.int8]) -> Float32:
    """Return the sizes, of shapes (rows, 18), of the dimensions that layouts (rows, 18) name, else 0: (rows, 18)."""
    named = layouts.reshape(_TENSORS).astype(np.int64)
    sizes = np.take_along_axis(shapes.reshape(_TENSORS), np.maximum(named, 0), axis=2)
    return np.where(named >= 0, sizes, np.float32(0)).reshape(-1, LAYOUT_VALUES)


def copy_tensors(
    graph: Graph, node_ids: Int64, tensors: Int64, on_tpu: bool = False
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the tensors whose layouts depend on a configuration, and their uses, given the `configured_tensors`.

    On a TPU reshapes, which follow their operands, are not configurable, all results but these, parameters and those of
    configurable nodes take any layout, and a concatenation shares that of its largest operands.

    Returns:
        (tensors, 22) in topological order: the number of the configurable node whose output it is, or -1; 1 if it takes
        any layout; 1 if nothing uses it; the bytes of an element; of a transpose the operand's dimension that each
        dimension is, else 0 to 5; its dimensions; and its layout: of a configurable node on a TPU `computed_layouts`,
        of a parameter of the program and of what nothing uses that of the graph, else row-major. And (uses, 3), sorted:
        the tensor, the tensor that is computed from it, and the slot, 1 for input and 2 for kernel of a configurable
        node, 0 where any layout is taken.
    """
    shape = _whole_numbers(graph.node_feat[:, DIMS])
    configured = np.full(graph.nodes, -1, dtype=np.int32)
    configured[node_ids] = np.where(on_tpu & (graph.node_opcode[node_ids] == _RESHAPE), -1, np.arange(len(node_ids)))
    any_layout, axes = _links(graph, shape, configured, on_tpu)
    slots = [np.stack([tensors[:, slot], node_ids, np.full_like(node_ids, slot)], axis=1) for slot in (1, 2)]
    uses = np.concatenate(slots)
    reshaped = (uses[:, 2] == 2) & (graph.node_opcode[uses[:, 1]] == _RESHAPE)
    uses = uses[(uses[:, 0] >= 0) & ~reshaped & (configured[uses[:, 1]] >= 0)]
    ends = configured >= 0
    ends[uses[:, 0]] = True
    any_layout = any_layout[_reaching(graph.nodes, any_layout, ends)]
    uses = np.unique(np.concatenate([uses, any_layout]), axis=0)

    nodes = np.unique(np.concatenate([np.flatnonzero(configured >= 0), uses[:, :2].ravel()]))
    flexible = on_tpu & (configured < 0) & ~np.isin(graph.node_opcode, _GIVEN)
    flexible[any_layout[:, 1]] = True
    last = np.bincount(graph.edge_index[:, 1], minlength=graph.nodes) == 0
    scalars = [configured, flexible, last, element_bytes(graph.node_feat)]
    # XLA gives a transpose the layout in which it moves nothing, whatever is demanded of it.
    at_entry = (last & (graph.node_opcode != _TRANSPOSE)) | (graph.node_opcode == OPCODES["parameter"])
    given = np.where(at_entry[:, None], layouts_of(graph), row_major((shape > 0).sum(axis=1)))
    if on_tpu:
        given[node_ids] = computed_layouts(graph, node_ids)
    rows = [np.stack([column[nodes] for column in scalars], axis=1), axes[nodes], shape[nodes], given[nodes]]
    uses[:, :2] = np.searchsorted(nodes, uses[:, :2])
    return np.hstack(rows).astype(np.int32), uses.astype(np.int32)


def _links(
    graph: Graph, shape: NDArray[np.int32], configured: NDArray[np.int32], on_tpu: bool
) -> tuple[Int64, NDArray[np.int32]]:
    """Return the uses by operations that take any layout, (uses, 3), and the axes of all nodes, (nodes, 6)."""
    axes = np.tile(np.arange(LAYOUT_DIMS, dtype=np.int32), (graph.nodes, 1))
    users, operands = graph.edge_index.T
    transposes = (graph.node_opcode == _TRANSPOSE) & (configured < 0) & (np.bincount(users, minlength=graph.nodes) == 1)
    known = transposes[users]
    known[known] = _set_axes(graph, axes, shape, *graph.edge_index[known].T)
    elementwise = ~np.isin(graph.node_opcode, [*_MOVING, _TRANSPOSE]) & (configured < 0)
    takes_any = known | (elementwise[users] & (shape[users] == shape[operands]).all(axis=1))
    if on_tpu:
        rank = (shape > 0).sum(axis=1)
        sizes, largest = shape.prod(axis=1, where=shape > 0, dtype=np.float64), np.zeros(graph.nodes)
        np.maximum.at(largest, users, sizes[operands])
        opcodes = graph.node_opcode[users]
        keeping = np.isin(opcodes, _KEEPING) | ((opcodes == _CONCATENATE) & (sizes[operands] == largest[users]))
        takes_any |= keeping & (rank[users] == rank[operands]) & (rank[users] > 0)
    return np.stack([operands, users, np.zeros_like(users)], axis=1)[takes_any], axes


def _whole_numbers(columns: Float32) -> NDArray[np.int32]:
    """Return columns as int32, with numbers beyond 0 and 2^30, which only a damaged file has, replaced by these."""
    return np.clip(columns, 0, 2**30).astype(np.int32)


def _set_axes(
    graph: Graph, axes: NDArray[np.int32], shape: NDArray[np.int32], users: Int64, operands: Int64
) -> NDArray[np.bool_]:
    """Set the axes of the transposes that the features describe, and return the mask of these transposes."""
    read = _whole_numbers(graph.node_feat[users, DIMENSIONS.start : DIMENSIONS.stop])
    unused = np.arange(LAYOUT_DIMS) >= (shape[users] > 0).sum(axis=1, keepdims=True)
    read = np.where(unused, np.arange(LAYOUT_DIMS, dtype=np.int32), read)
    known = np.asarray((np.sort(read, axis=1) == np.arange(LAYOUT_DIMS)).all(axis=1))
    moved = np.take_along_axis(shape[operands], np.where(known[:, None], read, 0), axis=1)
    known &= (shape[users] == moved).all(axis=1)
    axes[users[known]] = read[known]
    return known


def _reaching(nodes: int, uses: Int64, ends: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask of uses (uses, 3) by operations of any layout that can pass on the layout of an end (nodes,)."""
    passing = ends.copy()
    passing[uses[:, 1]] = True  # another tensor has its own layout
    pairs = uses[passing[uses[:, 0]], :2].T
    links = coo_array((np.ones(pairs.shape[1]), (pairs[0], pairs[1])), shape=(nodes, nodes))
    _, component = connected_components(links, directed=False)
    return np.isin(component[uses[:, 1]], component[ends])
