"""Whole npz files that hold no graph: the error names the file, the key, and what was found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.data.collection import Kind, read_graph
from hlorank.files import DataError
from tests.data.npz_files import (
    ARRAYS,
    Arrays,
    layout_arrays,
    save,
    tile_arrays,
)


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


BAD: list[tuple[Kind, Callable[[Arrays], Arrays], str, str, str]] = [
    ("layout", without("node_splits"), "keys", "'node_splits'", "['config_runtime', 'edge_index', 'node_config_feat'"),
    ("tile", without("config_feat"), "keys", "'config_feat'", "['config_runtime', 'config_runtime_normalizers', 'edge"),
    ("layout", lambda arrays: arrays | {"extra": np.zeros(1)}, "keys", "(layout)", "'extra'"),
    ("layout", lambda arrays: tile_arrays(), "keys", "(layout)", "'config_runtime_normalizers'"),
    ("tile", lambda arrays: layout_arrays(), "keys", "(tile)", "'node_config_feat'"),
    ("layout", lambda arrays: {}, "keys", "(layout)", "[]"),
    ("layout", with_("node_feat", lambda a: a.astype(np.float64)), "node_feat", "dtype float32", "float64"),
    ("layout", with_("node_feat", lambda a: a[:, :139]), "node_feat", "shape (4, 140)", "(4, 139)"),
    ("tile", with_("node_feat", lambda a: a[:1]), "node_feat", "shape (2, 140)", "(1, 140)"),
    ("tile", setting("node_feat", (1, 3), np.inf), "node_feat", "finite", "inf at [1, 3]"),
    ("layout", with_("node_opcode", lambda a: a.astype(np.int64)), "node_opcode", "dtype uint8", "int64"),
    ("layout", setting("node_opcode", 2, 121), "node_opcode", "opcodes in 0..120", "121"),
    ("layout", with_("node_opcode", lambda a: a[:0]), "node_opcode", "at least one node", "an empty graph"),
    ("layout", with_("edge_index", lambda a: a.T), "edge_index", "shape (any, 2)", "(2, 3)"),
    ("layout", with_("edge_index", lambda a: a.astype(np.float32)), "edge_index", "int64 or int32", "float32"),
    ("layout", with_("edge_index", lambda a: a.astype(np.uint64)), "edge_index", "int64 or int32", "uint64"),
    ("layout", setting("edge_index", (0, 0), 4), "edge_index", "ids in 0..3", "[4, 0] in row 0"),
    ("layout", setting("edge_index", (2, 1), -1), "edge_index", "ids in 0..3", "[3, -1] in row 2"),
    ("layout", with_("edge_index", lambda a: a[:, ::-1]), "edge_index", "topological order", "[0, 1] in row 0"),
    ("layout", with_("node_splits", lambda a: a.T), "node_splits", "shape (k,) or (1, k)", "(3, 1)"),
    ("layout", with_("node_splits", lambda a: a[None]), "node_splits", "shape (k,) or (1, k)", "(1, 1, 3)"),
    ("layout", with_("node_splits", lambda a: a[:, :2]), "node_splits", "boundaries from 0 to 4", "[0, 1]"),
    ("layout", with_("node_config_ids", lambda a: a[None]), "node_config_ids", "configurable nodes,)", "(1, 2)"),
    ("layout", with_("node_config_ids", lambda a: a[:0]), "node_config_ids", "at least one", "(0,)"),
    ("layout", with_("node_config_ids", lambda a: a + 1), "node_config_ids", "node ids in 0..3", "4"),
    ("layout", with_("node_config_ids", lambda a: a - 2), "node_config_ids", "increasing node ids", "[-1, 1]"),
    ("layout", with_("node_config_ids", lambda a: a[[1, 1]]), "node_config_ids", "increasing node ids", "[3, 3]"),
    ("layout", with_("node_config_ids", lambda a: a[:1]), "node_config_feat", "configurations, 1, 18", "(3, 2, 18)"),
    ("layout", with_("node_config_feat", lambda a: a[..., 1:]), "node_config_feat", "2, 18", "(3, 2, 17)"),
    ("layout", with_("node_config_feat", lambda a: a[0]), "node_config_feat", "configurations, 2, 18", "(2, 18)"),
    ("layout", with_("node_config_feat", lambda a: a.astype(np.int8)), "node_config_feat", "dtype float32", "int8"),
    ("layout", with_("node_config_feat", lambda a: a[:0]), "node_config_feat", "at least one configuration", "none"),
    *[
        ("layout", setting("node_config_feat", (2, 1, 17), value), "node_config_feat", *said)
        for value, said in {
            6.0: ("whole numbers in -1..5", "6.0 at [2, 1, 17]"),
            -2.0: ("whole numbers in -1..5", "-2.0 at [2, 1, 17]"),
            0.5: ("whole numbers in -1..5", "0.5 at [2, 1, 17]"),
            np.nan: ("whole numbers in -1..5", "nan at [2, 1, 17]"),
            np.inf: ("whole numbers in -1..5", "inf at [2, 1, 17]"),
        }.items()
    ],
    (
        "layout",
        setting("node_config_feat", (0, 0, 2), 0),
        "node_config_feat",
        "each dimension once in the output layout",
        "[0, 2, 0, -1, -1, -1]",
    ),
    ("tile", with_("config_feat", lambda a: a[:, 1:]), "config_feat", "shape (any, 24)", "(3, 23)"),
    ("tile", with_("config_feat", lambda a: a[:0]), "config_feat", "at least one configuration", "none"),
    ("tile", setting("config_feat", (2, 7), np.nan), "config_feat", "finite", "nan at [2, 7]"),
    ("layout", with_("config_runtime", lambda a: a.astype(float)), "config_runtime", "int64 or int32", "float64"),
    ("layout", with_("config_runtime", lambda a: a[:, None]), "config_runtime", "shape (any)", "(3, 1)"),
    ("layout", with_("config_runtime", lambda a: a[:2]), "config_runtime", "each of 3 configurations", "2"),
    ("layout", with_("config_runtime", lambda a: a[:0]), "config_runtime", "each of 3 configurations", "0"),
    ("tile", with_("config_runtime", lambda a: a - 11), "config_runtime", "at least 0 ns", "-1"),
    ("layout", with_("config_runtime", lambda a: a - 10), "config_runtime", "labels withheld", "0 at 1 among others"),
    ("tile", with_("config_feat", lambda a: a[:2]), "config_runtime", "each of 2 configurations", "3"),
    (
        "tile",
        with_("config_runtime_normalizers", lambda a: a[:2]),
        "config_runtime_normalizers",
        "shape (3)",
        "(2,)",
    ),
    (
        "tile",
        with_("config_runtime_normalizers", lambda a: a - 10),
        "config_runtime_normalizers",
        "positive runtimes",
        "0",
    ),
]


@pytest.mark.parametrize(("kind", "change", "key", "expected", "found"), BAD)
def test_bad_input_is_named(
    tmp_path: Path, kind: Kind, change: Callable[[Arrays], Arrays], key: str, expected: str, found: str
) -> None:
    path = tmp_path / "bad.npz"
    save(path, change(ARRAYS[kind]()))
    with pytest.raises(DataError) as caught:
        read_graph(path, kind)
    assert (caught.value.file, caught.value.key) == (path, key)
    assert str(caught.value).startswith(f"{path}: {key}: expected ")
    assert expected in caught.value.expected
    assert found in str(caught.value.found)


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, arrays in ARRAYS.items() for key in arrays()])
def test_a_number_in_place_of_an_array_is_refused(tmp_path: Path, kind: Kind, key: str) -> None:
    arrays = ARRAYS[kind]()
    save(tmp_path / "a.npz", arrays | {key: arrays[key].ravel()[0, ...]})
    with pytest.raises(DataError, match=f"a.npz: {key}: "):
        read_graph(tmp_path / "a.npz", kind)
