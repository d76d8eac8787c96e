"""Downloads that resume, retry and are bounded, and the extraction of archives."""

from __future__ import annotations

import errno
import io
import logging
import pickle
import shutil
import tarfile
from collections import namedtuple
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from hlorank.fetch import download as module
from hlorank.fetch.download import CHUNK_BYTES as CHUNK
from hlorank.fetch.download import DownloadError, download, extract, require_space
from hlorank.files import DataError
from tests.fetch.conftest import Fault, Server

SIZE = 5 * CHUNK - 7
CONTENT = np.random.default_rng(0).bytes(SIZE)
CHANGED = np.random.default_rng(1).bytes(SIZE)

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def target(server: Server, tmp_path: Path) -> Path:
    server.files["file"] = CONTENT
    return tmp_path / "folder" / "file"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the waits between attempts instead of waiting."""
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    return waits


def get(server: Server, target: Path, *, retries: int = 3, unpack_to: Path | None = None) -> None:
    download(f"{server.base_url}/file", target, retries=retries, timeout=10, unpack_to=unpack_to)


def assert_complete(target: Path, content: bytes = CONTENT) -> None:
    assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == ["file"], "nothing else is left"


def interrupt(server: Server, target: Path, after: int) -> Path:
    """Leave a partial download, as a killed process does."""
    server.faults.append(Fault(stop_after=after))
    with pytest.raises(DownloadError, match="gave up"):
        get(server, target, retries=0)
    (partial,) = target.parent.iterdir()
    assert partial.stat().st_size == after
    server.ranges_asked.clear()
    return partial


@pytest.mark.parametrize("version", [{}, {"ETag": None, "Last-Modified": formatdate(0)}, {"ETag": None}])
def test_dropped_connections_resume_and_a_complete_file_is_not_asked_for(
    server: Server, target: Path, version: dict[str, str | None]
) -> None:
    server.headers |= version
    server.faults += [Fault(stop_after=2 * CHUNK), Fault(stop_after=CHUNK)]
    get(server, target)
    get(server, target)
    assert_complete(target)
    assert server.ranges_asked == [None, f"bytes={2 * CHUNK}-", f"bytes={3 * CHUNK}-"]


@pytest.mark.parametrize(
    ("version", "content"),
    [
        ({}, CHANGED),
        ({}, CHANGED[:1000]),
        ({"ETag": None, "Last-Modified": formatdate(0)}, CHANGED),
        ({"ETag": None}, CHANGED[:-1]),
        ({"ETag": None}, CHANGED[:9]),
    ],
    ids=["ETag", "short", "date", "size", "short without identity"],
)
def test_changed_content_is_never_mixed(
    server: Server, target: Path, version: dict[str, str | None], content: bytes
) -> None:
    server.headers |= version
    interrupt(server, target, 2 * CHUNK)
    if "Last-Modified" in version:
        server.headers["Last-Modified"] = formatdate(1)
    server.files["file"] = content
    get(server, target)
    assert_complete(target, content)
    assert server.ranges_asked == [f"bytes={2 * CHUNK}-", None]


def test_only_bytes_of_the_same_address_and_at_most_its_size_are_taken(server: Server, target: Path) -> None:
    partial = interrupt(server, target, 2 * CHUNK)
    server.files["mirror/file"] = CONTENT
    partial.write_bytes(CHANGED)  # complete, of the first address
    download(f"{server.base_url}/mirror/file", target, retries=0, timeout=10)
    assert_complete(target)
    target.unlink()
    partial.write_bytes(CONTENT + b"more")
    get(server, target)
    assert_complete(target)
    assert server.ranges_asked == [None, f"bytes={SIZE + 4}-", None]
    for left in (CONTENT[:CHUNK], CONTENT):  # killed after the rename, and before it
        partial.write_bytes(left)
        get(server, target)
        assert_complete(target)
        if left != CONTENT:
            target.unlink()
    assert len(server.ranges_asked) == 3


def test_a_server_without_ranges_sends_the_whole_again_and_failures_without_progress_count(
    server: Server, target: Path
) -> None:
    server.faults += [Fault(stop_after=CHUNK)] * 4
    get(server, target, retries=1)
    assert_complete(target)
    target.unlink()
    server.ranges = False
    server.faults += [Fault(stop_after=CHUNK)] * 3
    with pytest.raises(DownloadError, match="gave up after 3 failures"):
        get(server, target, retries=2)
    server.ranges_asked.clear()
    get(server, target)
    assert_complete(target)
    assert server.ranges_asked == [f"bytes={CHUNK}-"]


def test_busy_servers_are_asked_again_after_bounded_waits(
    server: Server, target: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BACKOFF_SECONDS", 3.0)
    asked = {"7": 7.0, "3600": 60.0, formatdate(0, usegmt=True): 0.0}
    wrong = {"9" * 5000: 24.0, "-5": 48.0, "x": 60.0, "Fri, 31 Dec 99999 23:59:59 GMT": 60.0}
    for status, value in zip((408, 425, 429, 500, 502, 503, 504), asked | wrong, strict=True):
        server.faults.append(Fault(status, {"Retry-After": value}))
    with caplog.at_level(logging.WARNING):
        get(server, target, retries=7)
    assert_complete(target)
    assert waits == [*asked.values(), *wrong.values()]
    assert "/file: HTTP 425" in caplog.messages[1]
    assert "retry 2 of 7" in caplog.messages[1]


def test_final_errors_fail_at_once_in_one_line_and_cross_processes(server: Server, target: Path) -> None:
    faults = {r"HTTP 404 .*\\x1b.*check the base URL": Fault(404), "gzip": Fault(200, {"Content-Encoding": "gzip"})}
    server.reason = "\x1b[31m" + "x" * 5000
    for number, (reason, fault) in enumerate(faults.items()):
        server.faults.append(fault)
        with pytest.raises(DownloadError, match=rf"^{server.base_url}/file: .*{reason}") as error:
            get(server, target)
        assert str(error.value).isprintable()
        assert len(str(error.value)) <= 500
        assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
        assert len(server.requests) == number + 1
    assert list(target.parent.iterdir()) == []


def test_credentials_are_nowhere_in_messages_and_records(
    server: Server, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.base_url.replace("//", "//me:secret@") + "/file?token=secret"
    server.files["file?token=secret"] = CONTENT
    server.faults += [Fault(stop_after=CHUNK), Fault(503), Fault(404)]
    with pytest.raises(DownloadError, match=r"\*\*\*@127") as failure:
        download(url, target, retries=5, timeout=5)
    names = [path.name for path in target.parent.iterdir()]
    assert len(caplog.messages) == 2
    assert not any("secret" in text for text in [str(failure.value), *caplog.messages, *names])
    download(url, target, retries=0, timeout=5)
    assert server.ranges_asked[-1] == f"bytes={CHUNK}-"


def test_the_number_of_bytes_is_bounded(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNANNOUNCED_BYTES", SIZE - 1)
    more: list[dict[str, str | None]] = [
        {"Transfer-Encoding": "chunked", "Content-Length": str(SIZE - 1)},
        *({"Content-Length": length} for length in (None, "abc", "", "-5", "1e5", "9" * 5000)),
    ]
    for headers in more:
        server.headers = headers
        with pytest.raises(DownloadError, match=str(SIZE - 1)):
            get(server, target)
        assert not list(target.parent.iterdir())
    monkeypatch.setattr(module, "MAX_UNANNOUNCED_BYTES", SIZE)
    get(server, target)
    assert_complete(target)


def test_redirects_are_followed_without_their_bodies_and_not_to_nowhere(server: Server, target: Path) -> None:
    with pytest.raises(DownloadError, match=r"gave up after 2 failures in a row"):
        download("http://127.0.0.1:1/file", target, retries=1, timeout=10)  # where nobody listens
    for location in ("http://", "http://x:99999999/", "file:///etc/passwd", "\xff\xfe", "/v0/file"):
        server.faults.extend([Fault(302, {"Location": location})] * 20)
        with pytest.raises(DownloadError, match="file"):
            get(server, target)
        server.faults.clear()
        assert not target.exists()
    # Its body never comes.
    server.faults.append(Fault(302, {"Location": "/v0/file?a", "Transfer-Encoding": "chunked"}))
    server.files["file?a"] = CONTENT
    get(server, target)
    assert_complete(target)


def test_space_for_the_missing_bytes_and_the_content_is_needed(
    server: Server, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 2 * SIZE - 1))
    with pytest.raises(OSError, match=r"655.3 kB needed, 655.3 kB free") as error:
        get(server, target, unpack_to=tmp_path / "not" / "there")
    assert error.value.errno == errno.ENOSPC
    assert len(server.requests) == 1, "space does not come back by retrying"
    interrupt(server, target, 3 * CHUNK)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, SIZE - 3 * CHUNK))
    get(server, target)
    assert_complete(target)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 90, 10))
    require_space([(tmp_path / "a" / "b", 4), (tmp_path, 6)])
    with pytest.raises(OSError, match="11 bytes needed, 10 bytes free"):
        require_space([(tmp_path / "a" / "b", 4), (tmp_path, 7)])


# Archives

A, B = b"a" * 1000, b"b" * 2000
Fill = Callable[[tarfile.TarFile], None]


def is_npz(path: PurePosixPath) -> bool:
    return path.suffix == ".npz"


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", **attributes: object) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in attributes.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(data))


def good(tar: tarfile.TarFile) -> None:
    add(tar, "npz", type=tarfile.DIRTYPE)
    add(tar, "./npz/a.npz", A, mode=0o4777)
    add(tar, "npz/README", b"text")
    add(tar, "b.npz", B)


@pytest.fixture
def build(tmp_path: Path) -> Callable[[Fill], Path]:
    def build(fill: Fill) -> Path:
        path = tmp_path / "archive.tar"
        with tarfile.open(path, "w") as tar:
            fill(tar)
        return path

    return build


def test_only_wanted_files_are_extracted(build: Callable[[Fill], Path], tmp_path: Path) -> None:
    target = tmp_path / "target"
    extract(build(good), target, is_npz)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {"a.npz": A, "b.npz": B}
    assert (target / "a.npz").stat().st_mode & 0o7111 == 0, "modes of the archive are not taken over"
    with pytest.raises(FileExistsError):  # a link there would lead the bytes elsewhere
        extract(build(good), target, is_npz)


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x", "GNU.sparse.realsize": "9"}


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        *((name, {}) for name in ("../escape.npz", "npz/../../escape.npz", "/tmp/escape.npz")),
        ("../escape", {"type": tarfile.DIRTYPE}),
        *(("x.npz", {"type": kind, "linkname": "a.npz"}) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)),
        *(("x", {"type": kind, "devmajor": 1}) for kind in (tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE)),
        *(("x.npz", {"pax_headers": {"path": name}}) for name in ("a\0.npz", "a\n.npz", "<b>.npz", "n" * 300 + ".npz")),
        *(("x.npz", {"pax_headers": records}) for records in ({"size": "abc"}, {"GNU.sparse.map": "0,1,x"}, SPARSE)),
    ],
)
def test_members_that_are_unsafe_or_that_tarfile_stumbles_over_condemn_the_archive(
    build: Callable[[Fill], Path], tmp_path: Path, name: str, attributes: dict[str, object]
) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        add(tar, name, b"" if "type" in attributes else A, **attributes)
        add(tar, f"{name}/a.npz", A)

    target = tmp_path / "in" / "side" / "target"
    with pytest.raises(DataError, match=r"archive\.tar: ") as error:
        extract(build(fill), target, is_npz)
    assert str(error.value).isprintable()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != target]
    assert files == [tmp_path / "archive.tar"]


def test_members_are_bounded_in_number_wanted_and_unique(
    build: Callable[[Fill], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(tar: tarfile.TarFile) -> None:
        add(tar, "one/a.npz", A)
        add(tar, "two/a.npz", B)

    with pytest.raises(DataError, match="members: expected the wanted files, found none"):
        extract(build(good), tmp_path / "target", lambda path: False)
    with pytest.raises(DataError, match=r"two/a.npz: expected each file once"):
        extract(build(twice), tmp_path / "other", is_npz)
    monkeypatch.setattr(module, "MAX_MEMBERS", 3)
    with pytest.raises(DataError, match="members: expected at most 3"):
        extract(build(good), tmp_path / "third", is_npz)


def test_damaged_archives_are_refused(build: Callable[[Fill], Path], tmp_path: Path) -> None:
    archive = build(good)
    content = archive.read_bytes()
    with tarfile.open(archive) as tar:
        headers = [member.offset for member in tar.getmembers()]
    cut = [content[:length] for length in (0, 100, 512, 700, 1024, 1536, 2048, 3072, 4096, 5000)]
    # A damaged header in the middle is no end.
    flipped = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in (130 + start for start in headers)]
    for number, damaged in enumerate([*cut, *flipped, b"<html>404</html>" * 100]):
        archive.write_bytes(damaged)
        with pytest.raises(DataError, match=r"archive.tar: archive: expected"):
            extract(archive, tmp_path / str(number), is_npz)
