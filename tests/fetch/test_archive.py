from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from hlorank.fetch.archive import extract
from hlorank.files import DataError

A, B = b"a" * 1000, b"b" * 2000


def is_npz(path: PurePosixPath) -> bool:
    return path.suffix == ".npz"


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", **attributes: object) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in attributes.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(data))


@pytest.fixture
def build(tmp_path: Path) -> Callable[[Callable[[tarfile.TarFile], None]], Path]:
    def build(fill: Callable[[tarfile.TarFile], None]) -> Path:
        path = tmp_path / "archive.tar"
        with tarfile.open(path, "w") as tar:
            fill(tar)
        return path

    return build


Build = Callable[[Callable[[tarfile.TarFile], None]], Path]


def good(tar: tarfile.TarFile) -> None:
    add(tar, "npz", type=tarfile.DIRTYPE)
    add(tar, "./npz/a.npz", A, mode=0o4777)
    add(tar, "npz/README", b"text")
    add(tar, "b.npz", B)


def test_only_wanted_files(build: Build, tmp_path: Path) -> None:
    target = tmp_path / "target"
    extract(build(good), target, is_npz)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {"a.npz": A, "b.npz": B}
    assert (target / "a.npz").stat().st_mode & 0o7111 == 0, "modes of the archive are not taken over"


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("../escape.npz", tarfile.REGTYPE, "inside"),
        ("npz/../../escape.npz", tarfile.REGTYPE, "inside"),
        ("../escape", tarfile.DIRTYPE, "inside"),
        ("/tmp/escape.npz", tarfile.REGTYPE, "relative"),
        ("link.npz", tarfile.SYMTYPE, "regular"),
        ("hardlink.npz", tarfile.LNKTYPE, "regular"),
        ("block.npz", tarfile.BLKTYPE, "regular"),
        ("character", tarfile.CHRTYPE, "regular"),
        ("pipe", tarfile.FIFOTYPE, "regular"),
        ("sparse.npz", tarfile.GNUTYPE_SPARSE, "regular"),
    ],
)
def test_unsafe_members_condemn_the_archive(
    build: Build, tmp_path: Path, name: str, kind: bytes, expected: str
) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        add(tar, name, type=kind, linkname="a.npz", devmajor=1, devminor=3)
        add(tar, "a.npz", A)

    folder = tmp_path / "in" / "side"
    with pytest.raises(DataError, match=rf"archive.tar: {name}: expected .*{expected}"):
        extract(build(fill), folder / "target", is_npz)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "archive.tar"]


@pytest.mark.parametrize(
    "records",
    [
        {"path": "a\0.npz"},
        {"path": "a\n.npz"},
        {"path": "<!--<script>.npz"},
        {"path": f"{'n' * 300}.npz"},
        {"size": "abc"},
        {"GNU.sparse.size": "abc"},
        {"GNU.sparse.map": "0,1,x"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x", "GNU.sparse.realsize": "9"},
    ],
)
def test_records_that_tarfile_stumbles_over(build: Build, tmp_path: Path, records: dict[str, str]) -> None:
    with pytest.raises(DataError, match=r"archive\.tar: ") as error:
        extract(build(lambda tar: add(tar, "a.npz", A, pax_headers=records)), tmp_path / "target", is_npz)
    assert str(error.value).isprintable()
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"archive.tar", "a.npz"}


def test_the_number_of_members_is_bounded(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = build(good)
    monkeypatch.setattr("hlorank.fetch.archive.MAX_MEMBERS", 3)
    with pytest.raises(DataError, match="members: expected at most 3"):
        extract(archive, tmp_path / "target", is_npz)


def test_symlink_then_file_through_it(build: Build, tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        add(tar, "a.npz", A)
        add(tar, "out", type=tarfile.SYMTYPE, linkname=str(tmp_path / "outside"))
        add(tar, "out/b.npz", B)

    (tmp_path / "outside").mkdir()
    with pytest.raises(DataError, match="out: expected a regular file or a folder"):
        extract(build(fill), tmp_path / "target", is_npz)
    assert list((tmp_path / "outside").iterdir()) == []


def test_replaces_links_at_the_target(build: Build, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"keep")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "a.npz").symlink_to(tmp_path / "outside")
    extract(build(good), tmp_path / "target", is_npz)
    assert (tmp_path / "outside").read_bytes() == b"keep"
    assert (tmp_path / "target" / "a.npz").read_bytes() == A


def test_repeated_names(build: Build, tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        add(tar, "one/a.npz", A)
        add(tar, "two/a.npz", B)

    with pytest.raises(DataError, match=r"two/a.npz: expected each file once"):
        extract(build(fill), tmp_path / "target", is_npz)


def test_nothing_wanted(build: Build, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected the wanted files, found none"):
        extract(build(good), tmp_path / "target", lambda path: False)


@pytest.mark.parametrize("length", [0, 100, 512, 700, 1024, 1536, 2048, 3072, 4096, 5000])
def test_truncated_anywhere(build: Build, tmp_path: Path, length: int) -> None:
    archive = build(good)
    archive.write_bytes(archive.read_bytes()[:length])
    with pytest.raises(DataError, match=r"archive.tar: "):
        extract(archive, tmp_path / "target", is_npz)


@pytest.mark.parametrize("member", range(4))
def test_damaged_header(build: Build, tmp_path: Path, member: int) -> None:
    archive = build(good)
    with tarfile.open(archive) as tar:
        offset = tar.getmembers()[member].offset
    data = bytearray(archive.read_bytes())
    data[offset + 130] ^= 1
    archive.write_bytes(data)
    with pytest.raises(DataError, match=r"archive.tar: archive: expected"):
        extract(archive, tmp_path / "target", is_npz)


def test_not_a_tar(tmp_path: Path) -> None:
    (tmp_path / "archive.tar").write_bytes(b"<html>404</html>" * 100)
    with pytest.raises(DataError, match="complete, uncompressed tar file"):
        extract(tmp_path / "archive.tar", tmp_path / "target", is_npz)
