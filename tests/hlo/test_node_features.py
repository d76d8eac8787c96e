"""Official node features."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hlorank.hlo.hlo_pb2 import HloInstructionProto
from hlorank.hlo.node_features import COLUMNS, OPCODES, node_features, opcode_ids


def row(one: HloInstructionProto, is_root: bool = False) -> NDArray[np.float32]:
    features = node_features([one], np.array([is_root]))
    assert features.dtype == np.float32
    assert features.shape == (1, 140)
    return features.reshape(140)


def test_the_columns_are_all_140() -> None:
    covered = [column for columns in COLUMNS.values() for column in range(columns.start, columns.stop)]
    assert covered == list(range(140))


def test_the_reference_lists_the_columns() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "hlo-features.md"
    listed = re.findall(r"^\| (\d+)(?:-(\d+))? \| `(\w+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(name, int(first), int(last or first) + 1) for first, last, name in listed] == [
        (columns.name, columns.start, columns.stop) for columns in COLUMNS.values()
    ]


@pytest.mark.parametrize(
    ("element_type", "column"),
    [(0, 2), (1, 3), (5, 7), (6, 8), (12, 14), (16, 15), (15, 16), (18, 17), (13, 18), (14, 19), (17, 20), (19, None)],
)
def test_element_types_have_the_official_columns(element_type: int, column: int | None) -> None:
    one = HloInstructionProto(opcode="add")
    one.shape.element_type = element_type
    assert np.flatnonzero(row(one)[2:21]).tolist() == ([] if column is None else [column - 2])


def test_shape_and_layout() -> None:
    one = HloInstructionProto(opcode="sort", parameter_number=9, is_stable=True, dimensions=[2, 1])
    one.shape.dimensions.extend([2, 3, 5])
    one.shape.layout.minor_to_major.extend([2, 1, 0])
    features = row(one, is_root=True)
    assert features[[0, 30, 133]].tolist() == [1, 9, 1]
    assert features[21:29].tolist() == [2, 3, 5, 0, 0, 0, 10, 30]
    assert features[31:37].tolist() == [2, 1, 0, 0, 0, 0]
    assert features[134:140].tolist() == [2, 1, 0, 0, 0, 0]


def test_window_slices_and_padding_follow_the_official_order() -> None:
    one = HloInstructionProto(opcode="convolution", feature_group_count=3, batch_group_count=4)
    one.window.dimensions.add(
        size=2, stride=3, padding_low=4, padding_high=5, window_dilation=6, base_dilation=7, window_reversal=True
    )
    one.window.dimensions.add(size=10)
    one.slice_dimensions.add(start=1, limit=2, stride=3)
    one.padding_config.dimensions.add(edge_padding_low=-1, edge_padding_high=8)
    one.dynamic_slice_sizes.extend([2, 3, 4])
    features = row(one)
    starts = features[[37, 45, 53, 61, 69, 77]]
    assert starts.tolist() == [2, 3, 4, 5, 6, 7]
    assert features[37:45].tolist() == [2, 10, 0, 0, 0, 0, 12, 20]
    assert features[85:93].tolist() == [1, 0, 0, 0, 0, 0, 1, 1]
    assert features[107:109].tolist() == [3, 4]
    assert features[109:121].tolist() == [1, 0, 1, 1, 3, 0, 3, 3, 2, 0, 2, 2]
    assert features[121:125].tolist() == [2, 3, 9, 24]
    assert features[125:133].tolist() == [-1, 0, -1, -1, 8, 0, 8, 8]


def test_convolution_dimension_numbers() -> None:
    one = HloInstructionProto(opcode="convolution")
    numbers = one.convolution_dimension_numbers
    numbers.input_batch_dimension, numbers.input_feature_dimension = 1, 2
    numbers.kernel_input_feature_dimension, numbers.kernel_output_feature_dimension = 3, 4
    numbers.output_batch_dimension, numbers.output_feature_dimension = 5, 6
    numbers.input_spatial_dimensions.extend([7, 8, 9, 10, 11])
    numbers.kernel_spatial_dimensions.extend([12])
    assert row(one)[93:107].tolist() == [1, 2, 7, 8, 9, 10, 3, 4, 12, 0, 0, 0, 5, 6]


@pytest.mark.parametrize(
    ("dimensions", "product"), [([2**32, 2**32], 0), ([2**32, 2**31], -(2**63)), ([3, 2**62], -(2**62))]
)
def test_products_wrap_at_64_bits_before_the_cast(dimensions: list[int], product: int) -> None:
    one = HloInstructionProto(opcode="add")
    one.shape.dimensions.extend(dimensions)
    assert row(one)[28] == np.float32(product)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), nodes=st.integers(1, 150))
def test_equal_to_the_reference(seed: int, nodes: int, benchmark_module: dict[str, Any]) -> None:
    data = benchmark_module["generated_module"](nodes, seed).SerializeToString()
    fast, plain = benchmark_module["fast_graph"](data), benchmark_module["plain_graph"](data)
    for key in ("node_feat", "node_opcode", "edge_index", "node_splits"):
        np.testing.assert_array_equal(getattr(fast, key), getattr(plain, key))


def test_the_table_is_the_official_one(shared_data: Path) -> None:
    with (shared_data / "opcodes.csv").open(encoding="utf-8") as file:
        assert {row["opcode"]: int(row["id"]) for row in csv.DictReader(file)} == OPCODES


def test_unknown_opcodes_become_zero() -> None:
    ids = opcode_ids([HloInstructionProto(opcode=name) for name in ("add", "ragged-dot", "tan")])
    assert ids.dtype == np.uint8
    assert ids.tolist() == [2, 0, 120]
