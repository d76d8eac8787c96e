"""HTTP application of `hlorank serve`: one model, bounded requests, and errors as JSON of one line."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

import hlorank
from hlorank.files import DataError
from hlorank.serving.limits import Limits
from hlorank.serving.ranker import Ranker
from hlorank.serving.request import parse_request
from hlorank.serving.response import predictions

_ERROR_CODES = {
    400: "BAD_REQUEST",
    404: "ENDPOINT_NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    413: "REQUEST_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    500: "INTERNAL_ERROR",
    503: "TEMPORARILY_UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_MAX_MESSAGE = 500


class RankingService:
    """Handlers of requests to one model, which ranks for one request at a time.

    Args:
        ranker: the model.
        limits: limits of the requests.
        timeout: seconds after which a request is answered with status 504.
    """

    def __init__(self, ranker: Ranker, limits: Limits, timeout: float) -> None:
        self._ranker, self._limits, self._timeout = ranker, limits, timeout
        # Rankings of several requests at a time would exceed the memory of one.
        self._one_at_a_time = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ranking")
        self._active = 0

    async def invocations(self, request: Request) -> JSONResponse:
        """Rank the graphs of a request.

        Raises:
            HTTPException: the content type is not JSON (415), too many requests are active (503; the body is not
                read), the body is too long (413; it is not read to its end), the request or a graph is wrong (400), or
                the time is over (504).
        """
        media_type = request.headers.get("content-type", "none").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise HTTPException(415, f"Content-Type: expected application/json, found {media_type}")
        if self._active >= self._limits.requests:
            expected = f"at most {self._limits.requests:,} requests at a time"
            raise HTTPException(503, f"server: expected {expected}, found more; try again later", {"Retry-After": "1"})
        self._active += 1
        try:
            async with asyncio.timeout(self._timeout):
                return JSONResponse({"predictions": await self._ranked(request)})
        except DataError as error:
            raise HTTPException(400, str(error)) from None
        except TimeoutError:
            raise HTTPException(504, f"server: expected a response within {self._timeout:g} s, found none") from None
        finally:
            self._active -= 1

    async def _ranked(self, request: Request) -> list[dict[str, Any]]:
        deadline = time.monotonic() + self._timeout
        parsed = parse_request(await _body(request, self._limits.request_bytes))
        # After the time limit, a waiting call is dropped. A running call cannot be stopped: it ends after its current
        # graph, by the deadline.
        arguments = (self._ranker, parsed, self._limits, deadline)
        return await asyncio.get_running_loop().run_in_executor(self._one_at_a_time, predictions, *arguments)

    async def version(self) -> dict[str, str]:
        """Return the version of hlorank, and the collection and method of the model."""
        spec = self._ranker.spec
        return {"hlorank": hlorank.__version__, "collection": spec.collection, "method": spec.method}


async def _body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request.

    Raises:
        HTTPException: the body is longer than `max_bytes` (413), or the client has closed the connection (400).
    """
    declared = request.headers.get("content-length", "")
    too_long = declared.isdecimal() and int(declared) > max_bytes
    body, more = bytearray(), True
    while more and not too_long:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise HTTPException(400, "body: expected all of it, found a closed connection")
        body += message.get("body", b"")
        more, too_long = message.get("more_body", False), len(body) > max_bytes
    if too_long:
        raise HTTPException(413, f"body: expected at most {max_bytes:,} bytes, found more")
    return bytes(body)


async def _ping() -> dict[str, str]:
    return {"status": "ok"}


async def _error(_: Request, error: Exception) -> JSONResponse:
    """Return an error as `error_code` and a `message` of one line, as MLflow's server writes them."""
    status = getattr(error, "status_code", 500)  # any other exception, which the server then logs
    message = " ".join(str(getattr(error, "detail", "the server failed; see its log")).split())
    if len(message) > _MAX_MESSAGE:  # names of graphs have no maximum length
        message = f"{message[:_MAX_MESSAGE]} ..."
    content = {"error_code": _ERROR_CODES[status], "message": message}
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
    app = FastAPI(title="hlorank", openapi_url=None)
    app.add_api_route("/invocations", service.invocations, methods=["POST"], response_model=None)
    app.add_api_route("/version", service.version)
    for path in ("/ping", "/health"):
        app.add_api_route(path, _ping)
    for status in _ERROR_CODES:
        app.add_exception_handler(status, _error)
    return app
