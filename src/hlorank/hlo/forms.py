"""Forms of a program other than plain protobufs: compressed files, HLO text and StableHLO."""

import lzma
import math
import re
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import DeviceAssignmentProto, HloModuleProto
from hlorank.hlo.xla_process import INSTALL, XlaError, has_jaxlib, in_process

MAX_BYTES = 256 * 2**20
"""Limit of a file, also decompressed; texts of real programs have about 200 bytes per instruction."""
_MEMORY = 128 * 2**20  # of the dictionary of an xz file; xz -9 needs half of it
_HEAD = 2**20

_COMPRESSIONS: dict[bytes, tuple[str, Callable[[], Any]]] = {
    b"\xfd7zXZ\x00": ("an xz file", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)),
    b"\x1f\x8b": ("a gzip file", lambda: zlib.decompressobj(wbits=31)),
}

# Possessive, as other texts with many blanks or comments at the start would take forever.
_HLO = re.compile(rb"(?>\s+|//[^\n]*\n|/\*.*?\*/)*+HloModule\b", re.DOTALL)
_BYTECODE = b"ML\xefR"
_MLIR = re.compile(
    rb"(?>\s+|//[^\n]*\n)*+(?:module\s*(?:@|attributes\b|\{)|\"builtin\.module\"|\"?func\.func\b|#\w+ =|!\w+ =)"
)
_CODES = {  # of texts by their beginning: a byte order mark, or ASCII characters
    rb"\xff\xfe\0\0|\0\0\xfe\xff": "utf-32",
    rb"\xff\xfe|\xfe\xff": "utf-16",
    rb"\xef\xbb\xbf": "utf-8-sig",
    rb"(?:[\t\n\r]\0)*(?:[ -~]\0){3}": "utf-16-le",
    rb"(?:\0[\t\n\r])*(?:\0[ -~]){3}": "utf-16-be",
}
# Colours, and what absl and TensorFlow write before a line.
_LOGGED = re.compile(rb"\x1b\[[\d;]*m|^(?:[\d-]{10} [\d:.]+: )?[IWEF][\d ][^\]\n]*:\d+\] ?", re.MULTILINE)
# First lines of modules behind those of a log or of Markdown, and of computations of a module without its header.
_START = re.compile(
    rb"^(?:HloModule [\w.\-]+[,\s]|module\b[^\n]*\{|\"builtin\.module\"|\"?func\.func\b|"
    rb"((?:ENTRY )?%?[\w.\-]+ (?:\([^\n]*\) -> [^\n]*)?\{\s*(?:ROOT )?%?[\w.\-]+ = ))",
    re.MULTILINE,
)
# Values have no influence on a graph, and XLA reads none that are left out.
_VALUES = re.compile(
    rb"(?:dense(?:_resource<[^<>]*>|<\s*(?:\"?\.\.\.\"?|__elided__)\s*>)|opaque<\"elided_large_const\"[^<>]*>)"
    rb"(\s*:\s*tensor<((?:\d+x)*)(complex<)?[a-z]+(\d+))"
)
_MAX_VALUES = 32 * 2**20  # bytes of a constant, beyond which it becomes a broadcast of one element
_PARTITIONS = re.compile(rb"^[ \t]*(?:HloModule|module)\b[^\n]*?num_partitions ?= ?(\d{1,6})\b", re.MULTILINE)
_OTHERS = {  # which no protobuf has at its beginning
    b"PK\x03\x04": "a zip file; of torch.export's .pt2, write what exported_program_to_stablehlo of torch_xla makes",
    _BYTECODE: "another form around StableHLO; of jax.export, write exported.mlir_module_serialized",
}
_CONTROL = bytes({*range(32), 127}.difference(b"\t\n\r\f"))
_PLACE = re.compile(r"(?:was parsing |-:)(\d+):(\d+): error: (.*)")
_NEWER = re.compile("[Uu]nknown|unexpected attribute|unregistered|to be one of|but sees|expect(?:ed '|s .* to end)")
_NEWER_XLA = "where a newer XLA made it, install a newer jaxlib, or dump the protobuf before_layout-assignment: no text"
_NEWER_STABLEHLO = "where a newer StableHLO made it, write an older one, as jax.export does, or install a newer jaxlib"
_INSTRUCTION = re.compile(r"\s*(?:ROOT\s+)?(%?[\w.\-]+)\s*=")


class NoProgramError(DataError):
    """A file of something else than HLO and StableHLO."""


def _decompressor(data: bytes) -> tuple[str, Callable[[], Any]] | None:
    return next((known for magic, known in _COMPRESSIONS.items() if data.startswith(magic)), None)


def _decompressed(data: bytes, what: str, new: Callable[[], Any]) -> bytes:
    """Decompress the streams of a file; damage, or more than MAX_BYTES, is a DataError."""
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
                raise DataError("file", f"{what} with an end", "a truncated file")
            data = stream.unused_data.lstrip(b"\0")  # streams may be padded
    except (lzma.LZMAError, zlib.error) as error:
        raise DataError("file", what, error) from None
    return b"".join(parts)


def _is_text(data: bytes) -> bool:
    """Return whether data is the beginning of a text in UTF-8 without control characters, which a protobuf has."""
    try:
        getincrementaldecoder("utf-8")().decode(data)  # the last letter may be cut
    except UnicodeDecodeError:
        return False
    return data.translate(None, _CONTROL) == data


def _language(data: bytes) -> str | None:
    """Return the language of a program, as XLA calls it, from its beginning; None if it is neither of the two."""
    if data.startswith(_BYTECODE) or _MLIR.match(data, 0, _HEAD):
        return "stablehlo"
    return "hlo" if _HLO.match(data, 0, _HEAD) else None


def _normal(data: bytes) -> bytes:
    """Return a text in UTF-8 that begins with its module, on the line of the file; other data as they are."""
    code = next((code for mark, code in _CODES.items() if re.match(mark, data[:64])), None)
    data = data.decode(code, errors="replace").encode() if code else data
    if not data or _language(data) or not _is_text(_LOGGED.sub(b"", data[:_HEAD])):
        return data
    data = _LOGGED.sub(b"", data)
    if (start := _START.search(data, 0, _HEAD)) is None:
        return data
    before, text = data[: start.start()], data[start.start() :]
    if b"```" in before:
        text = text.partition(b"\n```")[0] + b"\n"
    return b"\n" * before.count(b"\n") + b"HloModule module " * bool(start[1]) + text


def _some_values(found: re.Match[bytes]) -> bytes:
    """Return a constant with values in place of one without; not all are equal, as XLA would broadcast one then."""
    element = max(1, int(found[4]) // 8) * (2 if found[3] else 1)
    if not (size := element * math.prod(int(one) for one in found[2].split(b"x")[:-1])):
        return b"dense<>" + found[1]
    return b'dense<"0x01%b">%b' % (b"00" * ((size if size <= _MAX_VALUES else element) - 1), found[1])


def language_of(path: Path, *, around: bool = True) -> str | None:
    """Return the language of a file, `hlo` or `stablehlo`, or None; `around` allows for the lines of a log, too."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if (compression := _decompressor(head)) is not None:
        try:
            head = compression[1]().decompress(head, _HEAD)
        except (lzma.LZMAError, zlib.error):
            return None
    return _language(_normal(head) if around else head)


def _parse_error(message: str, text: bytes) -> DataError:
    """Return the error of a text that XLA's parser refuses, at the first place and in the instruction that it names."""
    stablehlo = "".join(re.findall(r" using StableHLO v([\d.]+),", message)[:1])
    expected = f"HLO text or StableHLO {stablehlo} that jaxlib {version('jaxlib')} parses".replace("  ", " ")
    if not (places := _PLACE.findall(message)) or text.startswith(_BYTECODE):
        return DataError("file", expected, " ".join(message.split()))
    line, column, _ = places[0]
    # Later places come from other readings of the same text; their reasons are often clearer.
    found = [reason for row, place, reason in places if (row, place) == (line, column)]
    said = "; ".join(dict.fromkeys(one.partition(". Allowed attributes")[0].rstrip(":. ") for one in found))
    lines = text.decode(errors="replace").splitlines()[int(line) - 1 :]
    rest = "".join(lines)[int(column) - 1 :].strip()
    if not rest or (len(lines) == 1 and not rest.endswith("}")):
        said += "; the text ends here, and may be truncated"
    elif rest.split()[0] not in said:
        said += f", in {lines[0][max(0, int(column) - 21) :][:60].strip()!r}"
    if "element literal" in said:
        said += "; print all values, which large_elements_limit leaves out"
    elif "unregistered dialect" in said or "Dialect `" in said:
        said += "; lower it to StableHLO, as its framework does"
    elif _NEWER.search(said):
        said += f"; {_NEWER_STABLEHLO if stablehlo else _NEWER_XLA}"
    instruction = _INSTRUCTION.match(lines[0]) if lines else None
    named = f" ({instruction[1][:100]})" if instruction else ""
    return DataError(f"line {line}, column {column}{named}", expected, f"an error: {said}")


@lru_cache(maxsize=1)
def _in_parser(text: bytes, language: str) -> bytes:
    """Parse a text in a process; once where the choice of a ranker reads it before its ranking does."""
    return in_process("parse", text, language)


def _parsed(text: bytes, language: str) -> bytes:
    """Return the serialized HloModuleProto of HLO text or StableHLO."""
    if not text.startswith(_BYTECODE):
        try:
            text.decode()
        except UnicodeDecodeError as error:
            lines = text[: error.start].split(b"\n")
            place = f"line {len(lines)}, column {len(lines[-1]) + 1}"
            raise DataError(place, "text in UTF-8", f"byte 0x{text[error.start]:02x}") from None
    if not has_jaxlib():
        raise DataError("file", f"jaxlib, which parses HLO text and StableHLO: {INSTALL}", "no jaxlib")
    found = _PARTITIONS.search(text)
    partitions = int(found[1]) if found else int(language == "hlo")  # MLIR may have them in other places
    module = HloModuleProto(device_assignment=DeviceAssignmentProto(computation_count=partitions))
    if language == "stablehlo" and not text.startswith(_BYTECODE):
        text = _VALUES.sub(_some_values, text)
    try:
        # The parser leaves the number out: the protobuf gets it where XLA's dumps have it.
        return _in_parser(text, language) + module.SerializeToString()
    except XlaError as error:
        raise _parse_error(str(error), text) from None


def hlo_text(module: bytes) -> str:
    """Return the HLO text of a serialized HloModuleProto; DataError without jaxlib, or where XLA refuses the module."""
    try:
        return in_process("print", module).decode()
    except XlaError as error:
        expected = "a module that the installed jaxlib writes as text"
        raise DataError("file", expected, " ".join(str(error).split())) from None


def as_protobuf(file: BinaryIO) -> bytes:
    """Return the serialized protobuf of a program in any form, recognized by content; else DataError."""
    try:
        file.seek(0)
        data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError("file", "a file that can be read", error.strerror or error) from None
    if len(data) > MAX_BYTES:
        raise DataError("file", f"at most {MAX_BYTES:,} bytes", "more")
    if (compression := _decompressor(data)) is not None:
        data = _decompressed(data, *compression)
    data = _normal(data)
    if (language := _language(data)) is not None:
        return _parsed(data, language)
    if (other := next((line for mark, line in _OTHERS.items() if mark in data[:_HEAD]), None)) is not None:
        raise NoProgramError("file", "HLO or StableHLO", other)
    if data and _is_text(data[:_HEAD]):
        expected = "HLO text, which begins with HloModule, StableHLO, which begins with module, or a protobuf"
        raise NoProgramError("file", expected, "another text")
    return data
