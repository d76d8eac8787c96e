"""Layouts, their packing and encoding, and measurements; what read_graph refuses is in test_malformed_graphs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hlorank.data.configurations import (
    LAYOUT_VALUES,
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    TileConfigurations,
    pack_layouts,
    unpack_layouts,
)
from hlorank.data.graph import NODE_FEATURES, Graph
from hlorank.files import DataError

Arrays = dict[str, Any]


def layout_rows(*rows: list[int]) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Return rows of layout values from their first values; the rest is padding."""
    values = np.full((len(rows), LAYOUT_VALUES), -1, dtype=np.int8)
    for row, start in zip(values, rows, strict=True):
        row[: len(start)] = start
    return values


def layout_arrays() -> Arrays:
    return {
        "node_ids": np.array([1, 3]),
        "codebook": layout_rows([], [0, 1], [1, 0]),
        "codes": np.array([[0, 1], [2, 2], [0, 1]], dtype=np.uint8),
    }


def changed(array: Any, place: Any, value: Any) -> Any:
    copy = np.array(array)
    copy[place] = value
    return copy


def test_layouts_are_addressed_by_row() -> None:
    configurations = LayoutConfigurations(**layout_arrays())
    assert len(configurations) == 3
    np.testing.assert_array_equal(configurations.values(np.array([1])), layout_rows([1, 0], [1, 0])[None])
    np.testing.assert_array_equal(configurations.values(slice(1)), layout_rows([], [0, 1])[None])
    assert configurations.values().shape == (3, 2, LAYOUT_VALUES)


@pytest.mark.parametrize(
    ("argument", "change", "expected", "found"),
    [
        ("node_ids", lambda a: np.append(a, 4), "each of 3 configurable nodes", "shape (3, 2)"),
        ("codebook", lambda a: a.astype(np.float32), "dtype int8", "float32"),
        ("codebook", lambda a: a[:, 1:], "shape (any, 18)", "(3, 17)"),
        ("codebook", lambda a: a[::-1], "lexicographic order", "another order"),
        ("codebook", lambda a: a[[0, 1, 1]], "distinct rows", "another order"),
        ("codebook", lambda a: changed(a, (2, 1), 1), "in the output layout", "[1, 1, -1, -1, -1, -1]"),
        ("codebook", lambda a: changed(a, (1, slice(6, 9)), [4, 0, 4]), "input layout", "[4, 0, 4, -1, -1, -1]"),
        ("codebook", lambda a: changed(a, (0, slice(12, 18)), [0, 1, 2, 3, 4, 0]), "kernel", "[0, 1, 2, 3, 4, 0]"),
        ("codes", lambda a: a.astype(np.int16), "unsigned codes", "int16"),
        ("codes", lambda a: a[:, :1], "a row for each of 2 configurable nodes", "shape (3, 1)"),
        ("codes", lambda a: changed(a, (1, 1), 3), "codes below 3", "3"),
    ],
)
def test_codes_and_codebooks_that_do_not_fit_are_refused(
    argument: str, change: Callable[[Any], Any], expected: str, found: str
) -> None:
    arrays = layout_arrays()
    with pytest.raises(DataError) as caught:
        LayoutConfigurations(**arrays | {argument: change(arrays[argument])})
    assert caught.value.key == "node_config_feat"
    assert expected in str(caught.value.expected)
    assert str(caught.value.found) == found


@given(hnp.arrays(np.int8, st.tuples(st.integers(0, 4), st.integers(0, 3), st.just(18)), elements=st.integers(-1, 5)))
def test_packing_is_reversible_and_keeps_the_order(values: Any) -> None:
    keys = pack_layouts(values)
    assert keys.dtype == np.int64
    np.testing.assert_array_equal(unpack_layouts(keys), values)
    rows = values.reshape(-1, LAYOUT_VALUES)
    np.testing.assert_array_equal(np.argsort(keys.ravel(), kind="stable"), np.lexsort(rows.T[::-1]))


@pytest.mark.parametrize("value", [-2, 6, 0.5, np.nan, np.inf, -np.inf, 1e30])
def test_packing_refuses_other_values_than_those_of_layouts(value: float) -> None:
    values = changed(np.zeros((2, 3, LAYOUT_VALUES), dtype=np.float32), (1, 2, 7), value)
    with pytest.raises(DataError, match=r"node_config_feat: .*-1\.\.5.*\[1, 2, 7\]"):
        pack_layouts(values)


def test_an_error_in_a_later_chunk_names_the_row_of_the_whole() -> None:
    good = np.zeros((5, 1, LAYOUT_VALUES), dtype=np.float32) - 1
    with pytest.raises(DataError, match=r"7\.0 .*\[8, 0, 2\]"):
        LayoutConfigurations.from_chunks(np.array([0]), [good, changed(good, (3, 0, 2), 7)])


@given(
    values=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 12), st.integers(1, 3), st.just(3)),
        elements=st.sampled_from([-1.0, 0.0, 3.0]),
    ),
    chunk=st.integers(1, 13),
)
def test_chunks_of_any_size_give_the_same_codes(values: Any, chunk: int) -> None:
    # One value in each of the three layouts, so that no dimension repeats.
    full = np.full((*values.shape[:2], LAYOUT_VALUES), -1, dtype=np.float32)
    full[..., ::6] = values
    node_ids = np.arange(values.shape[1])
    parts = [full[start : start + chunk] for start in range(0, len(full), chunk)]
    configurations = LayoutConfigurations.from_chunks(node_ids, parts)
    rows, inverse = np.unique(full.reshape(-1, LAYOUT_VALUES), axis=0, return_inverse=True)
    np.testing.assert_array_equal(configurations.codebook, rows)
    np.testing.assert_array_equal(configurations.codes, inverse.reshape(values.shape[:2]))
    np.testing.assert_array_equal(configurations.values(), full)


@pytest.mark.parametrize(("distinct", "dtype"), [(256, np.uint8), (257, np.uint16)])
def test_codes_take_the_smallest_type(distinct: int, dtype: type) -> None:
    # The row's number to base 7, a digit in each layout, so that no dimension repeats in one.
    values = np.full((distinct, 1, LAYOUT_VALUES), -1, dtype=np.int8)
    for column, power in zip((0, 6, 12), (1, 7, 49), strict=True):
        values[:, 0, column] = np.arange(distinct) // power % 7 - 1
    configurations = LayoutConfigurations.from_chunks(np.array([0]), [values[:100], values[100:]])
    assert configurations.codes.dtype == dtype
    np.testing.assert_array_equal(configurations.values(), values)


@pytest.mark.parametrize("shape", [(2, 18), (2, 1, 18), (2, 2, 17)])
def test_chunks_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError) as caught:
        LayoutConfigurations.from_chunks(np.array([0, 1]), [np.zeros(shape, dtype=np.float32)])
    assert (caught.value.expected, caught.value.found) == ("shape (configurations, 2, 18)", shape)
    with pytest.raises(DataError, match="at least one configuration"):
        LayoutConfigurations.from_chunks(np.array([0]), [])


def test_labels_are_runtimes_or_their_ratio_to_the_normalizer_and_withheld_where_all_are_zero() -> None:
    assert Measurements(np.array([4, 9])).label.tolist() == [4.0, 9.0]
    assert Measurements(np.array([4, 9]), np.array([8, 3])).label.tolist() == [0.5, 3.0]
    assert Measurements(np.array([0, 0])).withheld
    assert not Measurements(np.array([1, 1])).withheld


def test_a_measured_graph_needs_parts_that_fit() -> None:
    nodes = np.zeros((4, NODE_FEATURES), dtype=np.float32)
    graph = Graph(nodes, np.zeros(4, dtype=np.uint8), np.array([[1, 0]]), np.array([0, 4]))
    layouts, tiles = LayoutConfigurations(**layout_arrays()), TileConfigurations(np.ones((2, 24), dtype=np.float32))
    outside = LayoutConfigurations(**layout_arrays() | {"node_ids": np.array([1, 4])})
    three, two = np.array([5, 6, 7]), np.array([5, 6])
    wrong: list[tuple[LayoutConfigurations | TileConfigurations, Measurements, str]] = [
        (layouts, Measurements(two), "config_runtime: expected one runtime for each of 3 configurations, found 2"),
        (outside, Measurements(three), "node_config_ids: expected node ids in 0..3, found 4"),
        (layouts, Measurements(three, three), "normalizers: expected none for layout configurations, found an array"),
        (tiles, Measurements(two), "normalizers: expected an array for tile configurations, found none"),
    ]
    for configurations, measurements, message in wrong:
        with pytest.raises(DataError, match=re.escape(message)):
            MeasuredGraph("a", graph, configurations, measurements)
