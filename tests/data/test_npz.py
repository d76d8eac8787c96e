"""Arrays are read whole and in chunks; damaged files give errors, never wrong arrays, run code or much memory."""

import pickle
import re
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy
from numpy.typing import NDArray

from hlorank.data.collection import read_graph, write_graph
from hlorank.data.configurations import LAYOUT_VALUES, LayoutConfigurations, MeasuredGraph, Measurements
from hlorank.data.graph import NODE_FEATURES, Graph
from hlorank.data.npz import CHUNK_BYTES, NpzFile
from hlorank.files import DataError
from tests.data.npz_files import (
    assert_holds,
    layout_arrays,
    member,
    members_of,
    same_folder,
    save,
    tile_arrays,
    write_members,
)


def refusals(path: Path, key: str = "a") -> set[str]:
    """Return the messages with which an array is refused, in each of the three ways to read it."""
    messages = set()
    for read in (NpzFile.header, NpzFile.read, lambda file, key: next(file.chunks(key))):
        with NpzFile(path) as file, pytest.raises(DataError, match=f"^{re.escape(str(path))}: {key}: ") as caught:
            read(file, key)
        messages.add(str(caught.value))
    return messages


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    array=hnp.arrays(
        st.sampled_from([np.float32, np.int64, np.uint8]), hnp.array_shapes(min_dims=1, max_dims=3, min_side=0)
    ),
    chunk_bytes=st.integers(1, 400),
    columns=st.booleans(),
)
def test_chunks_of_any_size_make_up_the_array(
    tmp_path: Path, array: NDArray[Any], chunk_bytes: int, columns: bool
) -> None:
    array = np.asfortranarray(array) if columns else array
    np.savez_compressed(tmp_path / "a.npz", a=array)
    with NpzFile(tmp_path / "a.npz") as file:
        assert file.header("a") == (array.shape, array.dtype)
        np.testing.assert_array_equal(file.read("a"), array, strict=True)
        chunks = list(file.chunks("a", chunk_bytes))
    assert sum(map(len, chunks)) == len(array)
    if chunks:
        np.testing.assert_array_equal(np.concatenate(chunks), array, strict=True)
    if array.flags.c_contiguous:
        assert all(len(chunk) == 1 or chunk.nbytes <= chunk_bytes for chunk in chunks)


@pytest.mark.parametrize(
    ("compression", "found"),
    [(zipfile.ZIP_BZIP2, "compression method 12 of zip"), (zipfile.ZIP_LZMA, "method 14 of zip"), (None, "encrypted")],
)
def test_compressions_without_a_bound_are_refused(tmp_path: Path, compression: int | None, found: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", compression or zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", member(np.zeros(2**22, dtype=np.uint8)))
        archive.filelist[0].flag_bits |= compression is None
    with little_memory():
        (message,) = refusals(tmp_path / "a.npz")
    assert found in message


def test_large_arrays_in_column_order_are_refused_in_chunks(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.asfortranarray(np.zeros((2, CHUNK_BYTES), dtype=np.uint8)))
    with little_memory(), NpzFile(tmp_path / "a.npz") as file, pytest.raises(DataError, match=r"row order \(C\)"):
        next(file.chunks("a"))


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save(path, layout_arrays(), np.savez_compressed)
    content = path.read_bytes()
    for length in [*range(0, len(content) - 30, 11), *range(len(content) - 30, len(content))]:
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"a\.npz: file: .*not a zip file"):
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
    write_members(tmp_path / "twice.npz", members_of(tile_arrays()) | {"config_feat": b""})
    for name, key, found in (
        ("none", "file", "no such file"),
        (".", "file", "a folder"),
        ("array.npy", "file", "not a zip file"),
        ("twice.npz", "keys", "'config_feat', 'config_feat.npy'"),
    ):
        with pytest.raises(DataError) as caught:
            read_graph(tmp_path / name, "tile")
        assert (caught.value.file, caught.value.key) == (tmp_path / name, key)
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
    with pytest.raises(DataError, match=f": {key}: "):
        read_graph(path, "layout")
    assert not trace.exists()
    pickled = members_of(layout_arrays()) | {f"{key}.npy": pickle.dumps(_Payload(trace))}
    with pytest.raises(DataError, match=rf"{key}: .*\.npy"):
        read_graph(write_members(path, pickled), "layout")
    assert not trace.exists()
    pickle.loads(pickle.dumps(evil))
    assert trace.exists()  # the payload would have worked


def written(shape: str, data: bytes = bytes(24)) -> bytes:
    """Return a .npy member whose header has this text as its shape."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return npy.magic(1, 0) + len(header).to_bytes(2, "little") + header + data


FALSE_SHAPES = [(-4,), (-2, -2), (5,), (3,), (2**62,)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((written(shape), "") for shape in ("(True, 6)", "(6.0,)", "(-1, -6)", "(6, 10**9)", "6", "(6L,)", "()")),
        *((member(np.arange(4), shape=shape), f"fits 32 bytes, found {shape} of int64") for shape in FALSE_SHAPES),
        (member(np.arange(0), shape=(2**62, 0)), f"fits 0 bytes, found ({2**62}, 0) of int64"),
        (member(np.array(["a", "b"])), "found dtype <U1"),
        (member(np.zeros(2, dtype=[("a", "<i8")])), "found dtype [('a', '<i8')]"),
        (member(np.arange(4), descr=("<i8", (2,)), shape=(2,)), "found dtype ('<i8', (2,))"),
        (member(np.zeros(2, dtype=complex)), "found dtype complex128"),
        (b"\x93NUMPY\x01\x00\x02\x001\n", "found a damaged member"),
        (b"\x93NUMPY\x01\x00\x05\x00f(0)\n", "found a damaged member"),
        (b"\x93NUMPY\x09\x09" + member(np.arange(4))[8:], "found a damaged member"),
        (member(np.arange(4))[:40], "found a damaged member"),
        (b"", "found a damaged member"),
        (npy.magic(2, 0) + (2**24).to_bytes(4, "little") + b" " * 2**24, "found a damaged member"),
    ],
)
def test_false_headers_are_refused_before_the_data_is_read(tmp_path: Path, content: bytes, message: str) -> None:
    path = write_members(tmp_path / "a.npz", members_of(tile_arrays()) | {"config_runtime.npy": content})
    with little_memory():
        (found,) = refusals(path, "config_runtime")
    assert found.endswith(message)


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
        with pytest.raises(DataError, match=r"config_runtime: .*\b64\b.*\b32\b"):
            file.read("config_runtime")
        assert [len(chunk) for chunk in file.chunks("config_feat")] == [3]


def test_memory_stays_far_below_the_float32_array(tmp_path: Path) -> None:
    configurations, configurable = 3000, 400
    float32_bytes, codes_bytes = (configurations * configurable * size for size in (LAYOUT_VALUES * 4, 1))
    codebook = np.full((6, LAYOUT_VALUES), -1, dtype=np.int8)
    codebook[:, 0] = np.arange(6)
    codes = np.random.default_rng(0).integers(6, size=(configurations, configurable), dtype=np.uint8)
    graph = Graph(
        np.zeros((configurable, NODE_FEATURES), dtype=np.float32),
        np.full(configurable, 26, dtype=np.uint8),
        np.zeros((0, 2), dtype=np.int64),
        np.array([0, configurable]),
    )
    layouts = LayoutConfigurations(np.arange(configurable), codebook, codes)
    measured = MeasuredGraph("big", graph, layouts, Measurements(np.arange(1, configurations + 1)))
    tracemalloc.start()
    try:
        write_graph(tmp_path / "big.npz", measured)
        assert tracemalloc.get_traced_memory()[1] < float32_bytes / 4
        tracemalloc.reset_peak()
        read = read_graph(tmp_path / "big.npz", "layout")
        assert tracemalloc.get_traced_memory()[1] < float32_bytes / 3
        assert tracemalloc.get_traced_memory()[0] < 3 * codes_bytes + 3 * graph.node_feat.nbytes
    finally:
        tracemalloc.stop()
    assert isinstance(read.configurations, LayoutConfigurations)
    np.testing.assert_array_equal(read.configurations.codes, codes)
