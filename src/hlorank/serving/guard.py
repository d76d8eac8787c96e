"""What stands before MLflow's scoring server: bounds requests, and answers every mistake with JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextvars import ContextVar
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)

_CODES = {
    400: "BAD_REQUEST",
    404: "ENDPOINT_NOT_FOUND",
    413: "REQUEST_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    503: "TEMPORARILY_UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_PREFIX, _SEPARATOR = "Failed to predict data", "\nError: "
_MESSAGE_LENGTH = 500
_RETRY = [(b"retry-after", b"1")]

# The context of a request goes along from the event loop to the thread that ranks.
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


def time_left() -> float | None:
    """Seconds, at least 0, until the server gives up the request being answered; None if no guard let it pass."""
    deadline = _deadline.get()
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class _Body:
    """The body of a request, up to a bound.

    Attributes:
        exceeded: it is longer.
    """

    def __init__(self, receive: Receive, declared: bytes, max_bytes: int) -> None:
        self._receive, self._left = receive, max_bytes
        self.exceeded = declared.isdigit() and int(declared) > max_bytes

    async def __call__(self) -> Message:
        """The next message.

        Raises:
            ValueError: the bound is exceeded.
        """
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self.exceeded = True
            raise ValueError
        return message


async def _reply(
    send: Send, status: int, message: str, code: str | None = None, more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Sends an error as JSON: error_code and a message of one line; with more headers, if there are any."""
    default = _CODES.get(status, "BAD_REQUEST" if status < 500 else "INTERNAL_ERROR")
    body = json.dumps({"error_code": code or default, "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _described(body: bytes) -> tuple[str, str | None]:
    """The message, in one line, and the error code of a body that some part of the server answers a mistake with."""
    text, code = body.decode(errors="replace"), None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, dict):
        code = value.get("error_code")
        text = str(value.get("message", value.get("detail", text)))
    if text.startswith(_PREFIX):  # MLflow shows the data before the error
        text = text.partition(_SEPARATOR)[2] or text
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE_LENGTH else f"{text[:_MESSAGE_LENGTH]} ...", code


class Guard:
    """An ASGI app before another.

    A body above the bound is refused (413) before it is read to its end. Before any of it is read, so is one that is
    not JSON (415), and any while too many are being answered (503), whose bodies are held in memory. A response with an
    error status becomes a JSON object of `error_code` and a `message` of one line, whatever it was: MLflow answers some
    mistakes with plain text, some with the request in the message, and some with a traceback.

    Args:
        app: what answers the requests that pass.
        max_bytes: bound of a request's body.
        max_requests: that are read and answered at a time.
        seconds: after which the app gives up a request; `time_left` counts them.
    """

    def __init__(self, app: App, max_bytes: int, max_requests: int, seconds: float) -> None:
        self._app, self._max_bytes, self._max_requests, self._seconds = app, max_bytes, max_requests, seconds
        self._inside = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and media != b"application/json":
            found = media.decode(errors="replace") or "none"
            await _reply(send, 415, f"Content-Type: expected application/json, found {found}")
            return
        if scope["method"] == "POST" and self._inside >= self._max_requests:  # who asks for its health gets an answer
            expected = f"at most {self._max_requests:,} requests at a time"
            await _reply(send, 503, f"server: expected {expected}, found more; ask again later", more=_RETRY)
            return
        body = _Body(receive, headers.get(b"content-length", b""), self._max_bytes)
        messages: list[Message] = []  # nothing is sent before the app is through

        async def keep(message: Message) -> None:
            messages.append(message)

        failure: Exception | None = None
        if not body.exceeded:
            _deadline.set(time.monotonic() + self._seconds)
            self._inside += 1
            try:
                await self._app(scope, body, keep)
            except Exception as error:
                failure = error
            finally:
                self._inside -= 1
        if body.exceeded:
            await _reply(send, 413, f"body: expected at most {self._max_bytes:,} bytes, found more")
        elif isinstance(failure, RecursionError):
            await _reply(send, 400, "body: expected JSON, found some that is nested too deeply")
        elif failure is not None:
            log.error("a request failed", exc_info=failure)
            await _reply(send, 500, "the server failed; its log says why")
        elif (status := messages[0]["status"]) < 400:
            for message in messages:
                await send(message)
        else:
            text, code = _described(b"".join(message.get("body", b"") for message in messages))
            await _reply(send, status, text, code)


def guard_scoring_server(max_bytes: int, max_requests: int) -> bool:
    """Puts a guard before MLflow's scoring server, if this process is one that is about to start.

    MLflow loads the model before it makes its FastAPI app, and knows no hook between; so the next app is made of a
    class that has the guard. A request for which `time_left` is None then came another way.

    Args:
        max_bytes: bound of a request's body.
        max_requests: that are read and answered at a time.

    Returns:
        whether it is one: its app is being imported, or it was started with the variable that names the app's model.
    """
    if "mlflow.pyfunc.scoring_server.app" not in sys.modules and "__pyfunc_model_path__" not in os.environ:
        return False
    import fastapi
    from mlflow.environment_variables import MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT

    class GuardedApp(fastapi.FastAPI):
        """MLflow's app behind the guard."""

        def __init__(self) -> None:
            super().__init__()
            seconds = MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT.get()
            self._guard = Guard(super().__call__, max_bytes, max_requests, seconds)
            fastapi.FastAPI = plain  # type: ignore[misc] # a class in the place of a class

        async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
            await self._guard(scope, receive, send)

    plain, fastapi.FastAPI = fastapi.FastAPI, GuardedApp  # type: ignore[misc, assignment] # as above
    return True
