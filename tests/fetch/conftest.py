"""A loopback HTTP server with faults on demand, and tar archives."""

import hashlib
import io
import re
import tarfile
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import hlorank.fetch.download


@dataclass(frozen=True)
class Fault:
    """What happens to a request: a status without a file, or a body that stops, and then the connection with it."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    stop_after: int | None = None


class Server(ThreadingHTTPServer):
    """Serves `files` by name; `faults` are those of the next requests, `headers` replace or remove (None) others."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.base_url = f"http://127.0.0.1:{self.server_address[1]}/v0"
        self.files: dict[str, bytes] = {}
        self.faults: deque[Fault] = deque()
        self.headers: dict[str, str | None] = {}
        self.ranges = True
        self.reason: str | None = None
        self.requests: list[str] = []
        self.ranges_asked: list[str | None] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it would wait 40 ms between headers and body
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        pass

    def do_GET(self) -> None:
        server, name = self.server, self.path.removeprefix("/v0/")
        server.requests.append(name)
        server.ranges_asked.append(self.headers.get("Range"))
        fault = server.faults.popleft() if server.faults else Fault()
        data = server.files.get(name)
        if fault.status is not None or data is None:
            self._answer(fault.status or 404, {"Content-Length": "0", **fault.headers})
            return
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if server.ranges else None
        start = int(asked[1]) if asked else 0
        if start >= len(data) > 0:
            self._answer(416, {"Content-Range": f"bytes */{len(data)}", "Content-Length": "0"})
            return
        body = data[start:]
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()[:16]}"', "Content-Length": str(len(body))}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        sent = {key: value for key, value in {**headers, **server.headers}.items() if value is not None}
        if "Transfer-Encoding" in sent:
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        self._answer(206 if asked else 200, sent)
        self.wfile.write(body[: fault.stop_after])
        self.close_connection = fault.stop_after is not None or sent.get("Content-Length") != str(len(data) - start)

    def do_HEAD(self) -> None:
        data = self.server.files.get(self.path.removeprefix("/v0/"))
        self._answer(404 if data is None else 200, {"Content-Length": str(len(data or b""))})

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
        running.shutdown()
        thread.join()


def member(name: str, data: bytes = b"", **attributes: object) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member of an archive; attributes are those of its header."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, data


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return output.getvalue()
