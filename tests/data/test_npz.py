"""Arrays are read whole and in chunks; files that would take more memory than their size are refused."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy
from numpy.typing import NDArray

from hlorank.data.npz import CHUNK_BYTES, NpzFile
from hlorank.files import DataError

READS: list[Callable[[NpzFile, str], Any]] = [
    NpzFile.header,
    NpzFile.read,
    lambda file, key: next(file.chunks(key)),
]


def member(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    npy.write_array(stream, array)
    return stream.getvalue()


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


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.arange(3), b=np.arange(2))
    with NpzFile(tmp_path / "a.npz") as file, pytest.raises(DataError, match=r"'c'.*\['a', 'b'\]"):
        file.read("c")


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
    [(zipfile.ZIP_BZIP2, "compression method 12 of zip"), (zipfile.ZIP_LZMA, "compression method 14 of zip")],
)
def test_compressions_without_a_bound_are_refused(
    tmp_path: Path, compression: int, found: str, read: Callable[[NpzFile, str], Any]
) -> None:
    path = packed(tmp_path / "a.npz", member(np.zeros(2**22, dtype=np.uint8)), compression)
    expected = "a plain or deflated member, as np.savez or np.savez_compressed writes it"
    with little_memory():
        assert refusal(path, read) == f"{path}: a: expected {expected}, found {found}"


@pytest.mark.parametrize("read", READS)
def test_encrypted_members_are_refused(tmp_path: Path, read: Callable[[NpzFile, str], Any]) -> None:
    path = packed(tmp_path / "a.npz", member(np.zeros(3)), encrypted=True)
    assert refusal(path, read).endswith("as np.savez or np.savez_compressed writes it, found an encrypted one")


@pytest.mark.parametrize("read", READS)
def test_a_long_header_is_refused_before_it_is_read(tmp_path: Path, read: Callable[[NpzFile, str], Any]) -> None:
    length = 2**24
    path = packed(tmp_path / "a.npz", npy.magic(2, 0) + length.to_bytes(4, "little") + b" " * length)
    with little_memory():
        assert refusal(path, read).endswith("found a damaged member")


def test_more_axes_than_arrays_have_are_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (1,) * 100})
    path = packed(tmp_path / "a.npz", stream.getvalue() + bytes(4))
    assert refusal(path, NpzFile.read) == f"{path}: a: expected rows, found 100 axes"


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
