"""Extra features of the protobuf."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hlorank.files import DataError
from hlorank.hlo.extra import EXTRA_SHAPES, extra_features, extra_path, read_extra, write_extra
from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto
from hlorank.hlo.program import flatten


def test_dot_gather_scatter_and_operand_shapes(module: HloModuleProto) -> None:
    dot = module.computations[1].instructions[1]
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    dot.dot_dimension_numbers.rhs_contracting_dimensions.append(0)
    dot.dot_dimension_numbers.rhs_batch_dimensions.extend([2, 3])
    gather = HloInstructionProto(opcode="gather", id=20, operand_ids=[9, 5, 5, 9], gather_slice_sizes=[1, 4])
    gather.gather_dimension_numbers.offset_dims.extend(range(8))
    gather.gather_dimension_numbers.start_index_map.append(0)
    gather.gather_dimension_numbers.index_vector_dim = 2
    scatter = HloInstructionProto(opcode="scatter", id=21)
    scatter.scatter_dimension_numbers.inserted_window_dims.append(0)
    module.computations[1].instructions.extend([gather, scatter])
    extra = extra_features(flatten(module))
    none = [-1] * 6
    assert {key: array.shape for key, array in extra.items()} == {
        "dot_dimensions": (6, 4, 6),
        "gather_dimensions": (6, 3, 6),
        "gather_slice_sizes": (6, 1, 6),
        "scatter_dimensions": (6, 3, 6),
        "index_vector_dim": (6,),
        "operand_shapes": (6, 3, 6),
    }
    assert {key: array.shape[1:] for key, array in extra.items()} == EXTRA_SHAPES
    assert all(array.dtype == np.int64 for array in extra.values())
    assert extra["dot_dimensions"][2].tolist() == [[1, *none[1:]], [0, *none[1:]], none, [2, 3, *none[2:]]]
    assert extra["gather_dimensions"][4].tolist() == [[0, 1, 2, 3, 4, 5], none, [0, *none[1:]]]
    assert extra["gather_slice_sizes"][4].tolist() == [[1, 4, *none[2:]]]
    assert extra["scatter_dimensions"][5].tolist() == [none, [0, *none[1:]], none]
    assert extra["index_vector_dim"].tolist() == [-1, -1, -1, -1, 2, 0]
    shape = [4, 4, *none[2:]]
    assert extra["operand_shapes"][2].tolist() == [shape, shape, none]  # one edge, but two operands
    assert extra["operand_shapes"][4].tolist() == [shape, shape, shape]
    assert (extra["operand_shapes"][0] == -1).all()


def test_rows_follow_the_nodes_if_the_stored_order_differs(module: HloModuleProto) -> None:
    sorted_first = extra_features(flatten(module))
    backwards = HloModuleProto(computations=[module.computations[1], module.computations[0]])
    for key, array in extra_features(flatten(backwards)).items():
        np.testing.assert_array_equal(array, sorted_first[key])


def test_files_are_next_to_the_graph_with_the_same_bytes_every_time(tmp_path: Path, module: HloModuleProto) -> None:
    graph = tmp_path / "unet.4x4.npz"
    path = write_extra(graph, flatten(module))
    assert path == extra_path(graph) == tmp_path / "unet.4x4.extra.npz"
    first = path.read_bytes()
    write_extra(graph, flatten(module))
    assert path.read_bytes() == first
    with np.load(path, allow_pickle=False) as stored:
        np.testing.assert_array_equal(stored["dot_dimensions"], np.full((4, 4, 6), -1))


def test_written_files_are_read(tmp_path: Path, module: HloModuleProto) -> None:
    program = flatten(module)
    graph = tmp_path / "a.4x4.npz"
    path = write_extra(graph, program)
    found = read_extra(graph, 4)
    for key, array in extra_features(program).items():
        np.testing.assert_array_equal(found[key], array)
    with pytest.raises(DataError, match=r"a.4x4.extra.npz: dot_dimensions: .*\(5, 4, 6\)"):
        read_extra(graph, 5)
    np.savez(path, dot_dimensions=found["dot_dimensions"])
    with pytest.raises(DataError, match=r"a.4x4.extra.npz: keys"):
        read_extra(graph, 4)
    np.savez(path, **{key: array.astype(np.float32) for key, array in found.items()})  # type: ignore[arg-type] # numpy
    with pytest.raises(DataError, match="int64"):
        read_extra(graph, 4)
    path.write_bytes(b"text")
    with pytest.raises(DataError, match=r"a.4x4.extra.npz: file"):
        read_extra(graph, 4)
    path.unlink()
    with pytest.raises(DataError, match=r"a.4x4.npz: .*hlorank convert --extra"):
        read_extra(graph, 4)
