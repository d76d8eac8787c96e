"""Addresses of collections, and the reader and writer of the official npz tree."""

from __future__ import annotations

import io
import pickle
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy
from numpy.typing import NDArray

from hlorank.data.collection import Collection, Kind, graph_files, read_graph, write_graph
from hlorank.data.graph import (
    LAYOUT_VALUES,
    NODE_FEATURES,
    TILE_FEATURES,
    Graph,
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    TileConfigurations,
)
from hlorank.data.npz import NpzFile
from hlorank.files import DataError

Arrays = dict[str, NDArray[Any]]

# Files are overwritten by every example, which is what the property is about.
same_folder = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def layout_arrays() -> Arrays:
    """Return three configurations of two nodes, in the form of the official files."""
    feat = np.full((3, 2, LAYOUT_VALUES), -1, dtype=np.float32)
    feat[0, 0, :3] = [0, 2, 1]
    feat[1, 1, 6:8] = [1, 0]
    return {
        "node_feat": np.arange(4 * NODE_FEATURES, dtype=np.float32).reshape(4, NODE_FEATURES),
        "node_opcode": np.array([2, 26, 0, 120], dtype=np.uint8),
        "edge_index": np.array([[1, 0], [2, 1], [3, 1]]),
        "node_splits": np.array([[0, 1, 4]]),
        "node_config_ids": np.array([1, 3]),
        "node_config_feat": feat,
        "config_runtime": np.array([30, 10, 20]),
    }


def tile_arrays() -> Arrays:
    return {
        "node_feat": np.ones((2, NODE_FEATURES), dtype=np.float32),
        "node_opcode": np.array([63, 26], dtype=np.uint8),
        "edge_index": np.array([[1, 0]]),
        "config_feat": np.arange(3 * TILE_FEATURES, dtype=np.float32).reshape(3, TILE_FEATURES),
        "config_runtime": np.array([30, 10, 20]),
        "config_runtime_normalizers": np.array([10, 10, 40]),
    }


ARRAYS: dict[Kind, Callable[[], Arrays]] = {"layout": layout_arrays, "tile": tile_arrays}


def save(path: Path, arrays: Arrays, write: Callable[..., None] = np.savez) -> None:
    write(path, **arrays)


def changed(array: NDArray[Any], place: Any, value: Any) -> NDArray[Any]:
    copy = np.array(array)
    copy[place] = value
    return copy


def member(array: NDArray[Any], **header: Any) -> bytes:
    """Return the bytes of a .npy member, with entries of its header replaced."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(array) | header)
    return stream.getvalue() + array.tobytes(order="A")


def write_members(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def members_of(arrays: Arrays) -> dict[str, bytes]:
    return {f"{key}.npy": member(array) for key, array in arrays.items()}


def assert_holds(measured: MeasuredGraph, arrays: Arrays) -> None:
    """Assert that a graph that was read equals the raw arrays, in the schema's dtypes."""
    graph, configurations = measured.graph, measured.configurations
    found: Arrays = {
        "node_feat": graph.node_feat,
        "node_opcode": graph.node_opcode,
        "edge_index": graph.edge_index,
        "config_runtime": measured.measurements.runtime,
    }
    if isinstance(configurations, LayoutConfigurations):
        found["node_splits"] = graph.node_splits[None]
        found["node_config_ids"] = configurations.node_ids
        found["node_config_feat"] = configurations.values().astype(np.float32)
    else:
        assert measured.measurements.normalizer is not None
        found["config_feat"] = configurations.feat
        found["config_runtime_normalizers"] = measured.measurements.normalizer
    assert found.keys() == arrays.keys()
    for key, array in arrays.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], array, strict=True)


def real_files(shared_data: Path) -> list[tuple[Path, Kind]]:
    npz = shared_data / "tpugraphs" / "npz"
    kinds: tuple[Kind, Kind] = ("layout", "tile")
    return [(path, kind) for kind in kinds for path in sorted((npz / kind).rglob("*.npz"))]


# Addresses


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
    with pytest.raises(ValueError, match=r"expected layout:<source>:<default\|random> or tile:<source>"):
        Collection.parse(address)


def test_graph_files_are_sorted_and_complete(tmp_path: Path) -> None:
    folder = tmp_path / "tile" / "own" / "valid"
    folder.mkdir(parents=True)
    for name in ("b.npz", "a.npz", "c.txt", ".d.npz.x.partial"):
        (folder / name).touch()
    assert graph_files(tmp_path, Collection.parse("tile:own"), "valid") == [folder / "a.npz", folder / "b.npz"]
    assert graph_files(tmp_path, Collection.parse("tile:own"), "train") == []


# Reading


@pytest.mark.parametrize("kind", ["layout", "tile"])
@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_files_of_numpy_are_read(tmp_path: Path, kind: Kind, write: Callable[..., None]) -> None:
    path = tmp_path / "unet_3d.4x4.bf16.npz"
    save(path, ARRAYS[kind](), write)
    measured = read_graph(path, kind)
    assert measured.name == "unet_3d.4x4.bf16"
    assert_holds(measured, ARRAYS[kind]())


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
    with pytest.raises(DataError, match=f"a.npz: {key}: expected rows, found a single number"):
        read_graph(tmp_path / "a.npz", kind)


def test_withheld_labels_are_no_error(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", layout_arrays() | {"config_runtime": np.zeros(3, dtype=np.int64)})
    assert read_graph(tmp_path / "a.npz", "layout").measurements.withheld


# Damaged and hostile files


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save(path, layout_arrays(), np.savez_compressed)
    content = path.read_bytes()
    for length in [*range(0, len(content) - 30, 11), *range(len(content) - 30, len(content))]:
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"a\.npz: file: expected a complete npz \(zip\) file, found BadZipFile"):
            read_graph(path, "layout")


@same_folder
@given(damage=st.dictionaries(st.integers(0, 10**6), st.integers(0, 255), min_size=1, max_size=4))
def test_damaged_bytes_never_change_the_arrays(tmp_path: Path, damage: dict[int, int]) -> None:
    path = tmp_path / "a.npz"
    save(path, tile_arrays(), np.savez_compressed)
    content = bytearray(path.read_bytes())
    for place, byte in damage.items():
        content[place % len(content)] = byte
    path.write_bytes(content)
    with suppress(DataError):
        assert_holds(read_graph(path, "tile"), tile_arrays())


def test_other_files_and_folders_are_no_npz_files(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.zeros(3))
    for name, found in (("none", "No such file"), (".", "directory"), ("array.npy", "not a zip file")):
        with pytest.raises(DataError) as caught:
            read_graph(tmp_path / name, "tile")
        assert (caught.value.file, caught.value.key) == (tmp_path / name, "file")
        assert found in str(caught.value.found)


class _Payload:
    """An object that leaves a trace where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("key", list(layout_arrays()))
def test_object_arrays_are_never_unpickled(tmp_path: Path, key: str) -> None:
    trace, path = tmp_path / "executed", tmp_path / "a.npz"
    evil = np.empty(4, dtype=object)
    evil[:] = _Payload(trace)
    np.savez(path, allow_pickle=True, **layout_arrays() | {key: evil})
    with pytest.raises(DataError, match="never unpickled") as caught:
        read_graph(path, "layout")
    assert caught.value.key == key
    assert not trace.exists()
    pickle.loads(pickle.dumps(evil))
    assert trace.exists()  # the payload would have worked


def test_a_bare_pickle_is_never_unpickled(tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    path = write_members(
        tmp_path / "a.npz", members_of(layout_arrays()) | {"node_splits.npy": pickle.dumps(_Payload(trace))}
    )
    with pytest.raises(DataError, match=r"node_splits: expected a \.npy member, found ValueError.*magic string"):
        read_graph(path, "layout")
    assert not trace.exists()


HEADERS: dict[str, tuple[bytes, str, str]] = {
    "negative": (member(np.arange(4), shape=(-4,)), "32 bytes", "(-4,) of int64"),
    "two negatives": (member(np.arange(4), shape=(-2, -2)), "32 bytes", "(-2, -2) of int64"),
    "larger than the member": (member(np.arange(4), shape=(5,)), "32 bytes", "(5,) of int64"),
    "smaller than the member": (member(np.arange(4), shape=(3,)), "32 bytes", "(3,) of int64"),
    "absurd": (member(np.arange(4), shape=(2**62,)), "32 bytes", f"({2**62},) of int64"),
    "absurd but empty": (member(np.arange(0), shape=(2**62, 0)), "0 bytes", f"({2**62}, 0) of int64"),
    "text": (member(np.array(["a", "b"])), "numbers", "dtype <U1"),
    "records": (member(np.zeros(2, dtype=[("a", "<i8")])), "numbers", "dtype [('a', '<i8')]"),
    "sub-arrays": (member(np.arange(4), descr=("<i8", (2,)), shape=(2,)), "numbers", "dtype ('<i8', (2,))"),
    "complex": (member(np.zeros(2, dtype=complex)), "numbers", "dtype complex128"),
    "no dictionary": (b"\x93NUMPY\x01\x00\x02\x001\n", ".npy member", "ValueError"),
    "no literal": (b"\x93NUMPY\x01\x00\x05\x00f(0)\n", ".npy member", "ValueError"),
    "unknown version": (b"\x93NUMPY\x09\x09" + member(np.arange(4))[8:], ".npy member", "KeyError: (9, 9)"),
    "cut header": (member(np.arange(4))[:40], ".npy member", "EOF"),
    "no content": (b"", ".npy member", "EOF"),
}


@pytest.mark.parametrize(("content", "expected", "found"), HEADERS.values(), ids=HEADERS.keys())
def test_false_headers_are_refused_before_the_data_is_read(
    tmp_path: Path, content: bytes, expected: str, found: str
) -> None:
    path = write_members(tmp_path / "a.npz", members_of(tile_arrays()) | {"config_runtime.npy": content})
    with NpzFile(path) as file:
        for read in (file.read, file.header, lambda key: next(file.chunks(key))):
            with pytest.raises(DataError) as caught:
                read("config_runtime")
            assert (caught.value.file, caught.value.key) == (path, "config_runtime")
            assert expected in caught.value.expected
            assert found in str(caught.value.found)


def test_a_member_that_ends_before_its_size_is_refused(tmp_path: Path) -> None:
    # The zip directory and the header both promise 4 more numbers than the compressed data hold.
    path = write_members(
        tmp_path / "a.npz", members_of(tile_arrays()) | {"config_runtime.npy": member(np.arange(4), shape=(8,))}
    )
    content = bytearray(path.read_bytes())
    size = content.rindex(b"config_runtime.npy") - 46 + 24
    content[size : size + 4] = (int.from_bytes(content[size : size + 4], "little") + 32).to_bytes(4, "little")
    path.write_bytes(content)
    with NpzFile(path) as file:
        with pytest.raises(DataError, match=r"config_runtime: expected 64 bytes, found 32 \(truncated\)"):
            file.read("config_runtime")
        assert [len(chunk) for chunk in file.chunks("config_feat")] == [3]


def test_an_array_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_members(path, members_of(tile_arrays()) | {"config_feat": b""})
    with pytest.raises(DataError, match=r"keys: expected each array once, found \['config_feat', 'config_feat.npy'"):
        read_graph(path, "tile")


def big_graph(configurations: int, configurable: int) -> MeasuredGraph:
    rng = np.random.default_rng(0)
    codebook = np.full((6, LAYOUT_VALUES), -1, dtype=np.int8)
    codebook[:, 0] = np.arange(6)
    codes = rng.integers(6, size=(configurations, configurable), dtype=np.uint8)
    graph = Graph(
        np.zeros((configurable, NODE_FEATURES), dtype=np.float32),
        np.full(configurable, 26, dtype=np.uint8),
        np.zeros((0, 2), dtype=np.int64),
        np.array([0, configurable]),
    )
    layouts = LayoutConfigurations(np.arange(configurable), codebook, codes)
    return MeasuredGraph("big", graph, layouts, Measurements(np.arange(1, configurations + 1)))


def test_memory_stays_far_below_the_float32_array(tmp_path: Path) -> None:
    measured = big_graph(configurations=3000, configurable=400)
    float32_bytes = 3000 * 400 * LAYOUT_VALUES * 4
    codes_bytes = 3000 * 400
    tracemalloc.start()
    try:
        write_graph(tmp_path / "big.npz", measured)
        assert tracemalloc.get_traced_memory()[1] < float32_bytes / 4
        tracemalloc.reset_peak()
        read = read_graph(tmp_path / "big.npz", "layout")
        assert tracemalloc.get_traced_memory()[1] < float32_bytes / 3
        assert tracemalloc.get_traced_memory()[0] < 3 * codes_bytes + 3 * measured.graph.node_feat.nbytes
    finally:
        tracemalloc.stop()
    assert isinstance(read.configurations, LayoutConfigurations)
    assert isinstance(measured.configurations, LayoutConfigurations)
    np.testing.assert_array_equal(read.configurations.codes, measured.configurations.codes)


# Writing


@st.composite
def measured_graphs(draw: st.DrawFn) -> MeasuredGraph:
    nodes = draw(st.integers(1, 8))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)).filter(lambda pair: pair[0] > pair[1])
    edges = draw(st.lists(pairs, unique=True, max_size=10)) if nodes > 1 else []
    layout = draw(st.booleans())
    inner = draw(st.sets(st.integers(1, nodes - 1))) if layout and nodes > 1 else set()
    finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
    graph = Graph(
        draw(hnp.arrays(np.float32, (nodes, NODE_FEATURES), elements=finite)),
        draw(hnp.arrays(np.uint8, nodes, elements=st.integers(0, 120))),
        np.array(sorted(edges), dtype=np.int64).reshape(-1, 2),
        np.array(sorted({0, nodes} | inner), dtype=np.int64),
    )
    count = draw(st.integers(1, 6))
    positive = hnp.arrays(np.int64, count, elements=st.integers(1, 2**62))
    runtime = draw(positive | st.just(np.zeros(count, dtype=np.int64)))
    if not layout:
        tiles = TileConfigurations(draw(hnp.arrays(np.float32, (count, TILE_FEATURES), elements=finite)))
        return MeasuredGraph("graph", graph, tiles, Measurements(runtime, draw(positive)))
    node_ids = np.array(sorted(draw(st.sets(st.integers(0, nodes - 1), min_size=1))))
    order = st.permutations(range(6)).map(list)
    dims = st.tuples(order, order, order, *[st.integers(0, 6)] * 3)
    values = np.full((count, len(node_ids), LAYOUT_VALUES), -1, dtype=np.int8)
    for place in np.ndindex(values.shape[:2]):
        *orders, first, second, third = draw(dims)
        for start, layout_, rank in zip((0, 6, 12), orders, (first, second, third), strict=True):
            values[(*place, slice(start, start + rank))] = layout_[:rank]
    configurations = LayoutConfigurations.from_chunks(node_ids, [values])
    return MeasuredGraph("graph", graph, configurations, Measurements(runtime))


def arrays_of(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


@same_folder
@given(measured=measured_graphs(), chunk_bytes=st.integers(1, 2000))
def test_written_graphs_are_read_back(tmp_path: Path, measured: MeasuredGraph, chunk_bytes: int) -> None:
    path = tmp_path / "graph.npz"
    kind: Kind = "layout" if isinstance(measured.configurations, LayoutConfigurations) else "tile"
    write_graph(path, measured, chunk_bytes)
    read = read_graph(path, kind)
    assert read.name == "graph"
    assert_holds(read, arrays_of(path))  # numpy reads the same from it
    content = path.read_bytes()
    write_graph(path, read, chunk_bytes)
    assert path.read_bytes() == content
    for mine, theirs in ((read.graph, measured.graph), (read.configurations, measured.configurations)):
        for name, array in vars(theirs).items():
            np.testing.assert_array_equal(getattr(mine, name), array, strict=True)
    np.testing.assert_array_equal(read.measurements.label, measured.measurements.label, strict=True)


def test_real_files_are_read_as_numpy_reads_them_and_survive_a_round_trip(shared_data: Path, tmp_path: Path) -> None:
    files = real_files(shared_data)
    assert len(files) == 8
    for path, kind in files:
        measured = read_graph(path, kind)
        assert measured.name == path.name.removesuffix(".npz")
        assert measured.measurements.withheld == (path.parent.name == "test")
        assert_holds(measured, arrays_of(path))
        copy = tmp_path / path.name
        write_graph(copy, measured)
        assert_holds(read_graph(copy, kind), arrays_of(path))


def test_equal_content_gives_equal_bytes_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "a.npz", layout_arrays())
    measured = read_graph(tmp_path / "a.npz", "layout")
    write_graph(tmp_path / "b.npz", measured)
    monkeypatch.setattr("time.time", lambda: 0.0)
    write_graph(tmp_path / "c.npz", measured)
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "c.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "c.npz") as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_DEFLATED}


def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "a.npz", layout_arrays())
    content = (tmp_path / "a.npz").read_bytes()
    measured = read_graph(tmp_path / "a.npz", "layout")

    def fail(self: LayoutConfigurations, rows: slice) -> NDArray[np.int8]:
        raise OSError("no space left")

    monkeypatch.setattr(LayoutConfigurations, "values", fail)
    with pytest.raises(OSError, match="no space left"):
        write_graph(tmp_path / "a.npz", measured)
    assert (tmp_path / "a.npz").read_bytes() == content
    assert list(tmp_path.iterdir()) == [tmp_path / "a.npz"]
