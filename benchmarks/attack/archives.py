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

from .cases import Case, WrongContentError, mutate
from .npz import graph_bytes, rezipped

COLLECTION = Collection.parse("layout:xla:default")
ARCHIVE = "npz_layout_xla_default_train.tar"
FOLDER = "npz/layout/xla/default/train"
MEMBER = f"{FOLDER}/graph.npz"
OUTSIDE = "/tmp/hlorank-attack-evil.npz"
SPARSE = {
    "GNU.sparse.major": "1",
    "GNU.sparse.minor": "0",
    "GNU.sparse.name": "x",
    "GNU.sparse.realsize": "9",
}
RECORDS: tuple[dict[str, str], ...] = (
    {"size": "-1"},
    {"size": "99999999999999999999"},
    SPARSE,
    {"GNU.sparse.map": "0,1,x", "GNU.sparse.name": "x", "GNU.sparse.realsize": "9"},
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


def archive_cases(random: np.random.Generator) -> Iterator[Case]:
    """Yield archives that are wrong in one way each, then unlimited mutated ones."""
    for name, make in special_archives():
        yield Case(f"archive {name}", partial(_write_source, make), fetch_archive)
    good = graph_bytes("layout")
    originals = [
        tar_bytes({MEMBER: good, f"{FOLDER}/other.npz": graph_bytes("layout", 1)}, format=kind)
        for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT)
    ]
    originals.append(_pax(path=f"{FOLDER}/{'deep/' * 30}graph.npz", comment="x" * 600))
    for number, original in enumerate(cycle(originals)):
        if number % 2:  # headers are a small part of the bytes
            start = (0, original.index(b"ustar", 512) - 257)[int(random.integers(2))]
            header = mutate(original[start : start + 512], random)[:512].ljust(512, b"\0")
            header = _with_checksum(header) if random.integers(2) else header
            changed = original[:start] + header + original[start + 512 :]
        else:
            changed = mutate(original, random)
        yield Case(f"archive {number}", partial(_write_source, partial(bytes, changed)), fetch_archive, mutated=True)


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
    good = [graph_bytes("layout"), graph_bytes("tile")]
    for path in (output / "train").glob("*.npz"):
        if path.read_bytes() not in good and path.read_bytes() not in before[ARCHIVE]:
            raise WrongContentError(path.name)


def settings(base_url: str, downloads: Path) -> TpuGraphsConfig:
    """Return settings of a fetch with few and short tries."""
    return TpuGraphsConfig(
        base_url=base_url,
        splits=["train"],
        downloads=str(downloads),
        keep_archives=False,
        retries=2,
        timeout_seconds=1.0,
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a folder by their path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def special_archives() -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield archives that are wrong in one way each."""
    good = graph_bytes("layout")
    members = {MEMBER: good}
    plain = tar_bytes(members)
    for path in (
        "../../../../evil.npz",
        OUTSIDE,
        f"{FOLDER}/../../../../../../../evil.npz",
        f"{FOLDER}/..",
        f"{FOLDER}/evil\0.npz",
        f"{FOLDER}/evil\udcff.npz",
        f"{FOLDER}/evil\n.npz",
        f"{FOLDER}/<!--<script>.npz",
        f"{FOLDER}/{'n' * 300}.npz",
        f"{FOLDER}/.npz",
        f"./{MEMBER}",
        f"{FOLDER}/a\\b.npz",
    ):
        yield f"tar path {path!r}", partial(tar_bytes, {**members, path: good}, errors="surrogateescape")
        yield f"tar pax path {path!r}", partial(_pax, path=path)
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"9"):
        for link in ("/etc/passwd", "../../../..", MEMBER, "evil", "\0"):
            special = {**members, f"{FOLDER}/evil.npz": b"", "evil": b""}
            yield f"tar {kind!r} to {link!r}", partial(tar_bytes, special, partial(_make_special, kind, link))
    for records in RECORDS:
        yield f"tar pax {records}", partial(_pax, **records)
    for place, text in HEADERS.items():
        changed = plain[:place] + text + plain[place + len(text) :]
        yield f"tar header byte {place}", partial(bytes, changed)
        if place != 148:
            yield f"tar header byte {place}, right checksum", partial(bytes, _with_checksum(changed))
    yield "tar old sparse", partial(_old_sparse, good)
    packers: dict[str, Callable[[bytes], bytes]] = {
        "gzip": partial(gzip.compress, mtime=0),
        "bzip2": bz2.compress,
        "xz": lzma.compress,
    }
    for name, pack in packers.items():
        yield f"tar in {name}", partial(pack, plain)
        yield f"tar in {name}, truncated", partial(bytes, pack(plain)[:-20])
        yield f"member in {name}", partial(tar_bytes, {MEMBER: pack(good)})
    for compression in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        packed = rezipped(good, compression=compression)
        yield f"npz compression {compression}", partial(tar_bytes, {MEMBER: packed})
        for place in range(40, len(packed), len(packed) // 8):
            broken = packed[:place] + bytes(byte ^ 255 for byte in packed[place : place + 9]) + packed[place + 9 :]
            yield f"npz compression {compression} damaged", partial(tar_bytes, {MEMBER: broken})
    yield "npz of 300 MB in LZMA", lambda: tar_bytes({MEMBER: _zip_bomb()})
    yield "npz with a path out", lambda: tar_bytes({MEMBER: _zip_with("../../../evil.npy", good)})
    yield "npz with NUL", lambda: tar_bytes({MEMBER: _zip_with("a\0b.npy", good)})
    yield "zip in place of tar", partial(bytes, good)
    yield "twice the same", partial(tar_bytes, {MEMBER: good, f"a/{MEMBER}": good})
    yield "no end", lambda: plain[: plain.rindex(good[-100:]) + 100]
    yield "empty", bytes
    yield "zeros", partial(bytes, 10_240)
    yield "300,000 members", lambda: tarfile.TarInfo("npz/x").tobuf() * 300_000 + bytes(1024)
    yield "good", partial(bytes, plain)


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


def _write_source(make: Callable[[], bytes], folder: Path) -> None:
    (folder / "source").mkdir()
    (folder / "source" / "LICENSE").write_text("licence")
    (folder / "source" / ARCHIVE).write_bytes(make())


def _make_special(kind: bytes, link: str, info: tarfile.TarInfo) -> None:
    if info.name == "evil" or "/evil" in info.name:
        info.type, info.linkname, info.size = kind, link, 0


def _pax(**records: str) -> bytes:
    def change(info: tarfile.TarInfo) -> None:
        info.pax_headers = dict(records)

    return tar_bytes({MEMBER: graph_bytes("layout")}, change, format=tarfile.PAX_FORMAT)


def _with_checksum(archive: bytes) -> bytes:
    """Return an archive whose first header has the right checksum."""
    header = archive[:148] + b" " * 8 + archive[156:512]
    return archive[:148] + b"%06o\0 " % sum(header) + archive[156:]


def _old_sparse(data: bytes) -> bytes:
    info = tarfile.TarInfo(MEMBER)
    info.size = len(data)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[156:157] = b"S"
    header[386:410] = b"zzzzzzzzzzz\0" * 2
    header[482:483] = b"\1"
    return _with_checksum(bytes(header) + data + bytes(-len(data) % 512 + 1024))


def _zip_bomb() -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_LZMA) as file, file.open("node_feat.npy", "w") as stream:
        for _ in range(300):
            stream.write(bytes(2**20))
    return output.getvalue()


def _zip_with(name: str, data: bytes) -> bytes:
    output = io.BytesIO(data)
    with zipfile.ZipFile(output, "a") as file:
        info = zipfile.ZipInfo("x.npy")
        info.filename = name
        file.writestr(info, b"x")
    return output.getvalue()
