"""Extra features beyond the 140, which only the protobuf has, in `<graph>.extra.npz` next to the graph."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from hlorank.data.collection import EXTRA_SUFFIX
from hlorank.data.graph import Int64
from hlorank.data.npz import NpzFile
from hlorank.files import DataError, write_atomic
from hlorank.hlo.node_features import Columns, put_lists, with_field
from hlorank.hlo.program import Program

_WIDTH = 6
_OPERANDS = 3

Extra = Mapping[str, Int64]
"""Extra features of a graph by key, as `extra_features` returns them."""

# By key: the field of the instructions that have these features, and the lists of integers in it.
_LISTS: dict[str, tuple[str, list[str]]] = {
    "dot_dimensions": (
        "dot_dimension_numbers",
        [f"{side}_{kind}_dimensions" for kind in ("contracting", "batch") for side in ("lhs", "rhs")],
    ),
    "gather_dimensions": ("gather_dimension_numbers", ["offset_dims", "collapsed_slice_dims", "start_index_map"]),
    "scatter_dimensions": (
        "scatter_dimension_numbers",
        ["update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims"],
    ),
}
EXTRA_SHAPES: dict[str, tuple[int, ...]] = {
    "dot_dimensions": (4, _WIDTH),
    "gather_dimensions": (3, _WIDTH),
    "gather_slice_sizes": (1, _WIDTH),
    "scatter_dimensions": (3, _WIDTH),
    "index_vector_dim": (),
    "operand_shapes": (_OPERANDS, _WIDTH),
}
"""Shape of one node's features, by key, in the order of the columns of features."""


def extra_path(graph: Path) -> Path:
    """Return the extra file of a graph's npz file."""
    return graph.with_name(graph.name.removesuffix(".npz") + EXTRA_SUFFIX)


def _padded(nodes: int, rows: Int64, groups: Sequence[Sequence[Collection[int]]]) -> Int64:
    """Return the first six values of the lists of groups, each with a list for each of `rows`: (nodes, groups, 6)."""
    array = np.full((nodes, len(groups) * _WIDTH), -1, dtype=np.int64)
    for number, lists in enumerate(groups):
        put_lists(array, Columns("", number * _WIDTH, _WIDTH), rows, lists)
    return array.reshape(nodes, len(groups), _WIDTH)


def extra_features(program: Program) -> dict[str, Int64]:
    """Compute the extra features of a program's nodes: int64 arrays (nodes, *EXTRA_SHAPES), padded with -1.

    `dot_dimensions` are the contracting axes of the left and right operand, and the batch axes of both; gathers and
    scatters have an `index_vector_dim`; `operand_shapes` are the shapes of the first three operands.
    """
    instructions, count = program.instructions, len(program.instructions)
    index_vector_dim = np.full(count, -1, dtype=np.int64)
    features: dict[str, Int64] = {"index_vector_dim": index_vector_dim}
    for key, (field, lists) in _LISTS.items():
        rows, numbers = with_field(instructions, field)
        features[key] = _padded(count, rows, [[getattr(number, name) for number in numbers] for name in lists])
        if key != "dot_dimensions":
            index_vector_dim[rows] = [number.index_vector_dim for number in numbers]
    gathers, _ = with_field(instructions, "gather_dimension_numbers")
    slice_sizes = [instructions[row].gather_slice_sizes for row in gathers]
    features["gather_slice_sizes"] = _padded(count, gathers, [slice_sizes])
    dimensions = [instruction.shape.dimensions for instruction in instructions]
    operands: list[list[Collection[int]]] = [
        [dimensions[nodes[number]] if number < len(nodes) else () for nodes in program.operands]
        for number in range(_OPERANDS)
    ]
    features["operand_shapes"] = _padded(count, np.arange(count), operands)
    return {key: features[key] for key in EXTRA_SHAPES}


def write_extra(graph: Path, program: Program) -> Path:
    """Write the extra features next to a graph's npz file, in one step; equal content gives equal bytes."""
    path, arrays = extra_path(graph), extra_features(program)
    write_atomic(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))
    return path


def existing_extra(graph: Path) -> Path:
    """Return the extra file of a graph's npz file; a missing file is refused with DataError."""
    path = extra_path(graph)
    if not path.is_file():
        expected = (
            f"the extra features of {graph.name}: fetch with data.hlo.extra=true or `hlorank convert --extra`,"
            " or set featurize.protobuf=false"
        )
        raise DataError("file", expected, "no such file", file=path)
    return path


def read_extra(graph: Path, nodes: int) -> Extra:
    """Read the extra features of a graph with `nodes` nodes; a missing, damaged or other file is a DataError."""
    path = existing_extra(graph)
    try:
        with NpzFile(path) as file:
            if file.keys != EXTRA_SHAPES.keys():
                raise DataError("keys", f"{sorted(EXTRA_SHAPES)}", sorted(file.keys))
            for key, shape in EXTRA_SHAPES.items():  # before anything is read
                if (found := file.header(key)) != ((nodes, *shape), np.dtype(np.int64)):
                    raise DataError(key, f"shape {(nodes, *shape)} and dtype int64", found)
            return {key: file.read(key) for key in EXTRA_SHAPES}
    except DataError as error:
        raise error.in_file(path) from None
