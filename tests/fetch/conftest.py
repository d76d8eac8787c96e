"""A loopback HTTP server with faults on demand."""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import hlorank.fetch.download


@dataclass(frozen=True)
class _Fault:
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    stop_after: int | None = None
    hold: bool = False


class Server(ThreadingHTTPServer):
    """Serves `files` by name; faults are set in advance, one for each of the next requests."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self._faults: deque[_Fault] = deque()
        self.ranges = True
        self.validator: str | None = "ETag"
        """The header that identifies a version: ETag, Last-Modified, or none."""
        self.longest_range = sys.maxsize
        """Bytes of a partial response, at most."""
        self.lengths = True
        self.length: str | None = None
        """A Content-Length in place of the right one."""
        self.chunked = False
        """Send the body in chunks, with a Content-Length only if `length` is set."""
        self.reason: str | None = None
        self.requests: list[tuple[str, dict[str, str]]] = []
        """Name and headers of each request."""
        self.release = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that close the connection, as killed ones do."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type] # typeshed's types are private

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v0"

    @property
    def ranges_asked(self) -> list[str | None]:
        return [headers.get("Range") for _, headers in self.requests]

    def serve(self) -> None:
        """Serve a request without a fault."""
        self._faults.append(_Fault())

    def answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        """Respond to a request with this status and no file."""
        self._faults.append(_Fault(status=status, headers=headers or {}))

    def drop(self, after: int) -> None:
        """Close the connection after this number of bytes."""
        self._faults.append(_Fault(stop_after=after))

    def hold(self, after: int) -> None:
        """Send nothing after this number of bytes until `release` is set."""
        self._faults.append(_Fault(stop_after=after, hold=True))

    def next_fault(self) -> _Fault:
        return self._faults.popleft() if self._faults else _Fault()

    def version(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if self.validator == "Last-Modified":
            return f"Thu, 01 Jan 2026 00:00:{int(digest[:8], 16) % 60:02} GMT"
        return f'"{digest[:16]}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it would wait 40 ms between headers and body
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        pass

    def do_GET(self) -> None:
        name = self.path.removeprefix("/v0/")
        self.server.requests.append((name, dict(self.headers)))
        fault = self.server.next_fault()
        data = self.server.files.get(name)
        if fault.status is not None or data is None:
            self._answer(fault.status or 404, {**fault.headers, "Content-Length": "0"})
            return
        version = self.server.version(data)
        headers = {} if self.server.validator is None else {self.server.validator: version}
        start, stop = 0, len(data)
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and self.server.ranges:
            start = int(asked[1])
            if start >= len(data):
                self._answer(416, {"Content-Range": f"bytes */{len(data)}", "Content-Length": "0"})
                return
            stop = min(len(data), start + self.server.longest_range)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        body = data[start:stop]
        if self.server.chunked:
            headers["Transfer-Encoding"] = "chunked"
            headers |= {} if self.server.length is None else {"Content-Length": self.server.length}
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        elif self.server.length is not None:
            headers |= {"Content-Length": self.server.length, "Connection": "close"}
        elif self.server.lengths:
            headers["Content-Length"] = str(len(body))
        else:
            headers["Connection"] = "close"
        self._answer(206 if "Content-Range" in headers else 200, headers)
        self.wfile.write(body[: fault.stop_after])
        if fault.hold:
            self.server.release.wait()
        unbounded = self.server.length is not None or not self.server.lengths
        self.close_connection = fault.stop_after is not None or unbounded

    def _answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status, self.server.reason)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Run a server; downloads wait only a millisecond between retries."""
    monkeypatch.setattr(hlorank.fetch.download, "BACKOFF_SECONDS", 0.001)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.release.set()
        running.shutdown()
        thread.join()
