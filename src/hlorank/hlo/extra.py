"""Extra features beyond the 140, which only the protobuf has, in `<graph>.extra.npz` next to the graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from hlorank.data.collection import EXTRA_SUFFIX
from hlorank.data.graph import Int64, check_array
from hlorank.data.npz import NpzFile
from hlorank.files import DataError, write_atomic
from hlorank.hlo.node_features import Columns, put_lists, with_field
from hlorank.hlo.program import Program

OPERANDS = 3
"""Number of operands whose shapes are kept."""
_WIDTH = 6

Extra = Mapping[str, Int64]
"""Extra features of a graph by key, as `extra_features` returns them."""
EXTRA_SHAPES: dict[str, tuple[int, ...]] = {
    "dot_dimensions": (4, _WIDTH),
    "gather_dimensions": (3, _WIDTH),
    "gather_slice_sizes": (1, _WIDTH),
    "scatter_dimensions": (3, _WIDTH),
    "index_vector_dim": (),
    "operand_shapes": (OPERANDS, _WIDTH),
}
"""Shape of one node's features, by key."""


def extra_path(graph: Path) -> Path:
    """Return the extra file of a graph's npz file."""
    return graph.with_name(graph.name.removesuffix(".npz") + EXTRA_SUFFIX)


def _padded(nodes: int, rows: Int64, *groups: Sequence[Collection[int]]) -> Int64:
    """Return the first six values of a list per group for each of `rows`: (nodes, groups, 6), padded with -1."""
    array = np.full((nodes, len(groups) * _WIDTH), -1, dtype=np.int64)
    for number, lists in enumerate(groups):
        put_lists(array, Columns("", number * _WIDTH, _WIDTH), rows, lists)
    return array.reshape(nodes, len(groups), _WIDTH)


def _operand_shapes(program: Program) -> list[list[Collection[int]]]:
    """Return the dimensions of the first, second and third operand of each node, empty for a missing operand."""
    dimensions = [instruction.shape.dimensions for instruction in program.instructions]
    return [
        [dimensions[operands[number]] if number < len(operands) else () for operands in program.operands]
        for number in range(OPERANDS)
    ]


def extra_features(program: Program) -> dict[str, Int64]:
    """Compute the extra features of a program's nodes.

    Returns:
        int64 arrays, padded with -1, which is neither an axis nor a size:
        `dot_dimensions` (nodes, 4, 6), contracting axes of the left and right operand, batch axes of both;
        `gather_dimensions` (nodes, 3, 6), offset_dims, collapsed_slice_dims, start_index_map;
        `gather_slice_sizes` (nodes, 1, 6);
        `scatter_dimensions` (nodes, 3, 6), update_window_dims, inserted_window_dims, scatter_dims_to_operand_dims;
        `index_vector_dim` (nodes,), of gathers and scatters;
        `operand_shapes` (nodes, 3, 6), the dimensions of the first three operands, in their order.
    """
    instructions = program.instructions
    count = len(instructions)
    dot_rows, gather_rows, scatter_rows = (
        with_field(instructions, f"{name}_dimension_numbers") for name in ("dot", "gather", "scatter")
    )
    dots = [instructions[row].dot_dimension_numbers for row in dot_rows]
    gathers = [instructions[row].gather_dimension_numbers for row in gather_rows]
    scatters = [instructions[row].scatter_dimension_numbers for row in scatter_rows]
    slice_sizes = [instructions[row].gather_slice_sizes for row in gather_rows]
    index_vector_dim = np.full(count, -1, dtype=np.int64)
    index_vector_dim[gather_rows] = [one.index_vector_dim for one in gathers]
    index_vector_dim[scatter_rows] = [one.index_vector_dim for one in scatters]
    return {
        "dot_dimensions": _padded(
            count,
            dot_rows,
            [one.lhs_contracting_dimensions for one in dots],
            [one.rhs_contracting_dimensions for one in dots],
            [one.lhs_batch_dimensions for one in dots],
            [one.rhs_batch_dimensions for one in dots],
        ),
        "gather_dimensions": _padded(
            count,
            gather_rows,
            [one.offset_dims for one in gathers],
            [one.collapsed_slice_dims for one in gathers],
            [one.start_index_map for one in gathers],
        ),
        "gather_slice_sizes": _padded(count, gather_rows, slice_sizes),
        "scatter_dimensions": _padded(
            count,
            scatter_rows,
            [one.update_window_dims for one in scatters],
            [one.inserted_window_dims for one in scatters],
            [one.scatter_dims_to_operand_dims for one in scatters],
        ),
        "index_vector_dim": index_vector_dim,
        "operand_shapes": _padded(count, np.arange(count), *_operand_shapes(program)),
    }


def write_extra(graph: Path, program: Program) -> Path:
    """Write the extra features next to a graph's npz file, in one step; equal content gives equal bytes."""
    path = extra_path(graph)
    arrays = extra_features(program)
    write_atomic(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))
    return path


def existing_extra(graph: Path) -> Path:
    """Return the extra file of a graph's npz file.

    Raises:
        DataError: the file does not exist.
    """
    path = extra_path(graph)
    if not path.is_file():
        expected = (
            f"the extra features of {graph.name}: fetch with data.hlo.extra=true or `hlorank convert --extra`,"
            " or set featurize.protobuf=false"
        )
        raise DataError("file", expected, "no such file", file=path)
    return path


def read_extra(graph: Path, nodes: int) -> Extra:
    """Read the extra features next to a graph's npz file.

    Args:
        graph: the graph's npz file.
        nodes: number of nodes of the graph.

    Raises:
        DataError: the extra file does not exist, is damaged, or has another number of nodes.
    """
    path = existing_extra(graph)
    try:
        with NpzFile(path) as file:
            if file.keys != EXTRA_SHAPES.keys():
                raise DataError("keys", f"{sorted(EXTRA_SHAPES)}", sorted(file.keys))
            for key, shape in EXTRA_SHAPES.items():  # before anything is read
                if (found := file.header(key)[0]) != (nodes, *shape):
                    raise DataError(key, f"shape {(nodes, *shape)}", found)
            arrays = {key: file.read(key) for key in EXTRA_SHAPES}
        for key, shape in EXTRA_SHAPES.items():
            check_array(key, arrays[key], np.int64, (nodes, *shape))
    except DataError as error:
        raise error.in_file(path) from None
    return arrays
