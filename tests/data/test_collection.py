"""Addresses of collections, and reading of the official npz tree."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy
from numpy.typing import NDArray

from hlorank.data.collection import Collection, Kind, graph_files, read_graph
from hlorank.data.npz import NpzFile
from hlorank.files import DataError
from tests.data.npz_files import (
    ARRAYS,
    assert_holds,
    layout_arrays,
    save,
    tile_arrays,
    write_members,
)


@pytest.mark.parametrize("separator", [":", "/", "."])
def test_addresses_are_read_in_all_their_forms(separator: str) -> None:
    layout = Collection.parse(separator.join(("layout", "xla", "default")))
    assert layout == Collection("layout", "xla", "default")
    assert (str(layout), layout.path, layout.model_name) == (
        "layout:xla:default",
        Path("layout/xla/default"),
        "layout.xla.default",
    )
    tile = Collection.parse(separator.join(("tile", "my_gpu-2")))
    assert tile == Collection("tile", "my_gpu-2")
    assert (str(tile), tile.path, tile.model_name) == ("tile:my_gpu-2", Path("tile/my_gpu-2"), "tile.my_gpu-2")


@pytest.mark.parametrize(
    "address",
    ["", "layout", "layout:xla", "layout:xla:best", "tile:xla:random", "tile:", "tile:..", "pixel:xla", "tile:a b"],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"layout:<source>:<default\|random\|models>.*tile:<source>"):
        Collection.parse(address)


def test_graph_files_are_sorted_and_complete(tmp_path: Path) -> None:
    folder = tmp_path / "tile" / "own" / "valid"
    folder.mkdir(parents=True)
    for name in ("b.npz", "a.npz", "c.txt", ".d.npz.x.partial"):
        (folder / name).touch()
    assert graph_files(tmp_path, Collection.parse("tile:own"), "valid") == [folder / "a.npz", folder / "b.npz"]
    assert graph_files(tmp_path, Collection.parse("tile:own"), "train") == []


@pytest.mark.parametrize("kind", ["layout", "tile"])
@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_files_of_numpy_are_read(tmp_path: Path, kind: Kind, write: Callable[..., None]) -> None:
    path = tmp_path / "unet_3d.4x4.bf16.npz"
    save(path, ARRAYS[kind](), write)
    measured = read_graph(path, kind)
    assert measured.name == "unet_3d.4x4.bf16"
    assert_holds(measured, ARRAYS[kind]())


NAMES = ["unet_3d.4x4.bf16", "mlperf_bert_batch_24_2x2-5f2f", "ssd_mobilenet_v2+1", "größe (1)", "n" * 200]
WRONG_NAMES = ["<!--<script>", "a\nb", "a\x1b[31mb", "\udcff", "\u202ea", "n" * 201]


@pytest.mark.parametrize("name", [*NAMES, *WRONG_NAMES])
def test_names_that_no_page_or_table_can_show_are_refused(tmp_path: Path, name: str) -> None:
    save(tmp_path / f"{name}.npz", ARRAYS["tile"]())
    if name in NAMES:
        assert read_graph(tmp_path / f"{name}.npz", "tile").name == name
        return
    with pytest.raises(DataError, match="name") as error:
        read_graph(tmp_path / f"{name}.npz", "tile")
    assert str(error.value).isprintable()
    assert len(str(error.value)) <= 500


@pytest.mark.parametrize(
    ("kind", "key", "shape"),
    [
        ("layout", "node_feat", (250_001, 140)),
        ("layout", "node_opcode", (250_001,)),
        ("layout", "edge_index", (2_000_001, 2)),
        ("layout", "node_splits", (1, 2**26)),
        ("layout", "config_runtime", (2**24 + 1,)),
        ("tile", "config_feat", (3_000_000, 24)),
    ],
)
def test_arrays_beyond_the_limits_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, key: str, shape: tuple[int, ...]
) -> None:
    arrays = ARRAYS[kind]()
    arrays[key] = np.broadcast_to(np.zeros((), arrays[key].dtype), shape)
    monkeypatch.setattr(NpzFile, "read", lambda self, key: pytest.fail(f"{key} is read"))
    save(tmp_path / "a.npz", arrays, np.savez_compressed)
    with pytest.raises(DataError, match=r"a\.npz: .*at most"):
        read_graph(tmp_path / "a.npz", kind)


@pytest.mark.parametrize("kind", ["layout", "tile"])
@pytest.mark.parametrize("first", [1, 2, 9])
def test_the_first_configurations_are_read_alone(tmp_path: Path, kind: Kind, first: int) -> None:
    arrays = ARRAYS[kind]()
    save(tmp_path / "a.npz", arrays)
    of_configurations = {"node_config_feat", "config_feat", "config_runtime", "config_runtime_normalizers"}
    head = {key: array[:first] if key in of_configurations else array for key, array in arrays.items()}
    assert_holds(read_graph(tmp_path / "a.npz", kind, first=first), head)


def test_a_tile_graph_is_one_block(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", tile_arrays())
    assert read_graph(tmp_path / "a.npz", "tile").graph.node_splits.tolist() == [0, 2]


VARIANTS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "column order": np.asfortranarray,
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "int32": lambda array: array.astype(np.int32) if array.dtype == np.int64 else array,
}


@pytest.mark.parametrize("kind", ["layout", "tile"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_arrays_are_accepted(tmp_path: Path, kind: Kind, variant: str) -> None:
    path = tmp_path / "a.npz"
    save(path, {key: VARIANTS[variant](array) for key, array in ARRAYS[kind]().items()})
    assert_holds(read_graph(path, kind), ARRAYS[kind]())


def test_node_splits_may_have_one_axis(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", layout_arrays() | {"node_splits": np.array([0, 1, 4], dtype=np.int32)})
    assert_holds(read_graph(tmp_path / "a.npz", "layout"), layout_arrays())


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_of_the_array_format_are_read(tmp_path: Path, version: tuple[int, int]) -> None:
    members = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # numpy: only newer readers know these versions
        for key, array in layout_arrays().items():
            stream = io.BytesIO()
            npy.write_array(stream, array, version=version)
            members[f"{key}.npy"] = stream.getvalue()
    assert_holds(read_graph(write_members(tmp_path / "a.npz", members), "layout"), layout_arrays())


def test_withheld_labels_are_no_error(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", layout_arrays() | {"config_runtime": np.zeros(3, dtype=np.int64)})
    assert read_graph(tmp_path / "a.npz", "layout").measurements.withheld
