"""Attack on a server: hostile requests and half-open connections, next to clients with correct requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hlorank.ranking.limits import Limits
from hlorank.ranking.ranker import Ranker
from hlorank.ranking.request import make_request, parse_request
from hlorank.ranking.result import predictions

from .counts import BYTES, SECONDS, Counts
from .hostile_requests import LARGE, MIB, Request, hostile_requests, http, large_request

TIMES = 3
"""Hostile requests of each kind."""
REQUESTS = 200
CLIENTS = 50
HALF_OPEN = 300
AT_A_TIME = 8
STARTING_SECONDS = 120

Address = tuple[str, int]
Expected = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Predictions of a correct request, and of the large one."""


def attack(model: Path, graph: Path, work: Path, scale: float = 1, seed: int = 0) -> dict[str, Counts]:
    """Attack a server of a model; return the outcomes of the hostile and of the correct requests.

    Args:
        model: the model folder.
        graph: an npz file that the model ranks.
        work: folder for the server's log.
        scale: multiplies the number of hostile requests, `TIMES` of each kind.
        seed: seed of the order of the kinds and of their random bytes.
    """
    kinds = list(hostile_requests(graph, seed))
    random.Random(seed).shuffle(kinds)
    hostile = [kinds[number % len(kinds)] for number in range(round(TIMES * len(kinds) * scale))]
    print(f"{len({request.name for request in hostile})} kinds of hostile requests")
    request, ranker = make_request([graph]), Ranker(model)
    ordinary, large = (predictions(ranker, parse_request(one), Limits()) for one in (request, large_request(graph)))
    log = work / "server.log"
    with running(model, log) as (address, pid):
        attacked, served = asyncio.run(all_requests(address, hostile, json.dumps(request).encode(), (ordinary, large)))
        peak = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert peak is not None
    attacked.largest = (int(peak[1]) * 1024, "the server")
    if attacked.largest[0] > BYTES:
        attacked.add("memory", "the server", memory=attacked.largest[0])
    text = log.read_text(errors="replace")
    for _ in range(text.count("Traceback (most recent call last)")):
        attacked.add("tracebacks", "the server's log", text.strip().splitlines()[-1][:200])
    return {"hostile requests": attacked, "correct requests": served}


async def all_requests(
    address: Address, hostile: list[Request], correct: bytes, expected: Expected
) -> tuple[Counts, Counts]:
    """Send the hostile and the correct requests next to the half-open connections; return the outcomes of both."""
    attacked, served, ended = Counts(len(hostile)), Counts(2 * REQUESTS), asyncio.Event()
    opened = [asyncio.create_task(half_open(address, kind, ended)) for kind in range(HALF_OPEN)]
    queue = iter(hostile)

    async def attacker() -> None:
        for request in queue:
            outcome, detail, seconds = await outcome_of(address, request, expected)
            attacked.add(outcome, request.name, detail, seconds)

    async def clients() -> None:
        await asyncio.gather(*(correct_client(address, correct, expected, served) for _ in range(CLIENTS)))

    await asyncio.gather(clients(), *(attacker() for _ in range(AT_A_TIME)))
    await clients()  # after the attack
    ended.set()
    await asyncio.gather(*opened)
    return attacked, served


async def correct_client(address: Address, body: bytes, expected: Expected, counts: Counts) -> None:
    """Send correct requests one after another; a refusal for lack of room is tried again, as a client would."""
    request = Request("a correct request", lambda: [http(body)], ("ranking",))
    for _ in range(REQUESTS // CLIENTS):
        start = time.monotonic()
        for _ in range(SECONDS):
            outcome, detail, _ = await outcome_of(address, request, expected)
            if outcome != "clean errors":
                break
            await asyncio.sleep(1)
        seconds = time.monotonic() - start
        if outcome == "clean errors" or seconds > SECONDS:
            outcome = "hangs"
        counts.add(outcome, request.name, detail, seconds)


async def half_open(address: Address, kind: int, ended: asyncio.Event) -> None:
    """Hold a connection with nothing, half of the headers, or half of the body; open another when it is closed."""
    sent = (b"", b"POST /invocations HTTP/1.1\r\nHost:", http(b"{" * 100, b"Content-Length: 1000"))[kind % 3]
    while not ended.is_set():
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(sent)
            gone = asyncio.create_task(reader.read())
            waiting = asyncio.create_task(ended.wait())
            await asyncio.wait({gone, waiting}, return_when=asyncio.FIRST_COMPLETED)
            for task in (gone, waiting):
                task.cancel()
            writer.transport.abort()
        await asyncio.sleep(0.1)


async def outcome_of(address: Address, request: Request, expected: Expected) -> tuple[str, str, float]:
    """Return the outcome of a request, the reason, and the seconds until its answer."""
    try:
        response, seconds = await answer(address, request)
    except (TimeoutError, OSError) as error:
        return "hangs", repr(error), SECONDS
    return *judged(response, request, expected), seconds


async def answer(address: Address, request: Request) -> tuple[bytes, float]:
    """Return the first response to a request, empty if the connection was closed, and seconds after its last byte.

    Raises:
        TimeoutError: there is none within `SECONDS` after the last byte.
    """
    reader, writer = await asyncio.open_connection(*address, limit=64 * MIB)
    response = asyncio.create_task(first_response(reader, "HEAD" in request.name))
    try:
        try:
            for piece in request.pieces():
                if response.done():
                    break
                if isinstance(piece, bytes):
                    writer.write(piece)
                    await asyncio.wait_for(writer.drain(), SECONDS)
                else:
                    await asyncio.sleep(piece)
        except ConnectionError:
            pass
        start = time.monotonic()
        return await asyncio.wait_for(response, SECONDS), time.monotonic() - start
    finally:
        response.cancel()
        writer.transport.abort()


async def first_response(reader: asyncio.StreamReader, without_body: bool) -> bytes:
    """Return the first response that is not preliminary, or what arrived before the connection was closed."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        while head.startswith(b"HTTP/1.1 1"):
            head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if without_body:
            return head
        return head + (await reader.readexactly(int(length[1])) if length else await reader.read())
    except asyncio.IncompleteReadError as error:
        return error.partial
    except ConnectionError:
        return b""


def judged(response: bytes, request: Request, expected: Expected) -> tuple[str, str]:
    """Return the outcome of a request, and the reason."""
    head, _, body = response.partition(b"\r\n\r\n")
    if not response:
        return ("clean errors" if "closed" in request.ends else "tracebacks"), "closed without an answer"
    status = int(head.split(b" ")[1]) if head.startswith(b"HTTP/1.1 ") else 0
    if "HEAD" in request.name:
        return ("clean errors" if status == 405 else "wrong content"), f"status {status}"
    try:
        value = json.loads(body)
    except ValueError:
        return "tracebacks", f"status {status}, no JSON: {body[:80]!r}"
    if status == 200 and request.ends == ("ok",):
        return ("accepted" if value == {"status": "ok"} else "wrong content"), str(value)[:80]
    if status == 200:
        right = "ranking" in request.ends and value == {"predictions": expected[request.name == LARGE]}
        return ("accepted" if right else "wrong content"), f"status 200: {str(value)[:80]}"
    message = value.get("message", "\n") if isinstance(value, dict) else "\n"
    clean = (400 <= status < 500 or status in (503, 504)) and "\n" not in message and len(message) < 520
    if clean and "error" not in request.ends and status not in (503, 504):
        return "wrong content", f"status {status}: {message}"
    return ("clean errors" if clean else "tracebacks"), f"status {status}: {message[:80]}"


@contextmanager
def running(model: Path, log: Path) -> Iterator[tuple[Address, int]]:
    """Run `hlorank serve`; yield its address and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address: Address = free.getsockname()
    program = Path(sys.executable).with_name("hlorank")
    command = [str(program), "serve", "--model", str(model), "--port", str(address[1])]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            start = time.monotonic()
            while True:
                try:
                    socket.create_connection(address).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() - start > STARTING_SECONDS:
                        raise
                    time.sleep(0.2)
            yield address, process.pid
        finally:
            process.terminate()
