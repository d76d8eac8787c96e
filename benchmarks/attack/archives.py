"""Attack on the reader of archives: wrong paths, links, headers and compressions, and mutations.

A file that is written outside of the output, or with other bytes than its member, is wrong content.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.data.collection import Collection
from hlorank.fetch.tpugraphs import TpuGraphsConfig, fetch

from .cases import Case, WrongContentError
from .mutations import mutate, rezipped
from .npz import graph_bytes

COLLECTION = Collection.parse("layout:xla:default")
ARCHIVE = "npz_layout_xla_default_train.tar"
FOLDER = "npz/layout/xla/default/train"
MEMBER = f"{FOLDER}/graph.npz"
OUTSIDE = "/tmp/hlorank-attack-evil.npz"
PATHS = (
    *("../../../../evil.npz", OUTSIDE, f"{FOLDER}/../../../../../../../evil.npz", f"./{MEMBER}"),
    *(f"{FOLDER}/{name}" for name in ("..", "evil\0.npz", "evil\udcff.npz", "evil\n.npz", "<!--<script>.npz", ".npz")),
    *(f"{FOLDER}/{name}" for name in ("n" * 300 + ".npz", "a\\b.npz")),
)
KINDS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"9")
LINKS = ("/etc/passwd", "../../../..", MEMBER, "evil", "\0")
SPARSE = {"GNU.sparse.name": "x", "GNU.sparse.realsize": "9"}
RECORDS: tuple[dict[str, str], ...] = (
    {"size": "-1"},
    {"size": "99999999999999999999"},
    {**SPARSE, "GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
    {**SPARSE, "GNU.sparse.map": "0,1,x"},
    {"GNU.sparse.size": "abc"},
    {"GNU.sparse.realsize": "9" * 30},
    {"GNU.sparse.numblocks": "1"},
    {"mtime": "nan"},
    {"uid": "x"},
    {"linkpath": "\0"},
    {"hdrcharset": "BINARY"},
)
"""Wrong records of a pax header."""
HEADERS = {
    124: b"\xff" * 12,  # size
    125: b"\x80" + b"\xff" * 11,
    100: b"99999999",  # mode
    148: b"\xff" * 8,  # checksum
    156: b"S",  # type: sparse
    0: b"\0",  # name
}
"""Wrong bytes of a tar header, by place."""


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": partial(gzip.compress, mtime=0), "bzip2": bz2.compress, "xz": lzma.compress,
}  # fmt: skip
GOOD = graph_bytes("layout")


def archive_cases(random: np.random.Generator) -> Iterator[Case]:
    """Yield archives that are wrong in one way each, then unlimited mutated ones."""
    for name, content in special_archives().items():
        yield Case(f"archive {name}", partial(_write_source, content), fetch_archive)
    formats = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT)
    two = {MEMBER: GOOD, f"{FOLDER}/other.npz": graph_bytes("layout", 1)}
    originals = [tar_bytes(two, format=kind) for kind in formats]
    originals.append(_pax(path=f"{FOLDER}/{'deep/' * 30}graph.npz", comment="x" * 600))
    for number, original in enumerate(cycle(originals)):
        changed = mutate(original, random)
        if number % 2:  # headers are a small part of the bytes
            start = (0, original.index(b"ustar", 512) - 257)[int(random.integers(2))]
            header = mutate(original[start : start + 512], random)[:512].ljust(512, b"\0")
            header = _with_checksum(header) if random.integers(2) else header
            changed = original[:start] + header + original[start + 512 :]
        yield Case(f"archive {number}", partial(_write_source, changed), fetch_archive, mutated=True)


def fetch_archive(folder: Path) -> None:
    """Fetch from a folder, and check that nothing is outside of the output and that a member has its bytes."""
    source, output = folder / "source", folder / "output"
    before = contents(source)
    try:
        fetch(COLLECTION, settings(str(source), folder / "downloads"), output)
    finally:
        found = {path.name for path in folder.iterdir()} - {"source", "output", "downloads"}
        if found or contents(source) != before or Path(OUTSIDE).exists():
            raise WrongContentError(f"written outside: {found}")
    for path in (output / "train").glob("*.npz"):
        if path.read_bytes() not in (GOOD, graph_bytes("tile")) and path.read_bytes() not in before[ARCHIVE]:
            raise WrongContentError(path.name)


def settings(base_url: str, downloads: Path) -> TpuGraphsConfig:
    """Return settings of a fetch with few and short tries."""
    tries = {"keep_archives": False, "retries": 2, "timeout_seconds": 1.0}
    return TpuGraphsConfig.model_validate(
        {"base_url": base_url, "splits": ["train"], "downloads": str(downloads), **tries}
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a folder by their path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def special_archives() -> dict[str, bytes | Callable[[], bytes]]:
    """Return archives that are wrong in one way each, or functions that make large ones, by name."""
    plain, links = tar_bytes({MEMBER: GOOD}), {MEMBER: GOOD, f"{FOLDER}/evil.npz": b"", "evil": b""}
    found: dict[str, bytes | Callable[[], bytes]] = {}
    for path in PATHS:
        found[f"tar path {path!r}"] = tar_bytes({MEMBER: GOOD, path: GOOD}, errors="surrogateescape")
        found[f"tar pax path {path!r}"] = _pax(path=path)
    for kind in KINDS:
        found |= {f"tar {kind!r} to {link!r}": tar_bytes(links, partial(_make_special, kind, link)) for link in LINKS}
    found |= {f"tar pax {records}": _pax(**records) for records in RECORDS}
    for place, text in HEADERS.items():
        found[f"tar header byte {place}"] = changed = plain[:place] + text + plain[place + len(text) :]
        if place != 148:
            found[f"tar header byte {place}, right checksum"] = _with_checksum(changed)
    for name, pack in PACKERS.items():
        found |= {f"tar in {name}": pack(plain), f"tar in {name}, truncated": pack(plain)[:-20]}
        found[f"member in {name}"] = tar_bytes({MEMBER: pack(GOOD)})
    for compression in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        packed = rezipped(GOOD, compression=compression)
        found[f"npz compression {compression}"] = tar_bytes({MEMBER: packed})
        for place in range(40, len(packed), len(packed) // 8):
            broken = packed[:place] + bytes(byte ^ 255 for byte in packed[place : place + 9]) + packed[place + 9 :]
            found[f"npz compression {compression} damaged at {place}"] = tar_bytes({MEMBER: broken})
    return found | {
        "tar old sparse": _old_sparse(),
        "npz of 300 MB in LZMA": lambda: tar_bytes({MEMBER: _with_member("x.npy", bytes(3 * 10**8), zipfile.ZIP_LZMA)}),
        "npz with a path out": tar_bytes({MEMBER: _with_member("../../../evil.npy")}),
        "npz with NUL": tar_bytes({MEMBER: _with_member("a\0b.npy")}),
        "zip in place of tar": GOOD,
        "twice the same": tar_bytes({MEMBER: GOOD, f"a/{MEMBER}": GOOD}),
        "no end": plain[: plain.rindex(GOOD[-100:]) + 100],
        "empty": b"",
        "zeros": bytes(10_240),
        "300,000 members": lambda: tarfile.TarInfo("npz/x").tobuf() * 300_000 + bytes(1024),
        "good": plain,
    }


def tar_bytes(members: dict[str, bytes], change: Callable[[tarfile.TarInfo], object] = str, **options: Any) -> bytes:
    """Return a tar archive; `change` edits the header of each member."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", **options) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            change(info)
            tar.addfile(info, io.BytesIO(data))
    return output.getvalue()


def _write_source(content: bytes | Callable[[], bytes], folder: Path) -> None:
    (folder / "source").mkdir()
    (folder / "source" / "LICENSE").write_text("licence")
    (folder / "source" / ARCHIVE).write_bytes(content if isinstance(content, bytes) else content())


def _make_special(kind: bytes, link: str, info: tarfile.TarInfo) -> None:
    if info.name == "evil" or "/evil" in info.name:
        info.type, info.linkname, info.size = kind, link, 0


def _pax(**records: str) -> bytes:
    return tar_bytes({MEMBER: GOOD}, lambda info: setattr(info, "pax_headers", records), format=tarfile.PAX_FORMAT)


def _with_checksum(archive: bytes) -> bytes:
    """Return an archive whose first header has the right checksum."""
    header = archive[:148] + b" " * 8 + archive[156:512]
    return archive[:148] + b"%06o\0 " % sum(header) + archive[156:]


def _old_sparse() -> bytes:
    info = tarfile.TarInfo(MEMBER)
    info.size = len(GOOD)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[156:157], header[386:410], header[482:483] = b"S", b"zzzzzzzzzzz\0" * 2, b"\1"
    return _with_checksum(bytes(header) + GOOD + bytes(-len(GOOD) % 512 + 1024))


def _with_member(name: str, data: bytes = b"x", compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return the good file with a further member of any name."""
    output = io.BytesIO(GOOD)
    with zipfile.ZipFile(output, "a") as file:
        info = zipfile.ZipInfo("x.npy")
        info.filename = name
        file.writestr(info, data, compression)
    return output.getvalue()
