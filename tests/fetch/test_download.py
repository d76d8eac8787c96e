from __future__ import annotations

import errno
import hashlib
import json
import logging
import shutil
from collections import namedtuple
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hlorank.fetch.download
from hlorank.fetch.download import Digest, DownloadError, Ledger, download, require_space
from hlorank.files import DataError

if TYPE_CHECKING:
    from tests.fetch.conftest import Server

CHUNK = hlorank.fetch.download.CHUNK_BYTES
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
    found: list[float] = []
    monkeypatch.setattr("time.sleep", found.append)
    return found


def get(server: Server, target: Path, *, retries: int = 3, unpack_to: Path | None = None) -> None:
    download(f"{server.base_url}/file", target, retries=retries, timeout=10, unpack_to=unpack_to)


def assert_complete(target: Path, content: bytes = CONTENT) -> None:
    assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == ["file"], "nothing else is left"


def interrupt(server: Server, target: Path, after: int) -> None:
    """Leave a partial download, as a killed process does."""
    server.drop(after)
    with pytest.raises(DownloadError, match="gave up"):
        get(server, target, retries=0)
    assert target.with_name("file.partial").stat().st_size == after
    assert not target.exists()
    server.requests.clear()


def test_whole_file(server: Server, target: Path) -> None:
    get(server, target)
    assert_complete(target)
    assert server.ranges_asked == [None]


def test_present_file_is_not_fetched_again(server: Server, target: Path) -> None:
    get(server, target)
    get(server, target)
    assert len(server.requests) == 1


@pytest.mark.parametrize("validator", ["ETag", "Last-Modified", None])
def test_dropped_connections_resume(server: Server, target: Path, validator: str | None) -> None:
    server.validator = validator
    server.drop(2 * CHUNK)
    server.drop(CHUNK)
    get(server, target)
    assert_complete(target)
    assert server.ranges_asked == [None, f"bytes={2 * CHUNK}-", f"bytes={3 * CHUNK}-"]
    expected = server.version(CONTENT) if validator else None
    assert [headers.get("If-Range") for _, headers in server.requests] == [None, expected, expected]


def test_later_call_resumes(server: Server, target: Path) -> None:
    interrupt(server, target, 2 * CHUNK)
    get(server, target)
    assert_complete(target)
    assert server.ranges_asked == [f"bytes={2 * CHUNK}-"]


def test_shorter_ranges_than_asked_for(server: Server, target: Path) -> None:
    server.drop(CHUNK)
    server.longest_range = 2 * CHUNK
    get(server, target, retries=1)
    assert_complete(target)
    assert server.ranges_asked == [None, f"bytes={CHUNK}-", f"bytes={3 * CHUNK}-"]


def test_weak_etag_is_no_condition(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "version", lambda data: 'W/"weak"')
    interrupt(server, target, 2 * CHUNK)
    get(server, target)
    assert_complete(target)
    assert "If-Range" not in server.requests[0][1]


@pytest.mark.parametrize("conditional", [True, False])
def test_changed_content_is_never_mixed(server: Server, target: Path, *, conditional: bool) -> None:
    interrupt(server, target, 2 * CHUNK)
    server.files["file"] = CHANGED
    server.conditional = conditional  # without it, the server answers 206 with another version
    get(server, target)
    assert_complete(target, CHANGED)
    assert server.ranges_asked == ([f"bytes={2 * CHUNK}-"] if conditional else [f"bytes={2 * CHUNK}-", None])


def test_changed_length_is_never_mixed(server: Server, target: Path) -> None:
    server.validator = None
    interrupt(server, target, 2 * CHUNK)
    server.files["file"] = CHANGED[:-1]
    get(server, target)
    assert_complete(target, CHANGED[:-1])


def test_stale_partial_restarts_after_416(server: Server, target: Path, waits: list[float]) -> None:
    server.validator = None
    interrupt(server, target, 2 * CHUNK)
    server.files["file"] = CHANGED[:1000]
    get(server, target)
    assert_complete(target, CHANGED[:1000])
    assert server.ranges_asked == [f"bytes={2 * CHUNK}-", None]
    assert waits == [0.0]


def test_partial_longer_than_the_file_restarts(server: Server, target: Path) -> None:
    interrupt(server, target, 2 * CHUNK)
    target.with_name("file.partial").write_bytes(CONTENT + b"more")
    get(server, target)
    assert_complete(target)


def test_partial_of_another_address_is_dropped(server: Server, target: Path) -> None:
    interrupt(server, target, 2 * CHUNK)
    server.files["mirror/file"] = CONTENT
    download(f"{server.base_url}/mirror/file", target, retries=0, timeout=10)
    assert_complete(target)
    assert server.ranges_asked == [None]


@pytest.mark.parametrize("state", ["", "{}", '{"url": 1}', None])
def test_partial_with_a_broken_state_is_dropped(server: Server, target: Path, state: str | None) -> None:
    interrupt(server, target, 2 * CHUNK)
    file = target.with_name("file.partial.json")
    file.unlink() if state is None else file.write_text(state)
    get(server, target)
    assert_complete(target)
    assert server.ranges_asked == [None]


def test_killed_before_the_rename(server: Server, target: Path) -> None:
    interrupt(server, target, 2 * CHUNK)
    target.with_name("file.partial").write_bytes(CONTENT)
    get(server, target)
    assert_complete(target)
    assert server.requests == []


def test_killed_after_the_rename(server: Server, target: Path) -> None:
    interrupt(server, target, 2 * CHUNK)
    target.write_bytes(CONTENT)
    get(server, target)
    assert_complete(target)
    assert server.requests == []


def test_server_without_ranges_restarts(server: Server, target: Path) -> None:
    server.ranges = False
    server.drop(2 * CHUNK)
    get(server, target)
    assert_complete(target)
    assert server.ranges_asked == [None, f"bytes={2 * CHUNK}-"]


def test_server_without_lengths(server: Server, target: Path) -> None:
    server.lengths = False
    get(server, target)
    assert_complete(target)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_transient_statuses_are_retried(
    server: Server, target: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer(status)
    server.answer(status)
    with caplog.at_level(logging.WARNING):
        get(server, target, retries=2)
    assert_complete(target)
    assert len(server.requests) == 3
    assert f"/file: HTTP {status}" in caplog.messages[0]
    assert "retry 2 of 2" in caplog.messages[1]


@pytest.mark.parametrize("status", [403, 404, 410])
def test_refusals_fail_at_once(server: Server, target: Path, status: int) -> None:
    server.answer(status)
    with pytest.raises(DownloadError, match=rf"{server.base_url}/file: HTTP {status} .*; check the base URL"):
        get(server, target)
    assert len(server.requests) == 1
    assert list(target.parent.iterdir()) == []


def test_unusable_address_fails_at_once(tmp_path: Path, waits: list[float]) -> None:
    with pytest.raises(DownloadError, match="http://: "):
        download("http://", tmp_path / "file", retries=3, timeout=10)
    assert waits == []


def test_credentials_are_nowhere_in_messages_and_records(
    server: Server, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.base_url.replace("//", "//me:secret@") + "/file?token=secret"
    server.files["file?token=secret"] = CONTENT
    server.drop(after=CHUNK)
    server.answer(503)
    server.answer(404)
    with pytest.raises(DownloadError, match=r"\*\*\*@127") as failure:
        download(url, target, retries=5, timeout=5)
    records = [path.read_text(errors="replace") for path in target.parent.iterdir()]
    assert len(caplog.messages) == 2
    assert not any("secret" in text for text in [str(failure.value), *caplog.messages, *records])
    download(url, target, retries=0, timeout=5)
    assert target.read_bytes() == CONTENT
    assert server.ranges_asked[-1] == f"bytes={CHUNK}-"


@pytest.mark.parametrize("length", ["abc", "", "-5", "1e5", "9" * 5000])
def test_lengths_that_are_no_numbers_are_ignored(server: Server, target: Path, length: str) -> None:
    server.length = length
    get(server, target)
    assert_complete(target)


def test_more_bytes_than_announced(server: Server, target: Path) -> None:
    server.chunked, server.length = True, str(SIZE - 1)
    with pytest.raises(DownloadError, match=str(SIZE - 1)):
        get(server, target)
    assert not list(target.parent.iterdir())


def test_bytes_without_a_length_are_bounded(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank.fetch.download.MAX_UNANNOUNCED_BYTES", SIZE)
    server.chunked = True
    get(server, target)
    assert_complete(target)
    target.unlink()
    monkeypatch.setattr("hlorank.fetch.download.MAX_UNANNOUNCED_BYTES", SIZE - 1)
    with pytest.raises(DownloadError, match=str(SIZE - 1)):
        get(server, target)
    assert not list(target.parent.iterdir())


@pytest.mark.parametrize("wait", ["9" * 5000, "-5", "x", "Fri, 31 Dec 99999 23:59:59 GMT"])
def test_waits_that_are_no_times_are_ignored(
    server: Server, target: Path, waits: list[float], wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hlorank.fetch.download.BACKOFF_SECONDS", 3.0)
    server.answer(503, {"Retry-After": wait})
    get(server, target)
    assert waits == [3.0]


@pytest.mark.parametrize(
    "location", ["http://[::1", "http://x:99999999/", "file:///etc/passwd", "\xff\xfe", "/v0/file"]
)
def test_redirects_to_nowhere(server: Server, target: Path, location: str) -> None:
    for _ in range(20):
        server.answer(302, {"Location": location})
    with pytest.raises(DownloadError, match="file"):
        get(server, target)
    assert not target.exists()


def test_redirects_are_followed_without_their_bodies(server: Server, target: Path) -> None:
    server.answer(302, {"Location": "/v0/file?a", "Transfer-Encoding": "chunked"})  # whose body never comes
    server.files["file?a"] = CONTENT
    get(server, target)
    assert_complete(target)


def test_encoded_content_is_refused(server: Server, target: Path) -> None:
    server.answer(200, {"Content-Encoding": "gzip"})
    with pytest.raises(DownloadError, match="gzip"):
        get(server, target)


def test_errors_of_servers_are_one_line(server: Server, target: Path) -> None:
    server.reason = "\x1b[31m" + "x" * 5000
    server.answer(404)
    with pytest.raises(DownloadError, match=r"\\x1b") as error:
        get(server, target)
    assert str(error.value).isprintable()
    assert len(str(error.value)) <= 500


def test_nobody_listens(server: Server, tmp_path: Path, waits: list[float]) -> None:
    with pytest.raises(DownloadError, match=r"gave up after 3 failures in a row.*refused"):
        download("http://127.0.0.1:1/file", tmp_path / "file", retries=2, timeout=10)
    assert len(waits) == 2


def test_backoff_doubles_up_to_a_bound(
    server: Server, target: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hlorank.fetch.download, "BACKOFF_SECONDS", 10.0)
    for _ in range(6):
        server.answer(503)
    with pytest.raises(DownloadError, match="gave up after 6 failures in a row, the last one: HTTP 503"):
        get(server, target, retries=5)
    assert waits == [10.0, 20.0, 40.0, 60.0, 60.0]


def test_retry_after_is_honoured_up_to_a_bound(server: Server, target: Path, waits: list[float]) -> None:
    for value in ("7", "3600", "soon", formatdate(0, usegmt=True)):
        server.answer(503, {"Retry-After": value})
    get(server, target, retries=4)
    assert_complete(target)
    assert waits == [7.0, 60.0, 0.004, 0.0]


def test_failures_count_only_without_progress(server: Server, target: Path) -> None:
    for _ in range(4):
        server.drop(CHUNK)
    get(server, target, retries=1)
    assert_complete(target)
    assert len(server.requests) == 5


def test_restarts_without_progress_are_bounded(server: Server, target: Path) -> None:
    server.ranges = False
    for _ in range(10):
        server.drop(CHUNK)
    with pytest.raises(DownloadError, match="gave up"):
        get(server, target, retries=2)
    assert len(server.requests) == 3


def test_too_little_space_for_the_file_and_its_content(
    server: Server, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 2 * SIZE - 1))
    with pytest.raises(OSError, match=r"655.3 kB needed, 655.3 kB free") as error:
        get(server, target, unpack_to=tmp_path / "not" / "there")
    assert error.value.errno == errno.ENOSPC
    assert len(server.requests) == 1, "space does not come back by retrying"
    get(server, target)
    assert_complete(target)


def test_space_counts_only_the_missing_bytes(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(server, target, 3 * CHUNK)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, SIZE - 3 * CHUNK))
    get(server, target)
    assert_complete(target)


def test_space_is_summed_per_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 90, 10))
    require_space([(tmp_path / "a" / "b", 4), (tmp_path, 6)])
    with pytest.raises(OSError, match="11 bytes needed, 10 bytes free"):
        require_space([(tmp_path / "a" / "b", 4), (tmp_path, 7)])


def test_ledger_without_a_file_knows_nothing(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "archives.json")["file"] is None


def test_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "archives.json")
    file = tmp_path / "file"
    file.write_bytes(CONTENT)
    digest = Digest(size=SIZE, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert ledger.verify(file) == digest
    ledger["file"] = digest
    ledger["other"] = Digest(size=1, sha256="00")
    assert ledger["file"] == ledger.verify(file) == digest
    entry = {"size": SIZE, "sha256": digest.sha256}
    assert json.loads(ledger.path.read_text()) == {"file": entry, "other": {"size": 1, "sha256": "00"}}

    file.write_bytes(CHANGED)
    with pytest.raises(DataError) as error:
        ledger.verify(file)
    for part in (str(file), digest.sha256, hashlib.sha256(CHANGED).hexdigest(), ledger.path.name):
        assert part in str(error.value)


@pytest.mark.parametrize("text", ["[]", "{", '{"file": 3}', '{"file": {"size": "x", "sha256": "00"}}'])
def test_broken_ledger(tmp_path: Path, text: str) -> None:
    path = tmp_path / "archives.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"archives\.json"):
        Ledger(path)["file"]
