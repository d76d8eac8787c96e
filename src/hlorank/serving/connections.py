"""HTTP connections of `hlorank serve`: bounded in number and time, with errors as JSON also for what is not HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from hlorank.ranking.limits import Limits
from hlorank.serving.app import error_content


class BoundedConnection(H11Protocol):
    """A connection that is closed if the headers of a request do not arrive in time, or for a newer connection.

    The application bounds the time of bodies and responses.

    Attributes:
        limits: limits of connections.
    """

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Start to wait for headers; above the maximum number, close the oldest connection without a request."""
        super().connection_made(transport)
        self._opened, self._timer = self.loop.time(), self._start_timer()
        if len(self.connections) > self.limits.connections:
            others = (other for other in self.connections if isinstance(other, BoundedConnection))
            waiting = [other for other in others if other._waits and not other.transport.is_closing()]
            min(waiting, key=lambda connection: connection._opened).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the timer."""
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start to wait for the rest of a body that was not read, and for the headers of the next request."""
        self._timer.cancel()
        self._timer = self._start_timer()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, unless the request has a response, and close the connection."""
        unanswered = True
        if self.cycle is not None and (self.cycle.more_body or not self.cycle.response_complete):
            unanswered = not self.cycle.response_started
            self.cycle.disconnected = True  # the application is to send nothing more
            self.cycle.message_event.set()
        if unanswered:
            content = json.dumps(error_content(400, msg)).encode()
            headers = b"Content-Type: application/json\r\nContent-Length: %d\r\nConnection: close" % len(content)
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n%s\r\n\r\n%s" % (headers, content))
        self.transport.close()

    @property
    def _waits(self) -> bool:
        """True while no complete request is here."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _start_timer(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self.limits.wait_seconds, self._close_without_headers)

    def _close_without_headers(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket with an address, which `run_server` listens on.

    Args:
        host: name or address; a name with several addresses stands for the first IPv4 address.
        port: 0 takes any free port.

    Raises:
        OSError: the address cannot be used; `filename` has it.
    """
    try:
        found = sorted(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), key=lambda one: one[0])
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        error.filename = f"{host}:{port}"
        raise
    return bound


def run_server(app: FastAPI, bound: socket.socket, limits: Limits) -> None:
    """Listen on a socket, and serve until a signal ends the process."""

    class Connection(BoundedConnection):
        pass

    Connection.limits = limits
    options: dict[str, Any] = {"http": Connection, "ws": "none", "lifespan": "off", "server_header": False}
    server = uvicorn.Server(uvicorn.Config(app, timeout_keep_alive=limits.wait_seconds, **options))
    with suppress(KeyboardInterrupt):
        server.run([bound])
