"""Downloads that resume and retry, digests of files, and the extraction of tar archives."""

from __future__ import annotations

import errno
import logging
import re
import shutil
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path, PurePosixPath

import requests
from requests.exceptions import ChunkedEncodingError
from rich.console import Console
from rich.filesize import decimal
from rich.progress import DownloadColumn, Progress
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from hlorank.config import Section
from hlorank.data.graph import check_name
from hlorank.files import DataError, fingerprint, one_line, redact_credentials, sha256_file

logger = logging.getLogger(__name__)

CHUNK_BYTES = 2**16  # written at a time; a dropped connection loses less than this
BACKOFF_SECONDS = 1.0  # the wait before the first retry; each further failure doubles it
MAX_WAIT_SECONDS = 60.0
MAX_UNANNOUNCED_BYTES = 2**30  # of a file whose length the server does not announce
MAX_REDIRECTS = 10
MAX_MEMBERS = 100_000

_TRANSIENT_STATUS = {408, 425, 429, *range(500, 600)}
_TRANSIENT_ERRORS = (requests.ConnectionError, requests.Timeout, ChunkedEncodingError)
_PLAIN = {"Accept-Encoding": "identity"}  # ranges and lengths count the bytes of the file itself
# Lengths of at most 18 digits fit in 64 bits.
_LENGTH = re.compile(r"(?P<total>[0-9]{1,18})")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]+/(?P<total>[0-9]{1,18})")
_PARTIAL = re.compile(r"\.([0-9]{1,18}|None)-([0-9a-f]{16})-[0-9a-f]{16}\.partial")


class DownloadError(OSError):
    """A download that failed finally; the message has the address without credentials, the reason and the remedy."""

    @classmethod
    def of(cls, url: str, reason: str) -> DownloadError:
        """Return the error of an address; OSError's own constructor stays, by which pickle makes it again."""
        return cls(errno.EIO, redact_credentials(reason), redact_credentials(url))

    def __str__(self) -> str:
        return one_line(f"{self.filename}: {self.strerror}")


class _TransientError(Exception):
    """A failed attempt to repeat: the reason, and the seconds to wait, if known."""


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


def require_space(needs: Iterable[tuple[Path, int]]) -> None:
    """Raise OSError (ENOSPC) unless the file systems of these paths, which need not exist yet, have the bytes free."""
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


def _partials(target: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    for path in target.parent.iterdir():
        if path.name.startswith(target.name) and (match := _PARTIAL.fullmatch(path.name.removeprefix(target.name))):
            yield path, match


def _partial(url: str, target: Path) -> tuple[Path | None, int, int | None]:
    """Return the file with the first bytes of an address, if there is one, their number, and the size of the whole."""
    for path, match in _partials(target):
        if match[2] == fingerprint(redact_credentials(url)):
            return path, path.stat().st_size, None if match[1] == "None" else int(match[1])
    return None, 0, None


def _discard(target: Path) -> None:
    for path, _ in [*_partials(target)]:
        path.unlink()


def _close_redirect(response: requests.Response, **_: object) -> None:
    """Close the response of a redirect, whose whole body requests would read otherwise."""
    if response.is_redirect:
        response.close()


def _appended(url: str, target: Path, response: requests.Response, known: Path | None, size: int) -> Path:
    """Return the file to which the body of a response is appended; `known` has `size` bytes of an earlier response.

    Its name has address, size and version (strong ETag, else modification date; RFC 9110, 8.8): versions never mix.
    """
    status, headers = response.status_code, response.headers
    if status in _TRANSIENT_STATUS:
        try:
            wait = Retry().get_retry_after(response.raw)
        except (HTTPError, ValueError, OverflowError):  # no number of seconds, and no date
            wait = None
        raise _TransientError(f"HTTP {status} {response.reason}", wait)
    if status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
        reason = f"HTTP {status} {response.reason}; check the base URL, and that it holds this file"
        raise DownloadError.of(url, reason)
    if (encoding := headers.get("Content-Encoding", "identity")) != "identity":
        raise DownloadError.of(url, f"the server sends the file in the encoding {encoding}; use another one")
    if headers.get("Content-Type", "").startswith("text/html"):
        reason = "the server sends a page in place of the file, as a proxy does; check the base URL and the network"
        raise DownloadError.of(url, reason)
    if status == HTTPStatus.OK:
        start, length = 0, _LENGTH.fullmatch(headers.get("Content-Length", ""))
    else:
        length = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        start = int(length[1]) if length else 0
    etag = headers.get("ETag", "")
    version = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
    identity = f"{fingerprint(redact_credentials(url))}-{fingerprint(version)}"
    path = target.with_name(f"{target.name}.{int(length['total']) if length else None}-{identity}.partial")
    if status == HTTPStatus.OK:
        _discard(target)
        path.touch()
    elif (start, path) != (size, known):
        _discard(target)
        raise _TransientError("the file has changed since the download began; starting again", 0.0)
    return path


def _attempt(
    session: requests.Session, url: str, target: Path, timeout: float, unpack_to: Path | None, bar: Progress
) -> None:
    """Request the missing bytes of a file once."""
    known, size, total = _partial(url, target)
    if known is not None and size == total:  # an earlier call was killed between the last byte and the rename
        known.replace(target)
        return
    headers = {**_PLAIN}
    if size and total is not None:
        headers["Range"] = f"bytes={size}-"
    with session.get(url, headers=headers, stream=True, timeout=timeout) as response:
        path = _appended(url, target, response, known, size)
        _, size, total = _partial(url, target)
        limit = MAX_UNANNOUNCED_BYTES if total is None else total
        if total is not None:
            require_space([(target, total - size), *([] if unpack_to is None else [(unpack_to, total)])])
        (task,) = bar.task_ids
        bar.update(task, total=total, completed=size)
        with path.open("ab") as file:
            for chunk in response.iter_content(CHUNK_BYTES):
                if (size := size + len(chunk)) > limit:
                    announced = "are accepted without a Content-Length" if total is None else "it announced"
                    path.unlink()
                    raise DownloadError.of(url, f"the server sends more than the {limit} bytes that {announced}")
                file.write(chunk)
                bar.advance(task, len(chunk))
    if total is not None and size != total:
        raise _TransientError(f"{size} of {total} bytes received", None)
    path.replace(target)


def announced_bytes(urls: Iterable[str], timeout: float) -> int | None:
    """Return the size of files together, None where the server does not say it; without a connection fail at once."""
    sizes = list[str]()
    for url in urls:
        try:
            head = requests.head(url, headers=_PLAIN, allow_redirects=True, timeout=timeout)
        except (requests.RequestException, HTTPError, ValueError) as error:
            reason = f"no connection ({type(error).__name__}); check the network, or name a folder of your own as root="
            raise DownloadError.of(url, reason) from None
        sizes.append(head.headers.get("Content-Length", "") if head.ok else "")
    return sum(map(int, sizes)) if all(map(_LENGTH.fullmatch, sizes)) else None


def download(url: str, target: Path, *, retries: int, timeout: float, unpack_to: Path | None = None) -> None:
    """Download a file over HTTP; do nothing if it exists.

    A later call continues after the bytes so far if the server still has the same version of the file (RFC 9110, 14.2
    Range); `target` appears only when it is complete. Dropped connections and busy servers are asked again with
    exponential backoff, or after their Retry-After, at most MAX_WAIT_SECONDS each, until `retries` attempts in a row
    gained no byte. The file system of `unpack_to` must have the file's size free a second time.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    failures = furthest = 0
    columns, console = (*Progress.get_default_columns(), DownloadColumn()), Console(stderr=True)
    with requests.Session() as session, Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        session.max_redirects = MAX_REDIRECTS
        session.hooks["response"].append(_close_redirect)
        bar.add_task(target.name, total=None)
        while not target.exists():
            furthest = max(furthest, _partial(url, target)[1])
            try:
                _attempt(session, url, target, timeout, unpack_to, bar)
                break
            except _TransientError as error:
                reason, wait = error.args
            except _TRANSIENT_ERRORS as error:
                reason, wait = str(error), None
            # Malformed addresses and headers raise errors of urllib3 and ValueError too.
            except (requests.RequestException, HTTPError, ValueError) as error:
                raise DownloadError.of(url, f"{error}; check the base URL") from None
            failures = 1 if _partial(url, target)[1] > furthest else failures + 1
            if failures > retries:
                summary = f"gave up after {failures} failures in a row, the last one: {reason}; run again to continue"
                raise DownloadError.of(url, summary)
            wait = min(BACKOFF_SECONDS * 2 ** (failures - 1) if wait is None else wait, MAX_WAIT_SECONDS)
            warning = one_line(f"{redact_credentials(url)}: {reason}")
            logger.warning("%s; retry %d of %d in %.1f s", warning, failures, retries, wait)
            time.sleep(wait)
    _discard(target)


def extract(archive: Path, target: Path, pattern: str) -> None:
    """Extract the files of an uncompressed tar archive whose paths end as `pattern` directly into an empty folder.

    Only the bytes and the file name of a member are used: no folders, modes, owners or dates. An archive is refused
    with DataError if any member, wanted or not, is a link, a device, sparse or outside the archive's root, if it has
    more than MAX_MEMBERS, a name twice or one that no graph can have, no such files, or is truncated or damaged: also
    with a damaged header in the middle, which tarfile takes for the end.
    """
    target.mkdir(parents=True, exist_ok=True)
    names: set[str] = set()
    try:
        with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for number, member in enumerate(tar):
                if number == MAX_MEMBERS:
                    raise DataError("members", f"at most {MAX_MEMBERS:,}", "more")
                path = PurePosixPath(member.name)
                special = not (member.isreg() or member.isdir()) or member.issparse()
                if special or path.is_absolute() or ".." in path.parts:
                    found = "a link, a device or a sparse file" if special else "a path out of the archive"
                    raise DataError(member.name, "a file or a folder inside the archive", found)
                if not (member.isreg() and path.match(pattern)):
                    continue
                check_name(path.stem)
                if path.name in names:
                    raise DataError(member.name, "each file once", "a second file of that name")
                names.add(path.name)
                content = tar.extractfile(member)
                assert content is not None  # it is a regular file
                with content, (target / path.name).open("xb") as output:
                    shutil.copyfileobj(content, output)
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise DataError("archive", f"the end mark at byte {tar.offset}", "other bytes (damaged or truncated)")
    except DataError as error:
        raise error.in_file(archive) from None
    except Exception as error:  # tarfile raises nearly every type on damaged headers
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: a seek out of range
            raise
        raise DataError("archive", "a complete, uncompressed tar file", error, file=archive) from None
    if not names:
        raise DataError("members", f"files {pattern}", "none", file=archive)
