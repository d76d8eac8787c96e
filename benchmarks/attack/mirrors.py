"""Attack on the download by mirrors whose answers are wrong.

Files other than those of the archive, a damaged archive that stays, and a password in a message are wrong content.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import resource
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, count, repeat, takewhile
from pathlib import Path

import numpy as np

import hlorank.fetch.download
from hlorank.fetch.tpugraphs import fetch
from hlorank.files import DataError

from .archives import ARCHIVE, COLLECTION, GOOD, MEMBER, contents, settings, tar_bytes
from .cases import BYTES, Case, WrongContentError

Answer = bytes | Callable[[str], Iterable[bytes]]
"""A response, or the pieces of the response to a request, which may be endless."""
DATA = tar_bytes({MEMBER: GOOD})
CHUNKED = {"Transfer-Encoding": "chunked"}
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


def response(headers: Mapping[str, object], body: bytes = DATA, status: int = 200) -> bytes:
    """Return a response with these headers only."""
    lines = [f"HTTP/1.1 {status} Reason", *(f"{key}: {value}" for key, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class Mirror(socketserver.StreamRequestHandler):
    """A server of the licence, and of an archive as `answer` sends it."""

    answer: Answer

    def handle(self) -> None:
        """Answer one request."""
        request = b"".join(takewhile(lambda line: line != b"\r\n", self.rfile)).decode("latin-1")
        answer = response({"Content-Length": 7}, b"licence") if "/LICENSE " in request else self.answer
        with contextlib.suppress(OSError):  # the client has closed the connection
            for piece in answer(request) if callable(answer) else [answer]:
                self.wfile.write(piece)


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
    handler = type("Handler", (Mirror,), {"answer": staticmethod(answer) if callable(answer) else answer})
    output, downloads = folder / "output", folder / "downloads"
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            fetch(
                COLLECTION, settings(f"http://me:password@127.0.0.1:{server.server_address[1]}/v0", downloads), output
            )
        except Exception as error:
            if "password" in str(error):
                raise WrongContentError(f"a password in {error}") from None
            if isinstance(error, DataError) and (downloads / ARCHIVE).exists():
                raise WrongContentError(f"a damaged archive stays: {error}") from None
            raise
    if contents(output / "train") != {"graph.npz": GOOD}:
        raise WrongContentError("other files than those of the archive")


def mirrors() -> dict[str, Answer]:
    """Return the answers of all mirrors, by name."""
    length = {"Content-Length": len(DATA)}
    found: dict[str, Answer] = {
        "honest": response(length),
        "more than announced, for ever": _more,
        "endless chunks": _endless(CHUNK, response(CHUNKED, b"")),
        "endless chunks with a length": _endless(CHUNK, response({**CHUNKED, **length}, b"")),
        "endless redirect": _endless(CHUNK, response({**CHUNKED, "Location": "/v0/elsewhere"}, b"", 302)),
        "endless header": _endless(b"x" * 2**16, START + b"X: "),
        "growing": _growing(),
        "redirect with a large body": _redirect("/v0/elsewhere", bytes(10**7)),
        "redirects in a circle": lambda request: [_redirect(request.split()[1])],
        "gzip bomb": partial(_gzip_bomb, 1),
        "gzip bomb twice": partial(_gzip_bomb, 2),
        "gzip bomb thrice": partial(_gzip_bomb, 3),
        "damaged gzip": response({"Content-Encoding": "gzip", **length}),
        "damaged deflate": response({"Content-Encoding": "deflate", **length}),
        "unknown encoding": response({"Content-Encoding": "x", **length}),
        "damaged": response(length, DATA[:700] + b"x" * (len(DATA) - 700)),
        "truncated": response(length, DATA[:100]),
        "other file": response({"Content-Length": len(DATA) // 2}),
        "partial without a request": response({"Content-Range": f"bytes 0-1/{len(DATA)}", **length}, status=206),
        "not modified": response({"Content-Length": 0}, status=304),
        "no content": response({}, status=204),
        **RESPONSES,
    }
    found |= {f"Content-Length {value[:20]!r}": response({"Content-Length": value}) for value in LENGTHS}
    for value in WAITS:
        found[f"Retry-After {value[:20]!r}"] = response({"Retry-After": value, "Content-Length": 0}, status=503)
    found |= {f"Location {value[:20]!r}": _redirect(value) for value in LOCATIONS}
    return found | {f"Content-Range {value[:24]!r}": partial(_range, value) for value in RANGES}


def _redirect(location: str, body: bytes = b"") -> bytes:
    return response({"Location": location, "Content-Length": len(body)}, body, 302)


def _endless(piece: bytes, start: bytes) -> Answer:
    return lambda _: chain([start], repeat(piece))


def _more(request: str) -> Iterator[bytes]:
    """Send more than announced at each request, and continue where the client asks."""
    headers, asked = {"Content-Length": str(len(DATA)), "ETag": '"a"'}, re.search(r"\nRange: bytes=(\d+)-", request)
    if asked:
        headers["Content-Range"] = f"bytes {asked[1]}-{int(asked[1]) + 10**6}/{len(DATA)}"
    yield response(CHUNKED | headers, CHUNK * 16 + b"0\r\n\r\n", 206 if asked else 200)


def _range(content_range: str, request: str) -> Iterator[bytes]:
    """Drop the first connection, and answer the second with a wrong range."""
    if "\nRange: " in request:
        yield response({"Content-Range": content_range, "Content-Length": 100}, DATA[-100:], 206)
    else:
        yield response({"Content-Length": 2**20, "ETag": '"a"'}, bytes(2**17))


def _growing() -> Answer:
    """Announce a longer file at each request, and send a little of it."""
    numbers = count(1)
    return lambda _: (
        response({"Content-Length": 10**6 * number, "ETag": f'"{number}"'}, bytes(10**5)) for number in [next(numbers)]
    )


def _gzip_bomb(times: int, _: str) -> Iterator[bytes]:
    body = bytes(2**26)
    for _number in range(times):
        body = gzip.compress(body, 9)
    yield response({"Content-Encoding": ", ".join(["gzip"] * times), "Content-Length": len(body)}, body)
