"""Downloads that resume, retry, and are verified against the digest of the first download."""

from __future__ import annotations

import errno
import http
import logging
import re
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import requests
from requests.exceptions import ChunkedEncodingError
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from hlorank.config import ConfigError, Section, parse, read_section
from hlorank.files import DataError, one_line, read_json, redact_credentials, sha256_file, write_json

logger = logging.getLogger(__name__)

CHUNK_BYTES = 2**16
"""Bytes written at a time; a dropped connection loses less than this."""
BACKOFF_SECONDS = 1.0
"""Wait before the first retry; each further failure doubles it."""
MAX_WAIT_SECONDS = 60.0
MAX_UNANNOUNCED_BYTES = 2**30
"""Size of a file whose length the server does not announce."""
MAX_REDIRECTS = 10

_TRANSIENT_STATUS = {408, 425, 429, *range(500, 600)}
_TRANSIENT_ERRORS = (requests.ConnectionError, requests.Timeout, ChunkedEncodingError)
# Lengths of at most 18 digits fit in 64 bits.
_LENGTH = re.compile(r"[0-9]{1,18}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]+/([0-9]{1,18})")


class DownloadError(OSError):
    """A download that failed finally; the message has the address without credentials, the reason and the remedy."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(errno.EIO, redact_credentials(reason), redact_credentials(url))

    def __str__(self) -> str:
        return one_line(f"{self.filename}: {self.strerror}")


class _TransientError(Exception):
    """A failed attempt to repeat, after `wait` seconds if that is known."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class Digest(Section):
    """Identity of a file's content: its size in bytes and its SHA-256 in hexadecimal."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Digest:
        """Compute the digest of a file."""
        return cls(size=path.stat().st_size, sha256=sha256_file(path))

    def __str__(self) -> str:
        return f"{self.size} bytes with SHA-256 {self.sha256}"


class Ledger:
    """JSON file with the digest of each file at its first download, by file name.

    Names have no address: a mirror must have the same bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __getitem__(self, name: str) -> Digest | None:
        """Return the recorded digest, None for a file never recorded.

        Raises:
            DataError: the ledger is not JSON, or the entry is not a size and a SHA-256.
        """
        entry = read_json(self.path).get(name) if self.path.exists() else None
        if entry is None:
            return None
        try:
            return parse(Digest, entry)
        except ConfigError as error:
            raise DataError(name, "a size in bytes and a SHA-256", error, file=self.path) from None

    def __setitem__(self, name: str, digest: Digest) -> None:
        entries = read_json(self.path) if self.path.exists() else {}
        write_json(self.path, {**entries, name: digest.model_dump()})

    def verify(self, file: Path) -> Digest:
        """Compute the digest of a file, and compare it with the recorded one, if there is one.

        Raises:
            DataError: the digests differ.
        """
        recorded, digest = self[file.name], Digest.of(file)
        if recorded not in (None, digest):
            raise DataError(
                "content",
                f"{recorded}",
                f"{digest}; it is damaged, or its source has changed: to accept it, remove its entry in {self.path}",
                file=file,
            )
        return digest


def require_space(needs: Iterable[tuple[Path, int]]) -> None:
    """Check that the file systems of some paths, which need not exist yet, have enough bytes free.

    Paths on one file system need the sum.

    Raises:
        OSError: (ENOSPC) a file system has too few bytes free; the message has the path, the bytes needed and free.
    """
    totals: dict[int, tuple[Path, int]] = {}
    for path, size in needs:
        place = next(folder for folder in (path, *path.parents) if folder.exists())
        device = place.stat().st_dev
        totals[device] = (place, totals.get(device, (place, 0))[1] + size)
    for place, size in totals.values():
        free = shutil.disk_usage(place).free
        if free < size:
            reason = f"{decimal(size)} needed, {decimal(free)} free; free some space or choose another folder"
            raise OSError(errno.ENOSPC, reason, str(place))


def _validator(response: requests.Response) -> str | None:
    """Return the identity of a version of the file for If-Range: a strong ETag, else the modification date."""
    etag = response.headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")


class _Record(Section):
    """The file whose first bytes were downloaded: its redacted address, its size, and the identity of its version."""

    url: str
    total: int
    validator: str | None


class _Partial:
    """The bytes of a download so far, and next to them a record of the address, size and version of the whole file."""

    def __init__(self, url: str, target: Path) -> None:
        self.url = url
        self.target = target
        self.path = target.with_name(f"{target.name}.partial")
        self._state = target.with_name(f"{target.name}.partial.json")
        self.total: int | None = None
        self._validator: str | None = None
        with suppress(DataError):  # without a record of this address, the download starts again
            record = read_section(_Record, self._state, "remove it")
            if record.url == redact_credentials(url):
                self.total, self._validator = record.total, record.validator
        if self.total is None:
            self.discard()

    @property
    def size(self) -> int:
        """Number of bytes so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def headers(self) -> dict[str, str]:
        """Request headers for the missing bytes."""
        headers = {"Accept-Encoding": "identity"}  # ranges and lengths count the bytes of the file itself
        if self.total is not None and self.size:
            headers["Range"] = f"bytes={self.size}-"
            if self._validator is not None:
                headers["If-Range"] = self._validator
        return headers

    def discard(self) -> None:
        """Remove the bytes and the record."""
        self.path.unlink(missing_ok=True)
        self._state.unlink(missing_ok=True)
        self.total = self._validator = None

    def restart(self, response: requests.Response) -> None:
        """Start again with a response that has the whole file."""
        self.discard()  # first the bytes, so that they are never next to the record of another version
        if length := _LENGTH.fullmatch(response.headers.get("Content-Length", "")):
            self.total, self._validator = int(length[0]), _validator(response)
            record = _Record(url=redact_credentials(self.url), total=self.total, validator=self._validator)
            write_json(self._state, record.model_dump())

    def continued_by(self, response: requests.Response) -> bool:
        """Return True if a partial response has the bytes that follow, of the same version of the file."""
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        return (
            found is not None
            and (int(found[1]), int(found[2])) == (self.size, self.total)
            and _validator(response) in (None, self._validator)
        )

    def finish(self) -> None:
        """Rename the complete file to its target."""
        self.path.replace(self.target)
        self.discard()


def _transient(response: requests.Response) -> _TransientError:
    try:
        wait = Retry().get_retry_after(response.raw)
    except (HTTPError, ValueError, OverflowError):  # no number of seconds, and no date
        wait = None
    return _TransientError(f"HTTP {response.status_code} {response.reason}", wait)


def _close_redirect(response: requests.Response, **_: object) -> None:
    """Close the response of a redirect, whose whole body requests would read otherwise."""
    if response.is_redirect:
        response.close()


def _attempt(
    session: requests.Session, partial: _Partial, timeout: float, unpack_to: Path | None, bar: Progress, task: TaskID
) -> None:
    if partial.total is not None and partial.size == partial.total:
        return  # an earlier call was killed between the last byte and the rename
    with session.get(partial.url, headers=partial.headers, stream=True, timeout=timeout) as response:
        status = response.status_code
        stale = status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
        if stale or (status == http.HTTPStatus.PARTIAL_CONTENT and not partial.continued_by(response)):
            partial.discard()
            raise _TransientError("the file has changed since the download began; starting again", 0.0)
        if status in _TRANSIENT_STATUS:
            raise _transient(response)
        if status == http.HTTPStatus.OK:
            partial.restart(response)
        elif status != http.HTTPStatus.PARTIAL_CONTENT:
            reason = f"HTTP {status} {response.reason}; check the base URL, and that it holds this file"
            raise DownloadError(partial.url, reason)
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise DownloadError(partial.url, f"the server sends the file in the encoding {encoding}; use another one")
        if partial.total is not None:
            needs = [(partial.target, partial.total - partial.size)]
            require_space(needs if unpack_to is None else [*needs, (unpack_to, partial.total)])
        bar.update(task, total=partial.total, completed=partial.size)
        limit = MAX_UNANNOUNCED_BYTES if partial.total is None else partial.total
        with partial.path.open("ab") as file:
            for chunk in response.iter_content(CHUNK_BYTES):
                if file.tell() + len(chunk) > limit:
                    announced = "are accepted without a Content-Length" if partial.total is None else "it announced"
                    partial.discard()
                    raise DownloadError(partial.url, f"the server sends more than the {limit} bytes that {announced}")
                file.write(chunk)
                bar.advance(task, len(chunk))
    if partial.total is not None and partial.size != partial.total:
        raise _TransientError(f"{partial.size} of {partial.total} bytes received")


def download(url: str, target: Path, *, retries: int, timeout: float, unpack_to: Path | None = None) -> None:
    """Download a file over HTTP; do nothing if it exists.

    The bytes so far are in `<target>.partial`, and a later call continues there if the server still has the same
    version of the file (RFC 9110, 14.2 Range and 13.1.5 If-Range); `target` appears only when it is complete. Dropped
    connections and the status codes 408, 425, 429 and 5xx are retried with exponential backoff, or after the server's
    Retry-After, at most MAX_WAIT_SECONDS each.

    Args:
        url: the http(s) address.
        target: the file; its folder is created.
        retries: consecutive failures without a byte gained after which the download stops.
        timeout: time limit in seconds for a connection, and for each piece of the response.
        unpack_to: a path whose file system must have the file's size free a second time.

    Raises:
        DownloadError: the server responds with an error status that is not retried (such as 404), with malformed
            headers, or with more bytes than it announced, or the retries are used up.
        OSError: there is too little disk space, or the file cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _Partial(url, target)
    if target.exists():
        partial.discard()
        return
    failures, furthest = 0, partial.size
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with requests.Session() as session, Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        session.max_redirects = MAX_REDIRECTS
        session.hooks["response"].append(_close_redirect)
        task = bar.add_task(target.name, total=None)
        while True:
            try:
                _attempt(session, partial, timeout, unpack_to, bar, task)
                break
            except (_TransientError, *_TRANSIENT_ERRORS) as error:
                reason, wait = str(error), error.wait if isinstance(error, _TransientError) else None
            # Malformed addresses and headers raise errors of urllib3 and ValueError too.
            except (requests.RequestException, HTTPError, ValueError) as error:
                raise DownloadError(url, f"{error}; check the base URL") from None
            if partial.size > furthest:
                failures, furthest = 0, partial.size
            failures += 1
            if failures > retries:
                summary = f"gave up after {failures} failures in a row, the last one: {reason}; run again to continue"
                raise DownloadError(url, summary)
            wait = min(BACKOFF_SECONDS * 2 ** (failures - 1) if wait is None else wait, MAX_WAIT_SECONDS)
            warning = one_line(f"{redact_credentials(url)}: {reason}")
            logger.warning("%s; retry %d of %d in %.1f s", warning, failures, retries, wait)
            time.sleep(wait)
    partial.finish()
