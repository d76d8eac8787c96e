"""HTTP application of `hlorank serve`: one model, bounded requests, and errors as JSON of one line."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

import hlorank
from hlorank.files import DataError
from hlorank.models.scoring import time_limit
from hlorank.ranking.limits import Limits
from hlorank.ranking.ranker import Ranker
from hlorank.ranking.request import GraphRecord, RankingRequest, graph_bytes, naming, parse_request
from hlorank.ranking.result import prediction

_ERROR_CODES = {
    400: "BAD_REQUEST",
    404: "ENDPOINT_NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    413: "REQUEST_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    500: "INTERNAL_ERROR",
    503: "TEMPORARILY_UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_MAX_MESSAGE = 500
_SMALL_BYTES = 4 * 2**20
"""Bytes up to which a body, a graph in base64, and the arrays of a graph are small."""
_ALWAYS_ACCEPTED_BYTES = 2**16
"""Bytes of a body that are accepted also if the bodies of other requests take all memory."""
_MAX_LENGTH_DIGITS = 18

_T = TypeVar("_T")


class _Turns:
    """Queues of the work for requests, one for small and one for large bodies and graphs.

    The work of a queue is done in order, one piece at a time, since the rankings of several requests at a time would
    exceed the memory of one. A piece is the validation of a body, or one graph: small requests wait for one small graph
    of each other request, and never for a large graph.
    """

    def __init__(self) -> None:
        self._small, self._large = (ThreadPoolExecutor(1, f"{size}-graphs") for size in ("small", "large"))

    async def run(self, size: int, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function in its turn; work that still waits is dropped when the caller is cancelled.

        Args:
            size: bytes of what the function processes.
            function: the function.
            arguments: its arguments.
        """
        queue = self._small if size <= _SMALL_BYTES else self._large
        return await asyncio.get_running_loop().run_in_executor(queue, function, *arguments)


class _Memory:
    """Bytes of the bodies and responses that are in memory.

    Args:
        max_bytes: limit of their sum.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._shares = max_bytes, dict[int, int]()

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yield a function to add bytes to the share of a request, which is released at the end of the block.

        The function raises an HTTPException (503) if no memory is left, unless the share is small.
        """
        key = max(self._shares, default=0) + 1
        self._shares[key] = 0

        def add(size: int) -> None:
            self._shares[key] += size
            if self._shares[key] > _ALWAYS_ACCEPTED_BYTES and sum(self._shares.values()) > self._max_bytes:
                expected = f"at most {self._max_bytes:,} bytes of all requests at a time"
                raise _busy(expected)

        try:
            yield add
        finally:
            del self._shares[key]


def _busy(expected: str) -> HTTPException:
    return HTTPException(503, f"server: expected {expected}, found more; try again later", {"Retry-After": "1"})


class RankingService:
    """Handlers of requests to one model.

    Args:
        ranker: the model.
        limits: limits of the requests.
        timeout: seconds after which a request is answered with status 504.
    """

    def __init__(self, ranker: Ranker, limits: Limits, timeout: float) -> None:
        self._ranker, self._limits, self._timeout = ranker, limits, timeout
        self._turns, self._memory = _Turns(), _Memory(2 * limits.request_bytes)
        self._active = 0

    async def invocations(self, request: Request) -> Response:
        """Rank the graphs of a request.

        Raises:
            HTTPException: the content is not JSON in UTF-8 (415), the body is too long (413; it is not read to its
                end), no further part of it arrives (408), too many requests are active or their memory is used up
                (503), the request or a graph is wrong (400), or the time is over (504).
        """
        _check_content(request)
        deadline = time.monotonic() + self._timeout
        try:
            async with asyncio.timeout(self._timeout):
                with self._memory.share() as add_bytes:
                    body = await self._body(request, add_bytes)
                    with self._activity():
                        return await self._ranked(body, add_bytes, deadline)
        except DataError as error:
            raise HTTPException(400, str(error)) from None
        except TimeoutError:
            raise HTTPException(504, f"server: expected a response within {self._timeout:g} s, found none") from None

    @contextmanager
    def _activity(self) -> Iterator[None]:
        """Count a request with a complete body; slow bodies take no room of others."""
        if self._active >= self._limits.requests:
            raise _busy(f"at most {self._limits.requests:,} requests at a time")
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    async def _body(self, request: Request, add_bytes: Callable[[int], None]) -> bytearray:
        """Return the body of a request.

        Raises:
            HTTPException: the length is no number (400), the body is longer than `request_bytes` (413), no further part
                of it arrives (408), or the client has closed the connection (400).
        """
        declared, max_bytes = request.headers.get("content-length", "0"), self._limits.request_bytes
        if not declared.isdecimal():
            raise HTTPException(400, f"Content-Length: expected a whole number, found {declared[:20]!r}")
        too_long = len(declared) > _MAX_LENGTH_DIGITS or int(declared) > max_bytes
        body, more = bytearray(), True
        while more and not too_long:
            try:
                async with asyncio.timeout(self._limits.wait_seconds):
                    message = await request.receive()
            except TimeoutError:
                expected = f"a further part within {self._limits.wait_seconds} s"
                raise HTTPException(408, f"body: expected {expected}, found none", {"Connection": "close"}) from None
            if message["type"] == "http.disconnect":
                raise HTTPException(400, "body: expected all of it, found a closed connection")
            part = message.get("body", b"")
            add_bytes(len(part))
            body += part
            more, too_long = message.get("more_body", False), len(body) > max_bytes
        if too_long:
            raise HTTPException(413, f"body: expected at most {max_bytes:,} bytes, found more")
        return body

    async def _ranked(self, body: bytearray, add_bytes: Callable[[int], None], deadline: float) -> Response:
        parsed = await self._turns.run(len(body), _parsed, body, self._limits)
        body.clear()
        ranked = []
        for record in parsed.dataframe_records:
            ranked.append(await self._prediction(record, parsed.params.top, deadline))
            add_bytes(len(ranked[-1]))
        return Response(b'{"predictions":[' + b",".join(ranked) + b"]}", media_type="application/json")

    async def _prediction(self, record: GraphRecord, top: int, deadline: float) -> bytes:
        size = len(record.npz) + len(record.extra or "")
        if size <= _SMALL_BYTES:  # otherwise it is large in any case
            size = await self._turns.run(size, _named_bytes, record, self._limits)
        return await self._turns.run(size, _encoded_prediction, self._ranker, record, top, self._limits, deadline)

    async def version(self) -> dict[str, str]:
        """Return the version of hlorank, and the collection and method of the model."""
        spec = self._ranker.spec
        return {"hlorank": hlorank.__version__, "collection": spec.collection, "method": spec.method}


def _check_content(request: Request) -> None:
    """Refuse bodies that are not declared as JSON in UTF-8 without compression.

    Raises:
        HTTPException: a header declares another type, character set or encoding (415).
    """
    media_type, _, options = request.headers.get("content-type", "none").lower().partition(";")
    charset = options.rpartition("charset=")[2].partition(";")[0].strip(' "') if "charset=" in options else "utf-8"
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    for name, expected, found in (
        ("Content-Type", "application/json", media_type.strip()),
        ("Content-Type", "charset utf-8", f"charset {charset}"),
        ("Content-Encoding", "identity", encoding),
    ):
        if found != expected:
            raise HTTPException(415, f"{name}: expected {expected}, found {found}")


def _parsed(body: bytearray, limits: Limits) -> RankingRequest:
    limits.check_json(body)
    parsed = parse_request(body)
    limits.check_request(len(parsed.dataframe_records), parsed.params.top)
    return parsed


def _named_bytes(record: GraphRecord, limits: Limits) -> int:
    with naming(record):
        return graph_bytes(record, limits)


def _encoded_prediction(ranker: Ranker, record: GraphRecord, top: int, limits: Limits, deadline: float) -> bytes:
    """Return a prediction as JSON: as an object, it takes several times the memory."""
    with time_limit(deadline):  # the server cannot stop a call that runs
        ranked = prediction(ranker, record, top, limits)
    return json.dumps(ranked, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


async def _ping() -> dict[str, str]:
    return {"status": "ok"}


def error_content(status: int, message: str) -> dict[str, str]:
    """Return an error as `error_code` and a `message` of one line, as MLflow's server writes them."""
    message = " ".join(message.split())
    if len(message) > _MAX_MESSAGE:  # names of graphs have no maximum length
        message = f"{message[:_MAX_MESSAGE]} ..."
    return {"error_code": _ERROR_CODES[status], "message": message}


async def _error(_: Request, error: Exception) -> JSONResponse:
    status = getattr(error, "status_code", 500)  # any other exception, which the server then logs
    content = error_content(status, str(getattr(error, "detail", "the server failed; see its log")))
    return JSONResponse(content, status, getattr(error, "headers", None))


def make_app(ranker: Ranker, limits: Limits, timeout: float) -> FastAPI:
    """Return the HTTP application of a model.

    Requests and responses of `/invocations` have the format of MLflow's scoring server. `/ping` and `/health` answer
    while the server runs, also while it ranks; `/version` describes the model.

    Args:
        ranker: the model.
        limits: limits of the requests.
        timeout: seconds after which a request is answered with status 504.
    """
    service = RankingService(ranker, limits, timeout)
    app = FastAPI(title="hlorank", openapi_url=None, redirect_slashes=False)
    app.add_api_route("/invocations", service.invocations, methods=["POST"], response_model=None)
    app.add_api_route("/version", service.version)
    for path in ("/ping", "/health"):
        app.add_api_route(path, _ping)
    for status in _ERROR_CODES:
        app.add_exception_handler(status, _error)
    return app
