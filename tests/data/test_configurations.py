"""What npz files and objects refuse, with the file, the key and what was found; layouts, their packing and codes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hlorank.data.collection import Kind, read_graph
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
from tests.data.npz_files import ARRAYS, Arrays, layout_arrays, save


def changed(array: NDArray[Any], place: Any, value: Any) -> NDArray[Any]:
    copy = np.array(array)
    copy[place] = value
    return copy


def without(*keys: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {key: array for key, array in arrays.items() if key not in keys}


def with_(key: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {key: change(arrays[key])}


def setting(key: str, place: Any, value: float) -> Callable[[Arrays], Arrays]:
    return with_(key, lambda array: changed(array, place, value))


BAD: list[tuple[Kind, Callable[[Arrays], Arrays], str, str]] = [
    ("layout", without("node_splits"), "keys", "['config_runtime', 'edge_index', 'node_config_feat'"),
    ("layout", lambda arrays: arrays | {"extra": np.zeros(1)}, "keys", "'extra'"),
    ("tile", lambda arrays: layout_arrays(), "keys", "'node_config_feat'"),
    ("layout", lambda arrays: {}, "keys", "[]"),
    ("layout", with_("node_feat", lambda a: a.astype(np.float64)), "node_feat", "float64"),
    ("layout", with_("node_feat", lambda a: a[:, :139]), "node_feat", "(4, 139)"),
    ("tile", setting("node_feat", (1, 3), np.inf), "node_feat", "inf at [1, 3]"),
    ("layout", with_("node_opcode", lambda a: a.astype(np.int64)), "node_opcode", "int64"),
    ("layout", setting("node_opcode", 2, 121), "node_opcode", "121"),
    ("layout", with_("node_opcode", lambda a: a[:0]), "node_opcode", "an empty graph"),
    ("layout", with_("edge_index", lambda a: a.T), "edge_index", "(2, 3)"),
    ("layout", with_("edge_index", lambda a: a.astype(np.float32)), "edge_index", "float32"),
    ("layout", setting("edge_index", (0, 0), 4), "edge_index", "[4, 0] in row 0"),
    ("layout", setting("edge_index", (2, 1), -1), "edge_index", "[3, -1] in row 2"),
    ("layout", with_("edge_index", lambda a: a[:, ::-1]), "edge_index", "[0, 1] in row 0"),
    ("layout", with_("node_splits", lambda a: a.T), "node_splits", "(3, 1)"),
    ("layout", with_("node_splits", lambda a: a[:, :2]), "node_splits", "[0, 1]"),
    ("layout", with_("node_config_ids", lambda a: a[None]), "node_config_ids", "(1, 2)"),
    ("layout", with_("node_config_ids", lambda a: a[:0]), "node_config_ids", "(0,)"),
    ("layout", with_("node_config_ids", lambda a: a + 1), "node_config_ids", "4"),
    ("layout", with_("node_config_ids", lambda a: a - 2), "node_config_ids", "[-1, 1]"),
    ("layout", with_("node_config_ids", lambda a: a[[1, 1]]), "node_config_ids", "[3, 3]"),
    ("layout", with_("node_config_ids", lambda a: a[:1]), "node_config_feat", "(3, 2, 18)"),
    ("layout", with_("node_config_feat", lambda a: a[..., 1:]), "node_config_feat", "(3, 2, 17)"),
    ("layout", with_("node_config_feat", lambda a: a.astype(np.int8)), "node_config_feat", "int8"),
    ("layout", with_("node_config_feat", lambda a: a[:0]), "node_config_feat", "none"),
    ("layout", setting("node_config_feat", (2, 1, 17), 0.5), "node_config_feat", "0.5 at [2, 1, 17]"),
    ("layout", setting("node_config_feat", (0, 0, 2), 0), "node_config_feat", "[0, 2, 0, -1, -1, -1]"),
    ("tile", with_("config_feat", lambda a: a[:, 1:]), "config_feat", "(3, 23)"),
    ("tile", with_("config_feat", lambda a: a[:0]), "config_feat", "none"),
    ("tile", setting("config_feat", (2, 7), np.nan), "config_feat", "nan at [2, 7]"),
    ("layout", with_("config_runtime", lambda a: a.astype(float)), "config_runtime", "float64"),
    ("layout", with_("config_runtime", lambda a: a[:, None]), "config_runtime", "(3, 1)"),
    ("layout", with_("config_runtime", lambda a: a[:2]), "config_runtime", "2"),
    ("tile", with_("config_runtime", lambda a: a - 11), "config_runtime", "-1"),
    ("layout", with_("config_runtime", lambda a: a - 10), "config_runtime", "0 at 1 among others"),
    ("tile", with_("config_feat", lambda a: a[:2]), "config_runtime", "3"),
    ("tile", with_("config_runtime_normalizers", lambda a: a[:2]), "config_runtime_normalizers", "(2,)"),
    ("tile", with_("config_runtime_normalizers", lambda a: a - 10), "config_runtime_normalizers", "0"),
    *((kind, with_(key, lambda a: a.ravel()[0, ...]), key, "") for kind in ARRAYS for key in ARRAYS[kind]()),
]


@pytest.mark.parametrize(("kind", "change", "key", "found"), BAD)
def test_bad_input_is_named(
    tmp_path: Path, kind: Kind, change: Callable[[Arrays], Arrays], key: str, found: str
) -> None:
    path = tmp_path / "bad.npz"
    save(path, change(ARRAYS[kind]()))
    with pytest.raises(DataError) as caught:
        read_graph(path, kind)
    assert (caught.value.file, caught.value.key) == (path, key)
    assert found in str(caught.value.found)


def layout_rows(*rows: list[int]) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Return rows of layout values from their first values; the rest is padding."""
    values = np.full((len(rows), LAYOUT_VALUES), -1, dtype=np.int8)
    for row, start in zip(values, rows, strict=True):
        row[: len(start)] = start
    return values


@given(hnp.arrays(np.int8, st.tuples(st.integers(0, 4), st.integers(0, 3), st.just(18)), elements=st.integers(-1, 5)))
def test_packing_is_reversible_and_keeps_the_order(values: Any) -> None:
    keys = pack_layouts(values)
    assert keys.dtype == np.int64
    np.testing.assert_array_equal(unpack_layouts(keys), values)
    rows = values.reshape(-1, LAYOUT_VALUES)
    np.testing.assert_array_equal(np.argsort(keys.ravel(), kind="stable"), np.lexsort(rows.T[::-1]))


@pytest.mark.parametrize("value", [-2, 6, 0.5, np.nan, np.inf, -np.inf, 1e30])
def test_other_values_than_those_of_layouts_are_refused_with_their_place_in_the_whole(value: float) -> None:
    good = np.full((5, 1, LAYOUT_VALUES), -1, dtype=np.float32)
    with pytest.raises(DataError, match=r"node_config_feat: .*-1\.\.5.*\[8, 0, 7\]"):
        LayoutConfigurations.from_chunks(np.array([0]), [good, changed(good, (3, 0, 7), value)])


@pytest.mark.parametrize(("distinct", "dtype"), [(256, np.uint8), (257, np.uint16)])
@pytest.mark.parametrize("chunk", [1, 100, 1000])
def test_chunks_of_any_size_give_the_same_codes_of_the_smallest_type(distinct: int, dtype: type, chunk: int) -> None:
    # The row's number to base 7, a digit in each layout, so that no dimension repeats in one.
    rows = np.full((distinct, LAYOUT_VALUES), -1, dtype=np.float32)
    for column, power in zip((0, 6, 12), (1, 7, 49), strict=True):
        rows[:, column] = np.arange(distinct) // power % 7 - 1
    values = rows[np.random.default_rng(0).permutation(np.arange(600) % distinct).reshape(-1, 2)]
    parts = [values[start : start + chunk] for start in range(0, len(values), chunk)]
    configurations = LayoutConfigurations.from_chunks(np.array([0, 1]), parts)
    codebook, inverse = np.unique(values.reshape(-1, LAYOUT_VALUES), axis=0, return_inverse=True)
    np.testing.assert_array_equal(configurations.codebook, codebook)
    np.testing.assert_array_equal(configurations.codes, inverse.reshape(-1, 2).astype(dtype), strict=True)
    np.testing.assert_array_equal(configurations.values(), values)


def test_labels_are_runtimes_or_their_ratio_to_the_normalizer_and_withheld_where_all_are_zero() -> None:
    assert Measurements(np.array([4, 9])).label.tolist() == [4.0, 9.0]
    assert Measurements(np.array([4, 9]), np.array([8, 3])).label.tolist() == [0.5, 3.0]
    assert Measurements(np.array([0, 0])).withheld
    assert not Measurements(np.array([1, 1])).withheld


def layouts(**changes: Any) -> LayoutConfigurations:
    arguments: dict[str, Any] = {
        "node_ids": np.array([1, 3]),
        "codebook": layout_rows([], [0, 1], [1, 0]),
        "codes": np.array([[0, 1], [2, 2], [0, 1]], dtype=np.uint8),
    }
    return LayoutConfigurations(**arguments | changes)


def measured(configurations: LayoutConfigurations | TileConfigurations, *runtimes: NDArray[np.int64]) -> MeasuredGraph:
    nodes = np.zeros((4, NODE_FEATURES), dtype=np.float32)
    graph = Graph(nodes, np.zeros(4, dtype=np.uint8), np.array([[1, 0]]), np.array([0, 4]))
    return MeasuredGraph("a", graph, configurations, Measurements(*runtimes))


TILES, TWO, THREE = np.ones((2, 24), dtype=np.float32), np.array([5, 6]), np.array([5, 6, 7])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layouts(node_ids=np.array([1, 3, 4])), "feat: expected a row for each of 3 configurable nodes, found"),
        (lambda: layouts(codebook=layout_rows([], [0, 1]).astype(np.float32)), "dtype int8, found float32"),
        (lambda: layouts(codebook=layout_rows([], [0, 1])[:, 1:]), "shape (any, 18), found (2, 17)"),
        (lambda: layouts(codebook=layout_rows([1, 0], [0, 1], [])), "lexicographic order, found another order"),
        (lambda: layouts(codebook=layout_rows([], [0], [0])), "distinct rows in lexicographic order, found another"),
        (lambda: layouts(codebook=layout_rows([], [0], [1, 1])), "output layout, found [1, 1, -1, -1, -1, -1]"),
        (lambda: layouts(codebook=layout_rows([], [0], [1, *[-1] * 5, 4, 0, 4])), "input layout, found [4, 0, 4, -1"),
        (lambda: layouts(codebook=layout_rows([], [0], [1, *[-1] * 11, 2, 2])), "kernel layout, found [2, 2, -1"),
        (lambda: layouts(codes=np.zeros((3, 2), dtype=np.int16)), "unsigned codes, found int16"),
        (lambda: layouts(codes=np.full((3, 2), 3, dtype=np.uint8)), "codes below 3, found 3"),
        (
            lambda: LayoutConfigurations.from_chunks(np.array([0, 1]), [np.zeros((2, 18))]),
            "shape (configurations, 2, 18), found (2, 18)",
        ),
        (lambda: measured(layouts(), THREE, THREE), "normalizers: expected none for layout configurations, found an"),
        (lambda: measured(TileConfigurations(TILES), TWO), "normalizers: expected an array for tile configurations"),
    ],
)
def test_parts_that_do_not_fit_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        make()
