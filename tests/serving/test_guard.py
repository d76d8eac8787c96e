"""The guard before the scoring server: what it lets pass, what it refuses, and how errors look."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from hlorank.serving.guard import App, Guard, Message, Receive, Send, guard_scoring_server, time_left

JSON = [(b"content-type", b"application/json")]


def answering(status: int, body: bytes) -> App:
    """An app that reads the body, if it is given one, and answers."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return app


def failing(error: Exception) -> App:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    return app


def asked(app: App, headers: Iterable[Any] = JSON, chunks: Iterable[bytes] = (b"{}",), method: str = "POST") -> Any:
    """Status and body of the answer to a request of at most 10 bytes."""
    messages: list[Message] = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    incoming, sent = iter([*messages, {"type": "http.request", "body": b""}]), list[Message]()

    async def receive() -> Message:
        return next(incoming)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "headers": list(headers)}
    asyncio.run(Guard(app, 10, 1, 60)(scope, receive, send))
    start, *rest = sent
    assert [message["type"] for message in rest] == ["http.response.body"]
    return start["status"], rest[0]["body"]


def refused(*args: Any, **rest: Any) -> tuple[int, str, str]:
    """Status, error code and message, which is one line of JSON."""
    status, body = asked(*args, **rest)
    value = json.loads(body)
    assert value.keys() == {"error_code", "message"}
    assert "\n" not in value["message"]
    return status, value["error_code"], value["message"]


def test_what_is_right_passes() -> None:
    assert asked(answering(200, b"[1]")) == (200, b"[1]")
    assert asked(answering(200, b"ok"), headers=(), chunks=(), method="GET") == (200, b"ok")
    assert asked(answering(200, b"ok"), [(b"Content-Type", b"Application/JSON; charset=utf-8")]) == (200, b"ok")
    assert asked(answering(200, b"ok"), chunks=(b"12345", b"67890")) == (200, b"ok")


def test_other_messages_pass() -> None:
    seen = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    asyncio.run(Guard(app, 10, 1, 60)({"type": "lifespan"}, nothing, nothing))
    assert seen == ["lifespan"]


def test_only_json_is_taken() -> None:
    message = "Content-Type: expected application/json, found "
    for headers, found in (((), "none"), ([(b"content-type", b"text/csv")], "text/csv")):
        expected = (415, "UNSUPPORTED_MEDIA_TYPE", message + found)
        assert refused(failing(AssertionError()), headers) == expected


@pytest.mark.parametrize("declared", [True, False])
def test_a_large_body_is_refused(declared: bool) -> None:
    headers = [*JSON, (b"content-length", b"11")] if declared else JSON
    expected = (413, "REQUEST_TOO_LARGE", "body: expected at most 10 bytes, found more")
    assert refused(answering(200, b""), headers, (b"123456", b"78901")) == expected


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (404, b'{"detail": "Not Found"}', "ENDPOINT_NOT_FOUND", "Not Found"),
        (415, b"no CSV\nhere", "UNSUPPORTED_MEDIA_TYPE", "no CSV here"),
        (504, b"too slow", "DEADLINE_EXCEEDED", "too slow"),
        (400, b'{"error_code": "X", "message": "a\\n b", "stack_trace": "secret"}', "X", "a b"),
        (400, b'{"message": "Failed to predict data \'npz\\n0 A\'. \\nError: top: low"}', "BAD_REQUEST", "top: low"),
        (400, b"x" * 600, "BAD_REQUEST", "x" * 500 + " ..."),
        (422, b"[1]", "BAD_REQUEST", "[1]"),
    ],
)  # fmt: skip
def test_errors_are_one_line_of_json(status: int, body: bytes, code: str, message: str) -> None:
    assert refused(answering(status, body)) == (status, code, message)


def test_failures_are_told_without_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    assert refused(failing(KeyError("secret"))) == (500, "INTERNAL_ERROR", "the server failed; its log says why")
    assert "secret" in caplog.text
    status, code, message = refused(failing(RecursionError()))
    assert (status, code) == (400, "BAD_REQUEST")
    assert message.endswith("nested too deeply")


def test_too_many_requests_at_a_time_are_refused() -> None:
    held, read = asyncio.Event(), list[str]()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        if scope["method"] == "POST":
            await held.wait()
        await answering(200, b"")(scope, receive, send)

    guard = Guard(app, 10, 2, 60)

    async def status(name: str, method: str = "POST") -> tuple[int, dict[bytes, bytes]]:
        sent = list[Message]()

        async def receive() -> Message:
            read.append(name)
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            sent.append(message)

        await guard({"type": "http", "method": method, "headers": JSON}, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"])

    async def main() -> None:
        first = [asyncio.create_task(status(f"first {number}")) for number in range(2)]
        await asyncio.sleep(0)
        code, headers = await status("refused")
        assert (code, headers[b"retry-after"]) == (503, b"1")
        assert (await status("health", "GET"))[0] == 200
        held.set()
        assert [(await task)[0] for task in first] == [200, 200]
        assert (await status("after"))[0] == 200

    asyncio.run(asyncio.wait_for(main(), 10))
    assert {"first 0", "first 1", "health", "after"} == set(read)  # of a refused request nothing is read


def test_a_request_that_fails_makes_room() -> None:
    guard = Guard(failing(KeyError()), 10, 1, 60)

    async def nothing(*_: Any) -> Any:
        return None

    sent = list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    for _ in range(2):
        asyncio.run(guard({"type": "http", "method": "POST", "headers": JSON}, nothing, send))
    assert [message["status"] for message in sent if "status" in message] == [500, 500]


def test_the_thread_that_ranks_knows_how_long_it_is_waited_for() -> None:
    seen = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        seen.append(await asyncio.to_thread(time_left))
        await answering(200, b"")(scope, receive, send)

    asked(app)
    assert seen[0] is not None
    assert 50 < seen[0] <= 60
    assert time_left() is None


def test_only_a_scoring_server_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    import fastapi

    plain = fastapi.FastAPI
    assert not guard_scoring_server(10, 1)
    assert fastapi.FastAPI is plain
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc.scoring_server.app", object())
    assert guard_scoring_server(10, 1)
    assert fastapi.FastAPI is not plain
    app = fastapi.FastAPI()
    assert fastapi.FastAPI is plain
    assert isinstance(app, plain)
    assert refused(app, [*JSON, (b"content-length", b"11")])[0] == 413
