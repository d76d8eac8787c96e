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


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, arrays in ARRAYS.items() for key in arrays()])
def test_a_number_in_place_of_an_array_is_refused(tmp_path: Path, kind: Kind, key: str) -> None:
    arrays = ARRAYS[kind]()
    save(tmp_path / "a.npz", arrays | {key: arrays[key].ravel()[0, ...]})
    with pytest.raises(DataError, match=f"a.npz: {key}: "):
        read_graph(tmp_path / "a.npz", kind)
