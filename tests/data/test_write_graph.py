"""Writing of npz files: what is written is read back, and equal content gives equal bytes."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hlorank.data.collection import Kind, read_graph, write_graph
from hlorank.data.configurations import (
    LAYOUT_VALUES,
    TILE_FEATURES,
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    TileConfigurations,
)
from hlorank.data.graph import NODE_FEATURES, Graph
from tests.data.npz_files import (
    arrays_of,
    assert_holds,
    layout_arrays,
    same_folder,
    save,
)


def real_files(shared_data: Path) -> list[tuple[Path, Kind]]:
    npz = shared_data / "tpugraphs" / "npz"
    kinds: tuple[Kind, Kind] = ("layout", "tile")
    return [(path, kind) for kind in kinds for path in sorted((npz / kind).rglob("*.npz"))]


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
