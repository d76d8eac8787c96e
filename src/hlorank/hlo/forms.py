"""Forms of a program other than plain protobufs: compressed files, HLO text and StableHLO."""

from __future__ import annotations

import lzma
import re
import signal
import subprocess
import sys
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from hlorank.files import DataError

MAX_BYTES = 256 * 2**20
"""Limit of a text or of a decompressed file; texts of real programs have about 200 bytes per instruction."""
MAX_SECONDS = 600
_MEMORY = 128 * 2**20  # of the dictionary of an xz file; xz -9 needs half of it
_HEAD = 2**16

_COMPRESSIONS: dict[bytes, tuple[str, Callable[[], Any]]] = {
    b"\xfd7zXZ\x00": ("an xz file", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)),
    b"\x1f\x8b": ("a gzip file", lambda: zlib.decompressobj(wbits=31)),
}
COMPRESSED = ("", ".xz", ".gz")
"""Suffixes of files that are read."""

_HLO = re.compile(rb"(?:\s+|//[^\n]*\n|/\*.*?\*/)*HloModule\b", re.DOTALL)
_BYTECODE = b"ML\xefR"
_MLIR = re.compile(rb"(?:\s+|//[^\n]*\n)*(?:module\b|\"builtin\.module\"|func\.func\b|#\w+ =|!\w+ =)")
_CONTROL = bytes({*range(32), 127}.difference(b"\t\n\r\f"))
_PLACE = re.compile(r"(?:was parsing |-:)(\d+):(\d+): error: (.*)")
_INSTRUCTION = re.compile(r"\s*(?:ROOT\s+)?(%?[\w.\-]+)\s*=")
INSTALL = "pip install 'hlorank[collect]'"
"""Installs jaxlib."""


def _decompressor(data: bytes) -> tuple[str, Callable[[], Any]] | None:
    return next((found for magic, found in _COMPRESSIONS.items() if data.startswith(magic)), None)


def _decompressed(data: bytes, what: str, new: Callable[[], Any]) -> bytes:
    """Decompress the streams of a file.

    Raises:
        DataError: the file is truncated or damaged, or has more than MAX_BYTES.
    """
    parts: list[bytes] = []
    left = MAX_BYTES + 1
    try:
        while data:
            stream = new()
            parts.append(stream.decompress(data, left))
            left -= len(parts[-1])
            if not left:
                raise DataError("file", f"at most {MAX_BYTES:,} bytes, decompressed", "more")
            if not stream.eof:
                raise DataError("file", f"{what} with an end", "a truncated one")
            data = stream.unused_data.lstrip(b"\0")  # streams may be padded
    except (lzma.LZMAError, zlib.error) as error:
        raise DataError("file", what, error) from None
    return b"".join(parts)


def _is_text(data: bytes) -> bool:
    """Return whether data is the beginning of a text in UTF-8, which has no control characters; a protobuf has some."""
    try:
        getincrementaldecoder("utf-8")().decode(data)  # the last letter may be cut
    except UnicodeDecodeError:
        return False
    return data.translate(None, _CONTROL) == data


def _language(data: bytes) -> str | None:
    """Return what XLA calls the language of a program, from its beginning; None for another one."""
    if data.startswith(_BYTECODE) or _MLIR.match(data, 0, _HEAD):
        return "stablehlo"
    return "hlo" if _HLO.match(data, 0, _HEAD) else None


def is_program_text(path: Path) -> bool:
    """Return whether a file, which may be compressed, begins as HLO text or StableHLO does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if (found := _decompressor(head)) is not None:
        try:
            head = found[1]().decompress(head, _HEAD)
        except (lzma.LZMAError, zlib.error):
            return False
    return _language(head) is not None


def _parsed_by_jaxlib() -> str:
    return f"HLO text or StableHLO that jaxlib {version('jaxlib')} parses"


def _refusal(message: str, text: bytes) -> DataError:
    """Return the error of a text that XLA's parser refuses, at the first place and in the instruction that it names."""
    if places := _PLACE.findall(message):
        line, column, _ = places[0]
        # Later places come from other readings of the same text; their reasons are often clearer.
        reasons = dict.fromkeys(reason.rstrip(": ") for row, place, reason in places if (row, place) == (line, column))
        lines = text.decode(errors="replace").splitlines()[int(line) - 1 :]
        rest = "".join(lines)[int(column) - 1 :].strip()
        if not rest or (len(lines) == 1 and not rest.endswith("}")):
            reasons["the text ends here, and may be truncated"] = None
        instruction = _INSTRUCTION.match(lines[0]) if lines else None
        named = f" ({instruction[1][:100]})" if instruction else ""
        return DataError(f"line {line}, column {column}{named}", _parsed_by_jaxlib(), f"an error: {'; '.join(reasons)}")
    return DataError("file", _parsed_by_jaxlib(), " ".join(message.split()) or "another text")


def _check_utf8(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        lines = text[: error.start].split(b"\n")
        place = f"line {len(lines)}, column {len(lines[-1]) + 1}"
        raise DataError(place, "text in UTF-8", f"byte 0x{text[error.start]:02x}") from None


def _parsed(text: bytes, language: str) -> bytes:
    """Return the serialized HloModuleProto of HLO text or StableHLO.

    Raises:
        DataError: the text is not UTF-8, XLA's parser refuses it, or jaxlib is not installed.
    """
    if not text.startswith(_BYTECODE):
        _check_utf8(text)
    if not has_jaxlib():
        raise DataError("file", f"jaxlib, which parses HLO text and StableHLO: {INSTALL}", "no jaxlib")
    done = _run_parser(text, language, _parsed_by_jaxlib())
    if done.returncode == 1:
        raise _refusal(done.stdout.decode(errors="replace"), text)
    return done.stdout


def has_jaxlib() -> bool:
    """Return True if jaxlib is installed, which reads and writes HLO text; imports nothing."""
    return find_spec("jaxlib") is not None


def _run_parser(data: bytes, form: str, expected: str) -> subprocess.CompletedProcess[bytes]:
    """Run the parser on data, in a process of its own; status 1 is a refusal, with its message.

    Damaged text ends the process, and jaxlib must not be imported into a process that starts others.

    Raises:
        DataError: the process takes more than MAX_SECONDS, or crashes.
    """
    command = [sys.executable, "-P", "-m", "hlorank_collect.xla_parser", form]
    try:
        done = subprocess.run(  # noqa: S603 (hlorank's own module)
            command, input=data, capture_output=True, timeout=MAX_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise DataError("file", f"a program that is parsed within {MAX_SECONDS} seconds", "a slower one") from None
    if done.returncode not in (0, 1):
        ended = signal.Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        raise DataError("file", expected, f"text that ends its parser ({ended})")
    return done


def hlo_text(module: bytes) -> str:
    """Return the HLO text of a serialized HloModuleProto; needs jaxlib.

    Raises:
        DataError: XLA refuses the module.
    """
    expected = "a module that the installed jaxlib writes as text"
    done = _run_parser(module, "text", expected)
    if done.returncode == 1:
        raise DataError("file", expected, " ".join(done.stdout.decode(errors="replace").split()))
    return done.stdout.decode()


def as_protobuf(file: BinaryIO) -> BinaryIO:
    """Return the serialized protobuf of a program in any form.

    Args:
        file: a protobuf, HLO text or StableHLO, which may be compressed by xz or gzip; told apart by the content.

    Returns:
        A file at its start: `file` itself if it is a plain protobuf.

    Raises:
        DataError: the file has more than MAX_BYTES, is damaged, is text of another kind, or is refused by XLA's
            parser; or it is text or StableHLO and jaxlib is not installed.
    """
    file.seek(0)
    head = file.read(_HEAD)
    compression = _decompressor(head)
    file.seek(0)
    if compression is None and not _is_text(head) and _language(head) is None:
        return file
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise DataError("file", f"at most {MAX_BYTES:,} bytes of text or of a compressed file", "more")
    if compression is not None:
        data = _decompressed(data, *compression)
    if (language := _language(data)) is not None:
        data = _parsed(data, language)
    elif data and _is_text(data):
        expected = "HLO text, which begins with HloModule, StableHLO, which begins with module, or a protobuf"
        raise DataError("file", expected, "another text")
    return BytesIO(data)
