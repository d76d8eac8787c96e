"""Attack on the download by mirrors whose answers are wrong.

Files other than those of the archive, a damaged archive that stays, and a password in a message are wrong content.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import resource
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import numpy as np

import hlorank.fetch.download
from hlorank.fetch.tpugraphs import fetch
from hlorank.files import DataError

from .archives import ARCHIVE, COLLECTION, MEMBER, contents, settings, tar_bytes
from .cases import Case, WrongContentError
from .counts import BYTES
from .npz import graph_bytes

DATA = tar_bytes({MEMBER: graph_bytes("layout")})
CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
LENGTHS = ("abc", "-5", "", "5, 6", "1e5", "0x10", "9" * 5000, "+5", "5_0", "\xb2", str(2**63), str(10**15), "0")
WAITS = (
    "9" * 5000, "-5", "Fri, 31 Dec 99999 23:59:59 GMT", "Thu, 01 Jan 1970 00:00:00 GMT", "x", "nan", "1e9", "",
)  # fmt: skip
LOCATIONS = (
    "http://[::1", "http://\0", "/" * 9, "http://", "file:///etc/passwd", "http://a b/", "\xff\xfe",
    "http://x:99999999/", "//[", "javascript:1", "http://" + "a" * 300 + "/", "http://user:secret@127.0.0.1:1/",
)  # fmt: skip
RANGES = (
    "bytes 0-99/100", "bytes 131072-131171/" + "9" * 5000, "bytes abc", "bytes 131072-1/1048576", "bytes 131072-*/*",
)  # fmt: skip
START = b"HTTP/1.1 200 OK\r\n"
RESPONSES = {
    "no status line": b"\r\n\r\n",
    "garbage": bytes(range(256)) * 40,
    "status abc": b"HTTP/1.1 abc OK\r\n\r\n",
    "status 99999": b"HTTP/1.1 99999 OK\r\n\r\n",
    "reason with controls": b"HTTP/1.1 404 \x1b[31m\xff\x07\r\nContent-Length: 0\r\n\r\n",
    "long reason": b"HTTP/1.1 404 " + b"x" * 60_000 + b"\r\nContent-Length: 0\r\n\r\n",
    "long header": START + b"X: " + b"x" * 10**6 + b"\r\n\r\n",
    "200 headers": START + b"X: y\r\n" * 200 + b"\r\n",
    "header without a colon": START + b"abc\r\n\r\n" + DATA,
    "closes at once": b"",
    "chunk of wrong size": START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc",
    "chunk of negative size": START + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabc",
}
"""Whole responses."""


class Mirror(BaseHTTPRequestHandler):
    """A server of the licence, and of an archive as `answer` sends it."""

    protocol_version = "HTTP/1.1"
    answer: Callable[[Mirror], None]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Log nothing."""

    def do_GET(self) -> None:
        """Answer a request."""
        self.close_connection = True
        if self.path.endswith("/LICENSE"):
            self.send(200, {"Content-Length": "7"}, b"licence")
            return
        with contextlib.suppress(OSError):  # the client has closed the connection
            type(self).answer(self)

    def send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        """Send a response with these headers only."""
        lines = [f"HTTP/1.1 {status} Reason", *(f"{key}: {value}" for key, value in headers.items())]
        self.raw("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    def raw(self, data: bytes) -> None:
        """Send bytes."""
        self.wfile.write(data)
        self.wfile.flush()

    def endless(self, piece: bytes, start: bytes = b"") -> None:
        """Send the same bytes until the client closes the connection."""
        self.raw(start)
        while True:
            self.raw(piece)


Answer = Callable[[Mirror], None]


def mirror_cases(_: np.random.Generator) -> Iterator[Case]:
    """Yield all mirrors."""
    for name, answer in mirrors().items():
        yield Case(f"mirror {name}", Path.exists, partial(fetch_mirror, answer))


def fetch_mirror(answer: Answer, folder: Path) -> None:
    """Fetch from a mirror, and check what is left behind."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * BYTES, 2 * BYTES))
    hlorank.fetch.download.BACKOFF_SECONDS = 0.001
    hlorank.fetch.download.MAX_WAIT_SECONDS = 0.01
    os.environ["NO_PROXY"] = "*"
    handler = type("Handler", (Mirror,), {"answer": staticmethod(answer)})
    output, downloads = folder / "output", folder / "downloads"
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        base_url = f"http://me:password@127.0.0.1:{server.server_address[1]}/v0"
        try:
            fetch(COLLECTION, settings(base_url, downloads), output)
        except Exception as error:
            if "password" in str(error):
                raise WrongContentError(f"a password in {error}") from None
            if isinstance(error, DataError) and (downloads / ARCHIVE).exists():
                raise WrongContentError(f"a damaged archive stays: {error}") from None
            raise
    if contents(output / "train") != {"graph.npz": graph_bytes("layout")}:
        raise WrongContentError("other files than those of the archive")


def mirrors() -> dict[str, Answer]:
    """Return the answers of all mirrors, by name."""
    length = {"Content-Length": str(len(DATA))}
    found: dict[str, Answer] = {
        "honest": _sent(length),
        "more than announced, for ever": _more,
        "endless chunks": _endless_chunks(200),
        "endless chunks with a length": _endless_chunks(200, **length),
        "endless redirect": _endless_chunks(302, Location="/v0/elsewhere"),
        "endless header": lambda mirror: mirror.endless(b"x" * 2**16, START + b"X: "),
        "growing": _growing,
        "redirect with a large body": _redirect("/v0/elsewhere", bytes(10**7)),
        "redirects in a circle": lambda mirror: mirror.send(302, {"Location": mirror.path, "Content-Length": "0"}),
        "gzip bomb": _gzip_bomb(1),
        "gzip bomb twice": _gzip_bomb(2),
        "gzip bomb thrice": _gzip_bomb(3),
        "damaged gzip": _sent({"Content-Encoding": "gzip", **length}),
        "damaged deflate": _sent({"Content-Encoding": "deflate", **length}),
        "unknown encoding": _sent({"Content-Encoding": "x", **length}),
        "damaged": _sent(length, body=DATA[:700] + b"x" * (len(DATA) - 700)),
        "truncated": _sent(length, body=DATA[:100]),
        "other file": _sent({"Content-Length": str(len(DATA) // 2)}),
        "partial without a request": _sent({"Content-Range": f"bytes 0-1/{len(DATA)}", **length}, 206),
        "not modified": _sent({"Content-Length": "0"}, 304),
        "no content": _sent({}, 204),
    }
    found |= {name: partial(Mirror.raw, data=data) for name, data in RESPONSES.items()}
    found |= {f"Content-Length {value[:20]!r}": _sent({"Content-Length": value}) for value in LENGTHS}
    for value in WAITS:
        found[f"Retry-After {value[:20]!r}"] = _sent({"Retry-After": value, "Content-Length": "0"}, 503)
    found |= {f"Location {value[:20]!r}": _redirect(value) for value in LOCATIONS}
    found |= {f"Content-Range {value[:24]!r}": _range(value) for value in RANGES}
    return found


def _sent(headers: dict[str, str], status: int = 200, body: bytes = DATA) -> Answer:
    return lambda mirror: mirror.send(status, headers, body)


def _redirect(location: str, body: bytes = b"") -> Answer:
    return _sent({"Location": location, "Content-Length": str(len(body))}, 302, body)


def _more(mirror: Mirror) -> None:
    """Send more than announced at each request, and continue where the client asks."""
    length, asked = len(DATA), re.fullmatch(r"bytes=(\d+)-", mirror.headers.get("Range", ""))
    headers = {"Transfer-Encoding": "chunked", "Content-Length": str(length), "ETag": '"a"'}
    if asked:
        headers["Content-Range"] = f"bytes {asked[1]}-{int(asked[1]) + 10**6}/{length}"
    mirror.send(206 if asked else 200, headers, CHUNK * 16 + b"0\r\n\r\n")


def _endless_chunks(status: int, **headers: str) -> Answer:
    def answer(mirror: Mirror) -> None:
        mirror.send(status, {"Transfer-Encoding": "chunked", **headers})
        mirror.endless(CHUNK)

    return answer


def _range(content_range: str) -> Answer:
    """Drop the first connection, and answer the second with a wrong range."""

    def answer(mirror: Mirror) -> None:
        if "Range" in mirror.headers:
            mirror.send(206, {"Content-Range": content_range, "Content-Length": "100"}, DATA[-100:])
        else:
            mirror.send(200, {"Content-Length": str(2**20), "ETag": '"a"'}, bytes(2**17))

    return answer


def _growing(mirror: Mirror) -> None:
    """Announce a longer file at each request, and send a little of it."""
    server = cast("Any", mirror.server)
    server.count = getattr(server, "count", 0) + 1
    mirror.send(200, {"Content-Length": str(10**6 * server.count), "ETag": f'"{server.count}"'}, bytes(100_000))


def _gzip_bomb(times: int) -> Answer:
    def answer(mirror: Mirror) -> None:
        body = bytes(2**26)
        for _ in range(times):
            body = gzip.compress(body, 9)
        mirror.send(200, {"Content-Encoding": ", ".join(["gzip"] * times), "Content-Length": str(len(body))}, body)

    return answer
