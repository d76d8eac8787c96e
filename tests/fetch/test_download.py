"""Downloads that resume, retry and are bounded, and the extraction of archives."""

import errno
import pickle
import shutil
import tarfile
from collections import namedtuple
from email.utils import formatdate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.fetch import download as module
from hlorank.fetch.download import CHUNK_BYTES as CHUNK
from hlorank.fetch.download import DownloadError, download, extract, require_space
from hlorank.files import DataError
from tests.fetch.conftest import Fault, Server, member, tar

SIZE = 5 * CHUNK - 7
CONTENT = np.random.default_rng(0).bytes(SIZE)
CHANGED = np.random.default_rng(1).bytes(SIZE)

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def target(server: Server, tmp_path: Path) -> Path:
    server.files["file"] = CONTENT
    return tmp_path / "folder" / "file"


def get(server: Server, target: Path, name: str = "file", content: bytes = CONTENT, **options: Any) -> None:
    """Download a file, and check that it is complete and that nothing else is left."""
    download(f"{server.base_url}/{name}", target, **{"retries": 3, "timeout": 10, **options})
    assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == ["file"]


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
def test_changed_content_is_new(server: Server, target: Path, version: dict[str, str | None], content: bytes) -> None:
    server.headers |= version
    interrupt(server, target, 2 * CHUNK)
    if "Last-Modified" in version:
        server.headers["Last-Modified"] = formatdate(1)
    server.files["file"] = content
    get(server, target, content=content)
    assert server.ranges_asked == [f"bytes={2 * CHUNK}-", None]


def test_only_bytes_of_the_same_address_and_at_most_its_size_are_taken(server: Server, target: Path) -> None:
    partial = interrupt(server, target, 2 * CHUNK)
    server.files["mirror/file"] = CONTENT
    partial.write_bytes(CHANGED)  # complete, of the first address
    get(server, target, "mirror/file", retries=0)
    target.unlink()
    partial.write_bytes(CONTENT + b"more")
    get(server, target)
    assert server.ranges_asked == [None, f"bytes={SIZE + 4}-", None]
    for left in (CONTENT[:CHUNK], CONTENT):  # killed after the rename, and before it
        partial.write_bytes(left)
        get(server, target)
        if left != CONTENT:
            target.unlink()
    assert len(server.ranges_asked) == 3


def test_a_server_without_ranges_sends_all_again_and_failures_without_bytes_count(server: Server, target: Path) -> None:
    server.faults += [Fault(stop_after=CHUNK)] * 4
    get(server, target, retries=1)
    target.unlink()
    server.ranges = False
    server.faults += [Fault(stop_after=CHUNK)] * 3
    with pytest.raises(DownloadError, match="gave up after 3 failures"):
        get(server, target, retries=2)
    server.ranges_asked.clear()
    get(server, target)
    assert server.ranges_asked == [f"bytes={CHUNK}-"]


def test_a_shorter_answer_than_its_range_is_continued(server: Server, target: Path) -> None:
    interrupt(server, target, 2 * CHUNK)
    server.headers["Content-Length"] = str(CHUNK)
    server.faults.append(Fault(stop_after=CHUNK))
    with pytest.raises(DownloadError, match=f"{3 * CHUNK} of {SIZE} bytes received"):
        get(server, target, retries=0)
    assert not target.exists()
    del server.headers["Content-Length"]
    get(server, target)
    assert server.ranges_asked == [f"bytes={2 * CHUNK}-", f"bytes={3 * CHUNK}-"]


def test_busy_servers_are_asked_again_after_bounded_waits(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr(module, "BACKOFF_SECONDS", 3.0)
    asked = {"7": 7.0, "3600": 60.0, formatdate(0, usegmt=True): 0.0}
    wrong = {"9" * 5000: 24.0, "-5": 48.0, "x": 60.0, "Fri, 31 Dec 99999 23:59:59 GMT": 60.0}
    for status, value in zip((408, 425, 429, 500, 502, 503, 504), asked | wrong, strict=True):
        server.faults.append(Fault(status, {"Retry-After": value}))
    get(server, target, retries=7)
    assert waits == [*asked.values(), *wrong.values()]
    assert "/file: HTTP 425" in caplog.messages[1]
    assert "retry 2 of 7" in caplog.messages[1]


def test_final_errors_are_raised_at_once_in_one_line_without_credentials_and_cross_processes(
    server: Server, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.base_url.replace("//", "//me:secret@") + "/file?token=secret"
    server.files["file?token=secret"] = CONTENT
    server.reason = "\x1b[31m" + "x" * 5000
    faults = {r"HTTP 404 .*\\x1b.*check the base URL": Fault(404), "gzip": Fault(200, {"Content-Encoding": "gzip"})}
    faults["a page"] = Fault(200, {"Content-Type": "text/html; charset=utf-8"})
    for reason, fault in faults.items():
        server.faults += [Fault(stop_after=CHUNK), Fault(503), fault]
        with pytest.raises(DownloadError, match=rf"^http://\*\*\*@127\..*{reason}") as failure:
            download(url, target, retries=5, timeout=5)
        message = str(failure.value)
        assert message.isprintable()
        assert len(message) <= 500
        assert str(pickle.loads(pickle.dumps(failure.value))) == message
        names = [path.name for path in target.parent.iterdir()]
        assert not any("secret" in text for text in [message, *caplog.messages, *names])
    assert len(caplog.messages) == 6
    download(url, target, retries=0, timeout=5)
    assert server.ranges_asked[-1] == f"bytes={3 * CHUNK}-"


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


def test_redirects_are_followed_without_their_bodies_and_not_to_nowhere(server: Server, target: Path) -> None:
    with pytest.raises(DownloadError, match=r"gave up after 2 failures in a row"):
        download("http://127.0.0.1:1/file", target, retries=1, timeout=10)  # where nobody listens
    for location in ("http://", "http://x:99999999/", "file:///etc/passwd", "\xff\xfe", "/v0/file"):
        server.faults.extend([Fault(302, {"Location": location})] * 20)
        with pytest.raises(DownloadError, match="file"):
            get(server, target)
        server.faults.clear()
        assert not target.exists()
    server.faults.append(Fault(302, {"Location": "/v0/file?a", "Transfer-Encoding": "chunked"}))
    server.files["file?a"] = CONTENT
    get(server, target)


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
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 90, 10))
    require_space([(tmp_path / "a" / "b", 4), (tmp_path, 6)])
    with pytest.raises(OSError, match="11 bytes needed, 10 bytes free"):
        require_space([(tmp_path / "a" / "b", 4), (tmp_path, 7)])


A, B = b"a" * 1000, b"b" * 2000
GOOD = tar(
    member("npz", type=tarfile.DIRTYPE),
    member("./npz/a.npz", A, mode=0o4777),
    member("npz/README", b"text"),
    member("b.npz", B),
)
SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x", "GNU.sparse.realsize": "9"}


def unpack(folder: Path, content: bytes, pattern: str = "*.npz") -> Path:
    """Extract files to `folder`/in/side/target."""
    archive, target = folder / "archive.tar", folder / "in" / "side" / "target"
    folder.mkdir(exist_ok=True)
    archive.write_bytes(content)
    extract(archive, target, pattern)
    return target


def test_only_wanted_files_are_extracted_into_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"members: expected files \*\.txt, found none"):
        unpack(tmp_path, GOOD, "*.txt")
    target = unpack(tmp_path, GOOD)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {"a.npz": A, "b.npz": B}
    assert (target / "a.npz").stat().st_mode & 0o7111 == 0, "modes of the archive are not taken over"
    with pytest.raises(FileExistsError):  # a link there would lead the bytes elsewhere
        unpack(tmp_path, GOOD)


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        *((name, {}) for name in ("../escape.npz", "npz/../../escape.npz", "/tmp/escape.npz")),
        ("../escape", {"type": tarfile.DIRTYPE}),
        *(("x.npz", {"type": kind, "linkname": "a.npz"}) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)),
        *(("x", {"type": kind, "devmajor": 1}) for kind in (tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE)),
        *(("x.npz", {"pax_headers": {"path": name}}) for name in ("a\0.npz", "a\n.npz", "<b>.npz", "n" * 300 + ".npz")),
        *(("x.npz", {"pax_headers": records}) for records in ({"size": "abc"}, {"GNU.sparse.map": "0,1,x"}, SPARSE)),
        ("two/a.npz", {}),  # a second a.npz
        ("more", {}),  # a third member
    ],
)
def test_members_that_are_unsafe_or_that_tarfile_stumbles_over_condemn_the_archive(
    tmp_path: Path, name: str, attributes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 2)
    odd = member(name, b"" if "type" in attributes else A, **attributes)
    more = [member("third", A)] if name == "more" else []
    with pytest.raises(DataError, match=r"archive\.tar: ") as error:
        unpack(tmp_path, tar(odd, member("one/a.npz", A), *more))
    assert str(error.value).isprintable()
    target = tmp_path / "in" / "side" / "target"
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != target]
    assert files == [tmp_path / "archive.tar"]


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    cut = [GOOD[:length] for length in (0, 100, 512, 700, 1024, 1536, 2048, 3072, 4096, 5000)]
    headers = [0, *(GOOD.index(name) for name in (b"./npz/a.npz", b"npz/README", b"b.npz\0"))]
    # A damaged header in the middle is no end.
    flipped = [GOOD[:at] + bytes([GOOD[at] ^ 1]) + GOOD[at + 1 :] for at in (130 + start for start in headers)]
    for number, damaged in enumerate([*cut, *flipped, b"<html>404</html>" * 100]):
        with pytest.raises(DataError, match=r"archive.tar: archive: expected"):
            unpack(tmp_path / str(number), damaged)
