"""The HTTP application: its responses, its limits, and its errors."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI

import hlorank
from hlorank.data.collection import Collection, graph_files
from hlorank.ranking.limits import Limits
from hlorank.ranking.ranker import Ranker
from hlorank.ranking.request import make_request, parse_request
from hlorank.ranking.result import predictions
from hlorank.serving.app import make_app

INVOCATIONS = "/invocations"


class Response(NamedTuple):
    """Response to a request."""

    status: int
    headers: dict[str, str]
    value: Any


async def respond(
    app: FastAPI,
    *chunks: bytes,
    path: str = INVOCATIONS,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    read: Callable[[], None] | None = None,
) -> Response:
    """Send a request, whose body is in chunks, to an application.

    Args:
        app: the application.
        chunks: the body.
        path: the path.
        method: the method.
        headers: the headers, application/json alone by default.
        read: called when the application reads a part of the body.
    """
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    incoming = iter([*messages, {"type": "http.request", "body": b""}])
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if read is not None:
            read()
        await asyncio.sleep(0)
        return next(incoming)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    named = {"content-type": "application/json"} if headers is None else headers
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }
    try:
        await app(scope, receive, send)
    except Exception:  # the response is sent first; a server then logs the error
        assert sent[0]["status"] == 500
    start, *bodies = sent
    answered = {name.decode(): value.decode() for name, value in start["headers"]}
    assert answered["content-type"] == "application/json"
    return Response(start["status"], answered, json.loads(b"".join(body["body"] for body in bodies)))


def sync(app: FastAPI, *chunks: bytes, **options: Any) -> Response:
    return asyncio.run(asyncio.wait_for(respond(app, *chunks, **options), 60))


def refusal(app: FastAPI, *chunks: bytes, **options: Any) -> tuple[int, str, str]:
    """Return status, error code and message of an error, which must be JSON of one line."""
    status, _, value = sync(app, *chunks, **options)
    assert value.keys() == {"error_code", "message"}
    assert "\n" not in value["message"]
    return status, value["error_code"], value["message"]


@pytest.fixture(scope="module")
def ranker(linear_model: Callable[..., Path]) -> Ranker:
    return Ranker(linear_model())


@pytest.fixture(scope="module")
def graphs(tiny_collections: Path) -> list[Path]:
    return graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")


@pytest.fixture(scope="module")
def body(graphs: list[Path]) -> bytes:
    return json.dumps(make_request(graphs, 3)).encode()


class SlowRanker:
    """Ranker that waits in `score` until it is released, and records the threads that call it."""

    def __init__(self, ranker: Ranker) -> None:
        self.spec = ranker.spec
        self.started, self.released, self.calls = threading.Event(), threading.Event(), list[str]()
        self._ranker = ranker

    def score(self, *arguments: Any) -> Any:
        self.calls.append(threading.current_thread().name)
        self.started.set()
        assert self.released.wait(30)
        return self._ranker.score(*arguments)


@pytest.fixture
def slow(ranker: Ranker) -> Iterator[Any]:
    ranker_ = SlowRanker(ranker)
    yield ranker_
    ranker_.released.set()


def test_a_ranking(ranker: Ranker, body: bytes) -> None:
    app = make_app(ranker, Limits(), 60)
    expected = {"predictions": predictions(ranker, parse_request(body), Limits())}
    for chunks in ((body,), (body[:100], body[100:])):
        status, _, value = sync(app, *chunks, headers={"content-type": "Application/JSON; charset=utf-8"})
        assert (status, value) == (200, expected)


def test_health_and_version(ranker: Ranker) -> None:
    app = make_app(ranker, Limits(), 60)
    for path in ("/ping", "/health"):
        assert sync(app, path=path, method="GET", headers={})[::2] == (200, {"status": "ok"})
    expected = {"hlorank": hlorank.__version__, "collection": "layout:synthetic:random", "method": "linear_ranking"}
    assert sync(app, path="/version", method="GET", headers={}).value == expected


def test_wrong_requests(ranker: Ranker) -> None:
    app = make_app(ranker, Limits(graphs=1), 60)
    for body, message in (
        (b"{bad", "body: expected JSON"),
        (b'{"dataframe_records": [{"npz": "?", "graph": "a\\nb"}]}', r"a\nb: npz: expected the bytes of an npz file"),
        (b'{"dataframe_records": [{"npz": ""}, {"npz": ""}]}', "request: graphs: expected at most 1 graphs, found 2"),
    ):
        status, code, found = refusal(app, body)
        assert (status, code) == (400, "BAD_REQUEST")
        assert found.startswith(message)
    long = json.dumps({"dataframe_records": [{"npz": "?", "graph": "x" * 10_000}]}).encode()
    assert len(refusal(app, long)[2]) < 600
    assert refusal(app, path="/nothing", method="GET") == (404, "ENDPOINT_NOT_FOUND", "Not Found")
    assert refusal(app, method="GET") == (405, "METHOD_NOT_ALLOWED", "Method Not Allowed")


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, "none"),
        ({"content-type": "text/csv"}, "text/csv"),
        ({"content-type": "application/json; charset=utf-16"}, "charset utf-16"),
        (JSON | {"content-encoding": "gzip"}, "gzip"),
    ],
)
def test_only_json_is_accepted(headers: dict[str, str], found: str, ranker: Ranker) -> None:
    status, code, message = refusal(make_app(ranker, Limits(), 60), b"{}", headers=headers)
    assert (status, code) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert message.endswith(found)


@pytest.mark.parametrize("declared", [True, False])
def test_a_long_body_is_not_read_to_its_end(declared: bool, ranker: Ranker) -> None:
    headers = {"content-type": "application/json"} | ({"content-length": "15"} if declared else {})
    reads: list[None] = []
    app = make_app(ranker, Limits(request_bytes=10), 60)
    refused = refusal(app, b"12345", b"678901", b"2345", headers=headers, read=lambda: reads.append(None))
    assert refused == (413, "REQUEST_TOO_LARGE", "body: expected at most 10 bytes, found more")
    assert len(reads) == (0 if declared else 2)
    assert refusal(app, b"12345", b"67890")[0] == 400  # not JSON, but short enough


@pytest.mark.parametrize(("length", "status"), [("9" * 5000, 413), ("abc", 400), ("-1", 400), ("", 400), ("\xb2", 400)])
def test_lengths_that_are_wrong(length: str, status: int, ranker: Ranker) -> None:
    assert refusal(make_app(ranker, Limits(), 60), b"{}", headers=JSON | {"content-length": length})[0] == status


def test_a_client_that_closes_the_connection(ranker: Ranker) -> None:
    app, sent = make_app(ranker, Limits(requests=1), 60), list[MutableMapping[str, Any]]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": INVOCATIONS, "query_string": b"", "headers": headers}
    for _ in range(2):  # the first request has made room for the second
        asyncio.run(app(scope, receive, send))
    assert [message["status"] for message in sent if "status" in message] == [400, 400]


def test_an_error_of_the_program_is_not_shown(ranker: Ranker, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr("hlorank.serving.app.prediction", failing)
    app = make_app(ranker, Limits(requests=1), 60)
    for _ in range(2):  # the first request has made room for the second
        status, code, message = refusal(app, body)
        assert (status, code) == (500, "INTERNAL_ERROR")
        assert "secret" not in message


def test_too_many_requests_at_a_time(slow: Any, body: bytes) -> None:
    app = make_app(slow, Limits(requests=2), 60)

    async def requests() -> None:
        active = [asyncio.create_task(respond(app, body)) for _ in range(2)]
        await asyncio.to_thread(slow.started.wait, 30)
        refused = await respond(app, body)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.value["error_code"] == "TEMPORARILY_UNAVAILABLE"
        assert (await respond(app, path="/ping", method="GET")).status == 200
        slow.released.set()
        assert [(await task).status for task in active] == [200, 200]
        assert (await respond(app, body)).status == 200

    asyncio.run(asyncio.wait_for(requests(), 60))


def waiting_body(app: FastAPI, *parts: bytes) -> asyncio.Task[list[MutableMapping[str, Any]]]:
    """Send parts of a body whose end never arrives, and return what the application sends."""
    incoming, sent = iter(parts), list[MutableMapping[str, Any]]()

    async def receive() -> dict[str, Any]:
        for part in incoming:
            return {"type": "http.request", "body": part, "more_body": True}
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def run() -> list[MutableMapping[str, Any]]:
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": INVOCATIONS, "query_string": b"", "headers": headers}
        await app(scope, receive, send)
        return sent

    return asyncio.create_task(run())


def test_slow_bodies_take_no_room(ranker: Ranker, body: bytes) -> None:
    app = make_app(ranker, Limits(requests=1, wait_seconds=1), 60)

    async def requests() -> None:
        slow = [waiting_body(app, b"{") for _ in range(5)]
        assert (await respond(app, body)).status == 200
        for task in slow:  # no further part arrives
            start, end = await task
            assert (start["status"], json.loads(end["body"])["error_code"]) == (408, "REQUEST_TIMEOUT")

    asyncio.run(asyncio.wait_for(requests(), 30))


def test_bodies_in_memory_are_bounded_and_small_ones_accepted(ranker: Ranker, body: bytes) -> None:
    size = 100_000
    app = make_app(ranker, Limits(request_bytes=size), 60)

    async def requests() -> None:
        slow = [waiting_body(app, b"x" * (size - 1)) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert (await respond(app, b"x" * (size - 1))).status == 503
        assert (await respond(app, b"{}")).status == 400  # read, since it is small
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert (await respond(app, b"x" * (size - 1))).status == 400

    asyncio.run(asyncio.wait_for(requests(), 30))


def test_small_requests_are_answered_while_a_large_graph_is_ranked(
    slow: Any, ranker: Ranker, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, score = slow.score, ranker.score

    def sized(record: Any, limits: Limits) -> int:
        return 2**30 if record.graph == "large" else 1

    def scored(*arguments: Any) -> Any:
        return (waits if threading.current_thread().name.startswith("large") else score)(*arguments)

    monkeypatch.setattr("hlorank.serving.app.graph_bytes", sized)
    slow.score = scored
    app = make_app(slow, Limits(), 60)
    request = json.loads(body)
    request["dataframe_records"] = [{**request["dataframe_records"][0], "graph": "large"}]

    async def requests() -> None:
        running = asyncio.create_task(respond(app, json.dumps(request).encode()))
        await asyncio.to_thread(slow.started.wait, 30)
        for _ in range(3):
            assert (await respond(app, body)).status == 200
        assert not running.done()
        slow.released.set()
        assert (await running).status == 200

    asyncio.run(asyncio.wait_for(requests(), 60))


def test_one_ranking_at_a_time(ranker: Ranker, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    active, highest, score = [0], [0], Ranker.score

    def counted(self: Ranker, *arguments: Any) -> Any:
        active[0] += 1
        highest[0] = max(highest[0], active[0])
        try:
            return score(self, *arguments)
        finally:
            active[0] -= 1

    monkeypatch.setattr(Ranker, "score", counted)
    app = make_app(ranker, Limits(), 60)

    async def requests() -> list[Response]:
        return await asyncio.gather(*(respond(app, body) for _ in range(4)))

    assert [response.status for response in asyncio.run(requests())] == [200] * 4
    assert highest == [1]


def test_a_request_that_takes_too_long(slow: Any, graphs: list[Path], body: bytes) -> None:
    app = make_app(slow, Limits(requests=2), 1)

    async def requests() -> None:
        late = await asyncio.gather(respond(app, body), respond(app, body))
        assert [(response.status, response.value["error_code"]) for response in late] == [
            (504, "DEADLINE_EXCEEDED")
        ] * 2
        assert len(slow.calls) == 1  # the second request has waited for its turn
        slow.released.set()

    asyncio.run(asyncio.wait_for(requests(), 60))
    assert sync(app, body).status == 200
    # Of the first request only its current graph was ranked, of the second none.
    assert len(slow.calls) == 1 + len(graphs)
