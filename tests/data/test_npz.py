"""Arrays are read whole and in chunks; damaged files give errors, never wrong arrays, run code or much memory."""

from __future__ import annotations

import pickle
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
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

READS: list[Callable[[NpzFile, str], Any]] = [
    NpzFile.header,
    NpzFile.read,
    lambda file, key: next(file.chunks(key)),
]


def packed(path: Path, content: bytes, compression: int = zipfile.ZIP_DEFLATED, *, encrypted: bool = False) -> Path:
    """Write an npz file of one member, marked as encrypted or not."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a.npy", content)
        archive.filelist[0].flag_bits |= encrypted
    return path


def refusal(path: Path, read: Callable[[NpzFile, str], Any]) -> str:
    with NpzFile(path) as file, pytest.raises(DataError) as caught:
        read(file, "a")
    return str(caught.value)


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


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("compression", "found"),
    [(zipfile.ZIP_BZIP2, "compression method 12 of zip"), (zipfile.ZIP_LZMA, "method 14 of zip"), (None, "encrypted")],
)
def test_compressions_without_a_bound_are_refused(
    tmp_path: Path, compression: int | None, found: str, read: Callable[[NpzFile, str], Any]
) -> None:
    content = member(np.zeros(2**22, dtype=np.uint8))
    path = packed(tmp_path / "a.npz", content, compression or zipfile.ZIP_DEFLATED, encrypted=compression is None)
    with little_memory():
        assert found in refusal(path, read)


@pytest.mark.parametrize("read", READS)
def test_a_long_header_is_refused_before_it_is_read(tmp_path: Path, read: Callable[[NpzFile, str], Any]) -> None:
    length = 2**24
    path = packed(tmp_path / "a.npz", npy.magic(2, 0) + length.to_bytes(4, "little") + b" " * length)
    with little_memory():
        assert refusal(path, read).endswith("found a damaged member")


def test_large_arrays_in_column_order_are_refused_where_chunks_are_asked_for(tmp_path: Path) -> None:
    small = np.asfortranarray(np.arange(CHUNK_BYTES, dtype=np.uint8).reshape(-1, 2))
    large = np.asfortranarray(np.zeros((2, CHUNK_BYTES), dtype=np.uint8))
    np.savez_compressed(tmp_path / "small.npz", a=small)
    np.savez_compressed(tmp_path / "large.npz", a=large)
    with NpzFile(tmp_path / "small.npz") as file:
        np.testing.assert_array_equal(np.concatenate(list(file.chunks("a", 100))), small)
    with little_memory():
        assert refusal(tmp_path / "large.npz", lambda file, key: next(file.chunks(key))) == (
            f"{tmp_path}/large.npz: a: expected row order (C) above 4,194,304 bytes; save np.ascontiguousarray of it, "
            "found column order (Fortran) and 8,388,608 bytes"
        )


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("shape", ["(True, 6)", "(6.0,)", "(-1, -6)", "(6, 10**9)", "6", "(6L,)"])
def test_shapes_that_are_no_shapes_are_refused(tmp_path: Path, read: Callable[[NpzFile, str], Any], shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    content = npy.magic(1, 0) + len(header).to_bytes(2, "little") + header + bytes(24)
    assert refusal(packed(tmp_path / "a.npz", content), read).startswith(str(tmp_path / "a.npz"))


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_checksums_are_compared(tmp_path: Path, compression: int) -> None:
    path = packed(tmp_path / "a.npz", member(np.arange(1000)), compression)
    with NpzFile(path) as file:
        file.check()
    data = path.read_bytes()
    path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    with NpzFile(path) as file, pytest.raises(DataError, match=r"a\.npz: a: "):
        file.check()


# Damaged and hostile graphs


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
    for name, found in (("none", "no such file"), (".", "a folder"), ("array.npy", "not a zip file")):
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
    with pytest.raises(DataError, match=f": {key}: ") as caught:
        read_graph(path, "layout")
    assert caught.value.key == key
    assert not trace.exists()
    pickled = members_of(layout_arrays()) | {f"{key}.npy": pickle.dumps(_Payload(trace))}
    with pytest.raises(DataError, match=rf"{key}: .*\.npy"):
        read_graph(write_members(path, pickled), "layout")
    assert not trace.exists()
    pickle.loads(pickle.dumps(evil))
    assert trace.exists()  # the payload would have worked


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
    "no dictionary": (b"\x93NUMPY\x01\x00\x02\x001\n", ".npy member", "a damaged member"),
    "no literal": (b"\x93NUMPY\x01\x00\x05\x00f(0)\n", ".npy member", "a damaged member"),
    "unknown version": (b"\x93NUMPY\x09\x09" + member(np.arange(4))[8:], ".npy member", "a damaged member"),
    "cut header": (member(np.arange(4))[:40], ".npy member", "a damaged member"),
    "no content": (b"", ".npy member", "a damaged member"),
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
        with pytest.raises(DataError, match=r"config_runtime: .*\b64\b.*\b32\b"):
            file.read("config_runtime")
        assert [len(chunk) for chunk in file.chunks("config_feat")] == [3]


def test_an_array_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_members(path, members_of(tile_arrays()) | {"config_feat": b""})
    with pytest.raises(DataError, match=r"keys: .*'config_feat', 'config_feat.npy'"):
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
