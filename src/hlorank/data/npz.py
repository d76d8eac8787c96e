"""Reader of npz files by key, in bounded memory; safe for damaged or malicious files."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hlorank.files import DataError, open_file

CHUNK_BYTES = 4 * 2**20

# By version: number of bytes of the header's length, and the function that reads length and header. Version 3 differs
# from 2 only in the names of structured types, which are refused.
_HEADERS = {
    (1, 0): (2, npy.read_array_header_1_0),
    (2, 0): (4, npy.read_array_header_2_0),
    (3, 0): (4, npy.read_array_header_2_0),
}
_MAX_HEADER_BYTES = 10_000
_EXPECTED = "a complete npz (zip) file"
_DAMAGED = "a damaged member"
_MAX_AXES = 32  # the maximum of NumPy 1
# zipfile unpacks bzip2 and LZMA without a bound on memory, even for small reads.
_COMPRESSIONS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}


@contextmanager
def _expecting(key: str, expected: str, found: str, path: Path) -> Iterator[None]:
    """Convert any error to a DataError: zipfile and numpy's header parser raise nearly every type on damaged bytes.

    The messages of these errors are not repeated, as they quote the damaged bytes.
    """
    try:
        yield
    except MemoryError:
        raise DataError(key, "an array that fits into memory", "a larger array", file=path) from None
    except Exception:
        raise DataError(key, expected, found, file=path) from None


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape of a .npy file, True where it is in column order, and its dtype.

    A header that is too long is a ValueError: numpy would read up to 4 GiB before it checks the length.
    """
    width, read = _HEADERS[npy.read_magic(stream)]
    length = stream.read(width)
    if (size := int.from_bytes(length, "little")) > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of {size:,} bytes, above {_MAX_HEADER_BYTES:,}")
    return read(io.BytesIO(length + stream.read(size)))


class NpzFile:
    """An npz file whose arrays are read by key, whole or in chunks of rows, never unpickled.

    Arrays are converted to the byte order of this machine.

    Raises:
        DataError: `path` is not a complete zip file, or has an array twice. The methods raise it where a key is
            missing, a member is not a .npy file of rows of numbers, is encrypted or not compressed by numpy, its shape
            contradicts its size, or its data is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with ExitStack() as stack:
            # Opened here, so that leaving the block closes the file, also under half-read members.
            opened = stack.enter_context(open_file(path, _EXPECTED))
            with _expecting("file", _EXPECTED, "a truncated file, or not a zip file", path):
                self._zip = zipfile.ZipFile(opened)
            members = self._zip.infolist()
            self._members = {member.filename.removesuffix(".npy"): member for member in members}
            if len(self._members) != len(members):
                raise DataError("keys", "each array once", sorted(member.filename for member in members), file=path)
            self._opened = stack.pop_all()

    def __enter__(self) -> NpzFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    @property
    def keys(self) -> set[str]:
        """Names of the arrays."""
        return set(self._members)

    def _open(self, key: str) -> tuple[IO[bytes], tuple[int, ...], bool, np.dtype[Any]]:
        """Open a member after its header; return it with its shape, True for column order, and its dtype."""
        if key not in self._members:
            raise DataError("keys", f"an array {key!r}", sorted(self.keys), file=self.path)
        member = self._members[key]
        if (encrypted := member.flag_bits & 1) or member.compress_type not in _COMPRESSIONS:
            expected = "a plain or deflated member, as np.savez or np.savez_compressed writes it"
            found = "an encrypted member" if encrypted else f"compression method {member.compress_type} of zip"
            raise DataError(key, expected, found, file=self.path)
        with _expecting(key, "a .npy member", _DAMAGED, self.path):
            stream = self._zip.open(member)
            shape, fortran, dtype = _read_header(stream)
        size = member.file_size - stream.tell()
        if dtype.kind not in "biuf":
            raise DataError(key, "numbers (objects are never unpickled)", f"dtype {dtype}", file=self.path)
        if not 0 < len(shape) <= _MAX_AXES:
            raise DataError(key, "rows", f"{len(shape)} axes" if shape else "a single number", file=self.path)
        sane = all(type(length) is int and 0 <= length <= member.file_size for length in shape)  # True is an int too
        if not sane or math.prod(shape) * dtype.itemsize != size:
            raise DataError(key, f"a shape that fits {size} bytes", f"{shape} of {dtype}", file=self.path)
        return stream, shape, fortran, dtype

    def header(self, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of an array, without reading it."""
        _, shape, _, dtype = self._open(key)
        return shape, dtype.newbyteorder("=")

    def _read(self, stream: IO[bytes], key: str, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        with _expecting(key, "intact compressed data", _DAMAGED, self.path):
            array = np.empty(count, dtype)
            data, done = array.view(np.uint8).data, 0
            # In pieces, as zipfile needs twice the memory of what it unpacks at a time.
            while done < len(data) and (piece := stream.read(min(CHUNK_BYTES, len(data) - done))):
                data[done : done + len(piece)] = piece
                done += len(piece)
        if done != len(data):
            raise DataError(key, f"{len(data)} bytes", f"{done} (truncated)", file=self.path)
        return array.astype(dtype.newbyteorder("="), copy=False)

    def check(self, keys: Collection[str]) -> None:
        """Read arrays and compare their checksums, as reading a whole array in any other way does, too."""
        for key in sorted(keys):
            stream, *_ = self._open(key)
            with _expecting(key, "intact compressed data", _DAMAGED, self.path):
                while stream.read(CHUNK_BYTES):
                    pass

    def read(self, key: str) -> NDArray[Any]:
        """Return a whole array, in C order."""
        stream, shape, fortran, dtype = self._open(key)
        array = self._read(stream, key, math.prod(shape), dtype)
        return np.ascontiguousarray(array.reshape(shape, order="F" if fortran else "C"))

    def chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[NDArray[Any]]:
        """Yield the rows of an array, in order, as arrays of at most about `chunk_bytes` bytes each.

        An array in column order is one chunk, since its rows are not contiguous, and is refused above `CHUNK_BYTES`;
        the official files have configurations in row order.
        """
        stream, shape, fortran, dtype = self._open(key)
        if fortran:
            if (size := math.prod(shape) * dtype.itemsize) > CHUNK_BYTES:
                expected = f"row order (C) above {CHUNK_BYTES:,} bytes; save np.ascontiguousarray of it"
                raise DataError(key, expected, f"column order (Fortran) and {size:,} bytes", file=self.path)
            yield self.read(key)
            return
        row = math.prod(shape[1:])
        step = max(1, chunk_bytes // max(1, row * dtype.itemsize))
        for start in range(0, shape[0], step):
            rows = min(step, shape[0] - start)
            yield self._read(stream, key, rows * row, dtype).reshape(rows, *shape[1:])
