"""Addresses of collections, and reading and writing of the official npz tree."""

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy
from numpy.typing import NDArray

from hlorank.config import ConfigError
from hlorank.data.collection import Collection, Kind, check_sizes, read_graph, write_graph
from hlorank.data.configurations import (
    LAYOUT_VALUES,
    TILE_FEATURES,
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    TileConfigurations,
)
from hlorank.data.graph import MAX_NODES, NODE_FEATURES, Graph
from hlorank.data.npz import NpzFile
from hlorank.files import DataError
from tests.data.npz_files import ARRAYS, arrays_of, assert_holds, layout_arrays, same_folder, save


def test_addresses_are_read_in_all_their_forms() -> None:
    for separator in (":", "/", "."):
        for parts in (("layout", "xla", "default"), ("tile", "my_gpu-2")):
            collection = Collection.parse(separator.join(parts))
            assert collection == Collection(*parts)
            assert (str(collection), collection.model_name) == (":".join(parts), ".".join(parts))
            assert collection.path == Path(*parts)
    for other in (
        "",
        "layout",
        "layout:xla",
        "layout:xla:best",
        "tile:xla:random",
        "tile:",
        "tile:..",
        "a:b",
        "tile:a b",
    ):
        with pytest.raises(ConfigError, match=r"layout:<source>:<default\|random\|outputs\|models>.*tile:<source>"):
            Collection.parse(other)


def test_names_that_no_page_or_table_can_show_are_refused(tmp_path: Path) -> None:
    for name in ("unet_3d.4x4.bf16", "mlperf_bert_batch_24_2x2-5f2f", "ssd_mobilenet_v2+1", "größe (1)", "n" * 200):
        save(tmp_path / f"{name}.npz", ARRAYS["tile"]())
        assert read_graph(tmp_path / f"{name}.npz", "tile").name == name
    for name in ("<!--<script>", "a\nb", "a\x1b[31mb", "\udcff", "\u202ea", "n" * 201):
        save(tmp_path / f"{name}.npz", ARRAYS["tile"]())
        with pytest.raises(DataError, match="name") as error:
            read_graph(tmp_path / f"{name}.npz", "tile")
        assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        ("node_feat", {"nodes": 3}),
        ("node_splits", {"nodes": 0}),
        ("edge_index", {"edges": 2}),
        ("config_runtime", {"configurations": 2}),
        ("node_config_feat", {"configurations": 2}),
        ("arrays", {"unpacked_bytes": 100}),
    ],
)
def test_arrays_beyond_the_limits_are_refused_by_their_headers(
    tmp_path: Path, key: str, limit: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NpzFile, "read", lambda self, key: pytest.fail(f"{key} is read"))
    of_key = {key: layout_arrays()[key]} if key != "arrays" else layout_arrays()
    save(tmp_path / "a.npz", of_key)
    with NpzFile(tmp_path / "a.npz") as file:
        assert check_sizes(file) == sum(array.nbytes for array in of_key.values())
        with pytest.raises(DataError, match=rf"a\.npz: {key}: expected at most"):
            check_sizes(file, **limit)
    save(tmp_path / "a.npz", layout_arrays() | {"node_opcode": np.zeros(MAX_NODES + 1, dtype=np.uint8)})
    with pytest.raises(DataError, match=r"node_opcode: expected at most 250,000 rows"):
        read_graph(tmp_path / "a.npz", "layout")


@pytest.mark.parametrize("kind", ["layout", "tile"])
@pytest.mark.parametrize("first", [1, 2, 9])
def test_the_first_configurations_are_read_alone(tmp_path: Path, kind: Kind, first: int) -> None:
    arrays = ARRAYS[kind]()
    save(tmp_path / "a.npz", arrays)
    of_configurations = {"node_config_feat", "config_feat", "config_runtime", "config_runtime_normalizers"}
    head = {key: array[:first] if key in of_configurations else array for key, array in arrays.items()}
    assert_holds(read_graph(tmp_path / "a.npz", kind, first=first), head)


def in_version(path: Path, version: tuple[int, int], **arrays: NDArray[Any]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for key, array in arrays.items():
            with archive.open(f"{key}.npy", "w") as stream:
                npy.write_array(stream, array, version=version)


VARIANTS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "official": lambda array: array,
    "column order": np.asfortranarray,
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "int32": lambda array: array.astype(np.int32) if array.dtype == np.int64 else array,
}


@pytest.mark.parametrize("kind", ["layout", "tile"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "write", [np.savez, np.savez_compressed, *(partial(in_version, version=(number, 0)) for number in (1, 2, 3))]
)
@pytest.mark.filterwarnings("ignore:Stored array in format:UserWarning")  # only newer readers know these versions
def test_files_of_numpy_are_read(tmp_path: Path, kind: Kind, variant: str, write: Callable[..., None]) -> None:
    path = tmp_path / "unet_3d.4x4.bf16.npz"
    save(path, {key: VARIANTS[variant](array) for key, array in ARRAYS[kind]().items()}, write)
    measured = read_graph(path, kind)
    assert measured.name == "unet_3d.4x4.bf16"
    assert_holds(measured, ARRAYS[kind]())


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
    return MeasuredGraph("graph", graph, LayoutConfigurations.from_chunks(node_ids, [values]), Measurements(runtime))


@same_folder
@given(measured=measured_graphs(), chunk_bytes=st.integers(1, 2000))
def test_written_graphs_are_read_back_and_have_equal_bytes(
    tmp_path: Path, measured: MeasuredGraph, chunk_bytes: int
) -> None:
    path = tmp_path / "graph.npz"
    kind: Kind = "layout" if isinstance(measured.configurations, LayoutConfigurations) else "tile"
    write_graph(path, measured, chunk_bytes)
    read, content = read_graph(path, kind), path.read_bytes()
    assert read.name == measured.name
    assert_holds(read, arrays_of(path))  # numpy reads the same from it
    for part in ("graph", "configurations", "measurements"):
        for name, array in vars(getattr(measured, part)).items():
            np.testing.assert_array_equal(getattr(getattr(read, part), name), array, strict=True)
    write_graph(path, read)
    assert path.read_bytes() == content
    with zipfile.ZipFile(path) as archive:  # at any time
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_DEFLATED}


def test_real_files_are_read_as_numpy_reads_them_and_survive_a_round_trip(shared_data: Path, tmp_path: Path) -> None:
    files = sorted((shared_data / "tpugraphs" / "npz").rglob("*.npz"))
    assert len(files) == 8
    for path in files:
        kind: Kind = "tile" if "tile" in path.parts else "layout"
        measured = read_graph(path, kind)
        assert measured.name == path.name.removesuffix(".npz")
        assert measured.measurements.withheld == (path.parent.name == "test")
        assert_holds(measured, arrays_of(path))
        copy = tmp_path / path.name
        write_graph(copy, measured)
        assert_holds(read_graph(copy, kind), arrays_of(path))
