"""Attack on `hlorank serve`: hostile requests and half-open connections, next to clients with correct requests.

A hostile request is accepted (the answer has the right scores), or it ends with a clean error: JSON of one line with a
status of 4xx, 503 or 504, or a closed connection where no complete request was sent. Anything else is a finding: a
traceback in the server's log or another status, more than 10 s without an answer after the last byte, more than 1 GB in
the server's memory, or wrong content, which is an answer with other scores than those of the same model in this
process, or scores for a request that is wrong.

    python benchmarks/attack_server.py --json benchmarks/results/attack_server.json
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import gzip
import io
import json
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.lib import format as npy

from hlorank.files import write_json
from hlorank.serving.limits import Limits
from hlorank.serving.ranker import Ranker
from hlorank.serving.request import make_request, parse_request
from hlorank.serving.response import predictions

REQUESTS = 200
CLIENTS = 50
HALF_OPEN = 300
SECONDS = 10
BYTES = 10**9
AT_A_TIME = 8
STARTING_SECONDS = 120
OUTCOMES = ("accepted", "clean errors", "tracebacks", "hangs", "memory", "wrong content")
FINDINGS = OUTCOMES[2:]
MIB = 2**20
PATH = b"/invocations"

Expected = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Predictions of a correct request, and of the large one."""

Piece = bytes | float
"""Bytes to send, or seconds to wait."""


@dataclass(frozen=True)
class Attack:
    """A hostile request.

    Attributes:
        name: its kind.
        pieces: function that yields what is sent.
        ends: answers that are right: `error`, `ranking`, `ok` (another answer with status 200), and `closed` (none).
    """

    name: str
    pieces: Callable[[], Iterable[Piece]]
    ends: tuple[str, ...] = ("error",)


@dataclass
class Counts:
    """Outcomes of requests, and the slowest answer.

    Attributes:
        outcomes: number of each of `OUTCOMES`.
        findings: a line for each finding.
        slowest: seconds of the slowest answer after the last byte of its request, and the request's name.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")

    def add(self, outcome: str, line: str) -> None:
        """Count an outcome; the line is kept if it is a finding."""
        self.outcomes[outcome] += 1
        if outcome in FINDINGS:
            self.findings.append(f"{outcome}: {line}")


def http(body: bytes = b"", *headers: bytes, method: bytes = b"POST", path: bytes = PATH, length: bool = True) -> bytes:
    """Return a request; its headers are those of a correct one unless they are given."""
    names = {header.partition(b":")[0].lower() for header in headers}
    lines = [b"%s %s HTTP/1.1" % (method, path)]
    for line in (b"Host: x", b"Content-Type: application/json", b"Content-Length: %d" % len(body)):
        name = line.partition(b":")[0].lower()
        if name not in names and (length or name != b"content-length"):
            lines.append(line)
    return b"\r\n".join([*lines, *headers, b"", body])


def bodies(graph: Path, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield wrong bodies, with names."""
    right = json.dumps(make_request([graph])).encode()
    npz = make_request([graph])["dataframe_records"][0]["npz"].encode()

    def record(**fields: Any) -> bytes:
        return json.dumps({"dataframe_records": [{"npz": npz.decode(), "graph": graph.stem, **fields}]}).encode()

    def records(text: bytes, params: bytes = b"{}") -> bytes:
        return b'{"dataframe_records": [%s], "params": %s}' % (text, params)

    for number, text in enumerate(
        (b"", b"{", b"[", b"}", b"{bad", b"null", b"true", b"1", b'"x"', b"[]", b"{}", b"\0", b"{'a': 1}", b"\xff\xfe",
         b'{"dataframe_records": [],}', b'{"dataframe_records": [] // no\n}', b'{"dataframe_records" []}', right * 2,
         right[:-1], right[: len(right) // 2], right + b"}", b'{"a": "\x01"}', b'{"a": "\\x"}', b'{"a": "\\u12"}',
         b'{"a": "\\ud800"}', b'{"a": "\xc0\xaf"}', b'{"a": NaN, }', b'{"a": 0x10}', b'{"a": 01}', b'{"a": +1}',
         b"\xef\xbb\xbf" + right, b'"' * 100_000, b"\\" * 100_000, b'{"a": "' + b'\\"' * 20 * MIB)
    ):  # fmt: skip
        yield f"no JSON {number}", text
    for depth in (100, 10_000, 5_000_000):
        yield f"arrays in arrays {depth:,}", b"[" * depth
        yield f"objects in objects {depth:,}", b'{"a":' * depth
        yield f"closed arrays {depth:,}", b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-7"):
        yield name, '{"dataframe_records": [{"npz": "\u00e4"}]}'.encode(name)
    yield "utf-16 of a correct request", right.decode().encode("utf-16")
    yield "gzip without a header", gzip.compress(right)
    keys = [{f"k{i}": "x"} for i in range(12_000)]
    yield "12,000 records of distinct keys", json.dumps({"dataframe_records": keys}).encode()
    yield "12,000 distinct keys in a record", record(**{f"k{i}": "x" * 100 for i in range(12_000)})
    yield "1,000,000 keys", b"{" + b",".join(b'"%d":0' % i for i in range(1_000_000)) + b"}"
    yield "7,000,000 empty lists", records(b"[]," * 7_000_000 + b"[]")
    yield "7,000,000 empty records", records(b"{}," * 7_000_000 + b"{}")
    yield "100,000 empty records", records(b"{}," * 100_000 + b"{}")
    yield "1,001 records", records(b",".join([b'{"npz":"A"}'] * 1001))
    yield "20,000,000 numbers", records(b"1," * 20_000_000 + b"1")
    yield "10,000,000 strings", records(b'"",' * 10_000_000 + b'""')
    for digits in (400, 4_301, 5_000, 4_000_000):
        number_ = b"9" * digits
        yield f"top of {digits:,} digits", records(b'{"npz":"%s"}' % npz, b'{"top": %s}' % number_)
        yield f"npz of {digits:,} digits", records(b'{"npz": %s}' % number_)
        yield f"npz of {digits:,} decimals", records(b'{"npz": 0.%s}' % number_)
        yield f"npz with an exponent of {digits:,} digits", records(b'{"npz": 1e%s}' % number_)
    for text in b'0 -1 1.5 "all" true null [] NaN Infinity 1e400 200001 -0'.split():
        yield f"top {text.decode()}", records(b'{"npz":"%s"}' % npz, b'{"top": %s}' % text)
    for text in (b"[]", b"null", b"5", b'"x"'):
        yield f"params {text.decode()}", records(b'{"npz":"%s"}' % npz, text)
        yield f"record {text.decode()}", records(text)
        yield f"records {text.decode()}", b'{"dataframe_records": %s}' % (b"{}" if text == b"[]" else text)
    values: tuple[Any, ...] = (
        None,
        5,
        True,
        [],
        {},
        "?",
        "data:application/zip;base64,AAAA",
        "A\nA=",
        "AAA",
        "../../etc/passwd",
        "\0",
    )
    for value in values:
        yield f"npz {value!r}", record(npz=value)
        yield f"extra {value!r}", record(extra=value or "?")
    for value in values[1:5]:
        yield f"graph {value!r}", record(graph=value)
    for name in ("a\nb\x1b[2J", "<!--<script>", "../../etc/passwd", "x" * 10 * MIB, "[bold]" * 1000, "\u202e" * 1000):
        yield f"name of a wrong graph {name[:10]!r}", record(npz="?", graph=name)
    yield "npz of 40 MiB of no zip", record(npz="A" * 40 * MIB)
    for name, file in files(graph, rng):
        yield name, record(npz=base64.b64encode(file).decode())


def member(key: str, shape: tuple[int, ...], dtype: str, data: bytes) -> tuple[str, bytes]:
    """Return a .npy member of an npz file whose header may lie."""
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    return f"{key}.npy", header.getvalue() + data


def zipped(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def files(graph: Path, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield files that are not correct npz files of a graph, with names."""
    data = graph.read_bytes()
    with np.load(graph, allow_pickle=False) as file:
        arrays = dict(file)

    def packed(**changes: Any) -> bytes:
        stream = io.BytesIO()
        kept = {key: value for key, value in (arrays | changes).items() if value is not None}
        np.savez_compressed(stream, allow_pickle=True, **kept)
        return stream.getvalue()

    yield "npz without members", zipped()
    yield "npz of text", b"text" * 1000
    for _ in range(5):
        yield "npz that is cut off", data[: rng.randrange(len(data))]
    yield "npz with 200,000 members", zipped(*((str(i), b"") for i in range(200_000)))
    yield "npz with a member twice", data + data
    for key in arrays:
        yield f"npz without {key}", packed(**{key: None})
        yield f"npz with objects as {key}", packed(**{key: np.array([{"a": 1}], dtype=object)})
        if key != "edge_index":  # a graph with fewer edges is correct
            yield f"npz with half of {key}", packed(**{key: arrays[key][: len(arrays[key]) // 2]})
        yield f"npz with {key} of 2 axes more", packed(**{key: arrays[key][None, None]})
    yield "npz with NaN", packed(node_feat=arrays["node_feat"] * np.nan)
    yield "npz with infinity", packed(node_feat=arrays["node_feat"] + np.inf)
    yield "npz with edges to no node", packed(edge_index=arrays["edge_index"] + 10**9)
    yield "npz with a member more", packed(other=np.zeros(3))
    yield "zip bomb of 1 GB", bomb(2**30)
    for name, shape in (("negative", (-1, 5)), ("huge", (2**62, 2)), ("boolean", (True, 8)), ("endless", (1,) * 5000)):
        yield f"shape that is {name}", zipped(member("node_feat", shape, "<f4", bytes(32)))
    yield "140,000,000 layouts", zipped(member("node_config_feat", (140_000, 1000, 1), "|i1", bytes(140_000_000)))
    flipped = bytearray(data)
    flipped[data.find(b"PK\x01\x02") + 8] |= 1
    yield "encrypted member", bytes(flipped)
    flipped = bytearray(data)
    struct.pack_into("<H", flipped, data.find(b"PK\x01\x02") + 10, 14)
    yield "LZMA member", bytes(flipped)


def bomb(size: int) -> bytes:
    """Return an npz file that unpacks to many bytes of zeros."""
    name, header = member("node_feat", (size // 4,), "<f4", b"")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as stream:
        stream.write(header)
        for _ in range(size // MIB):
            stream.write(bytes(MIB))
    return file.getvalue()


def raw(right: bytes, rng: random.Random) -> Iterator[Attack]:
    """Yield attacks by headers, lengths, encodings and time."""

    def sent(name: str, *pieces: Piece, ends: tuple[str, ...] = ("error",)) -> Attack:
        return Attack(name, lambda: pieces, ends)

    lengths = (b"abc", b"-1", b"+5", b"0x10", b"5, 6", b"1 0", b"", b"1.5", b"1e3", b"9" * 5000, b"9" * 19, b"9" * 21)
    for length in (*lengths, b"%d" % 2**63, b"\xb2"):
        yield sent(f"Content-Length {length[:20]!r}", http(b"{}", b"Content-Length: " + length))
    yield sent("two lengths", http(b"{}", b"Content-Length: 2", b"Content-Length: 3"))
    yield sent("a length that is too short", http(right, b"Content-Length: 10"))
    yield sent("a length that is too long", http(b"{}", b"Content-Length: 100"))
    yield sent("an equal length twice", http(right, b"Content-Length: %d" % len(right) * 2), ends=("error", "ranking"))
    yield sent("a stalled body", http(right)[:-100])
    drops: list[Piece] = [b"{", 0.5]
    yield sent("a slow body", http(b"", b"Content-Length: 1000"), *drops * 200, ends=("error", "closed"))
    yield Attack("an endless body", lambda: [http(b"", b"Content-Length: %d" % 10**15), *[bytes(MIB)] * 200])
    chunked = http(b"", b"Transfer-Encoding: chunked", length=False)
    yield Attack("endless chunks", lambda: [chunked, *[b"100000\r\n" + bytes(MIB) + b"\r\n"] * 200])
    yield Attack("chunks of one byte", lambda: [chunked, *[b"1\r\n[\r\n" * 10_000] * 20, b"0\r\n\r\n"])
    extended = b"2;" + b"a" * 100_000 + b"\r\n{}\r\n0\r\n\r\n"
    for text in (b"zz\r\n", b"-1\r\n", b"f" * 5000 + b"\r\n", b"2\r\n{}xx", extended):
        yield sent(f"chunk {text[:10]!r}", chunked + text)
    yield sent("chunks without an end", chunked + b"2\r\n{}\r\n")
    yield sent("trailers", chunked + b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 100_000 + b"\r\n", ends=("error", "closed"))
    right_chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(right), right)
    yield sent("a correct chunk", chunked + right_chunk, ends=("ranking",))
    yield sent("length and chunks", http(right_chunk, b"Transfer-Encoding: chunked"), ends=("error", "ranking"))
    for coding in (b"gzip", b"gzip, chunked", b"chunked, chunked", b"\x0bchunked", b"identity"):
        header = b"Transfer-Encoding: " + coding
        yield sent(f"transfer encoding {coding.decode()!r}", http(b"{}", header, length=False))
    for coding in (b"gzip", b"br", b"deflate", b"zstd", b"gzip, gzip"):
        yield sent(f"content encoding {coding.decode()}", http(gzip.compress(right), b"Content-Encoding: " + coding))
    types = (b"text/csv", b"", b"application/x-www-form-urlencoded", b"multipart/form-data", b"application/json2")
    for media in (*types, b"application/json; charset=utf-16", b"\xff", b"x" * 10_000):
        yield sent(f"content type {media[:40]!r}", http(right, b"Content-Type: " + media))
    for kind, header in (
        ("100,000 headers", b"a: b\r\n" * 100_000 + b"a: b"), ("a header of 1 MB", b"a: " + b"b" * MIB),
        ("a header without colon", b"nothing"), ("a header with NUL", b"a: \0"), ("a folded header", b"a: b\r\n c"),
        ("a space before the colon", b"a : b"), ("a header with CR", b"a: b\rc"), ("no host", b"Host:\r\nHost: y"),
        ("an unknown expectation", b"Expect: 200-ok"), ("an upgrade", b"Connection: upgrade\r\nUpgrade: websocket"),
        ("another upgrade", b"Connection: upgrade, HTTP2-Settings\r\nUpgrade: h2c"), ("a range", b"Range: bytes=0-5"),
        ("forwarding", b"X-Forwarded-For: ' OR 1=1\r\nForwarded: for=x"), ("override", b"X-HTTP-Method-Override: GET"),
        ("a cookie", b"Cookie: " + b"a=b;" * 3000), ("an expectation", b"Expect: 100-continue"),
    ):  # fmt: skip
        yield sent(kind, http(right, header), ends=("error", "ranking"))
    rest = b"\r\nHost: x\r\n\r\n"
    for text in (
        b"GET /" + b"a" * MIB + b" HTTP/1.1" + rest, b"GET /ping\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /ping HTTP/9.9" + rest, b"GET /ping HTTP/1.1\r\n\r\n", b"A" * 1000 + b" / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(500) + b"\r\n\r\n", b"\r\n" * 10_000 + b"x\r\n\r\n",
        rng.randbytes(1000) + b"\r\n\r\n", b"GET  /ping  HTTP/1.1" + rest, b"GET /\xff HTTP/1.1" + rest, b" / \r\n\r\n",
    ):  # fmt: skip
        yield sent(f"first line {text[:20]!r}", text, ends=("ok",) if b"9.9" in text else ("error",))
    for method in (b"GET", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"CONNECT", b"post", b"HEAD"):
        yield sent(f"method {method.decode()}", http(right, b"Connection: close", method=method))
    for path in (
        b"/ /../../../../etc/passwd /%2e%2e/%2e%2e/etc/passwd /invocations/../../x /..%5c..%5c /static/%00 /docs * "
        b"/openapi.json /metrics /invocations/ //invocations http://169.254.169.254/x /ping%0d%0aSet-Cookie:x"
    ).split():
        yield sent(f"path {path.decode()}", http(right, path=path))
    get = http(method=b"GET", path=b"/ping")
    yield sent("100 pipelined requests", get * 100, ends=("ok",))
    yield sent("pipelined rankings", http(right) * 20, ends=("ranking",))
    yield sent("a ranking and garbage", http(right) + rng.randbytes(10_000), ends=("ranking",))
    yield sent("garbage after a small error", http(b"{bad") + b"\0" * MIB, ends=("error",))
    yield sent("slow headers", *drops * 60, ends=("error", "closed"))
    yield sent("half of the headers", http(right)[:40], ends=("error", "closed"))
    yield sent("nothing", ends=("closed",))
    whole = http(right)
    yield sent(
        "a ranking in small parts", *(whole[i : i + 5000] for i in range(0, len(whole), 5000)), ends=("ranking",)
    )


def attacks(graph: Path, seed: int) -> Iterator[Attack]:
    """Yield one attack of each kind."""
    rng = random.Random(seed)
    right = json.dumps(make_request([graph])).encode()
    for name, body in bodies(graph, rng):
        ends = ("error", "ranking") if name in HARMLESS else ("error",)
        yield Attack(name, lambda body=body: [http(body)], ends)  # type: ignore[misc] # bound now
    yield from raw(right, rng)
    yield Attack(LARGE, lambda: [http(json.dumps(large_request(graph)).encode())], ("ranking",))


def large_request(graph: Path) -> dict[str, Any]:
    """Return a correct request of a graph that the server calls large: its configurations, repeated to about 32 MiB."""
    with np.load(graph, allow_pickle=False) as file:
        arrays = dict(file)
    layouts = arrays["node_config_feat"]
    times = min(-(-32 * MIB // layouts.nbytes), Limits().configurations // len(layouts))
    for key in ("node_config_feat", "config_runtime"):
        arrays[key] = np.concatenate([arrays[key]] * times)
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **arrays)
    return {"dataframe_records": [{"npz": base64.b64encode(stream.getvalue()).decode(), "graph": LARGE}]}


LARGE = "a large graph"
HARMLESS = ("12,000 distinct keys in a record", "npz with a member twice")


async def answer(address: tuple[str, int], attack: Attack) -> tuple[bytes, float]:
    """Return the first response to an attack, empty if the connection was closed, and seconds after its last byte.

    Raises:
        TimeoutError: there is none within `SECONDS` after the last byte.
    """
    reader, writer = await asyncio.open_connection(*address, limit=64 * MIB)
    response = asyncio.create_task(first_response(reader, b"HEAD" in attack.name.encode()))
    try:
        try:
            for piece in attack.pieces():
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


def judged(response: bytes, attack: Attack, expected: Expected) -> tuple[str, str]:
    """Return the outcome of an attack, and why."""
    head, _, body = response.partition(b"\r\n\r\n")
    if not response:
        return ("clean errors" if "closed" in attack.ends else "tracebacks"), "closed without an answer"
    status = int(head.split(b" ")[1]) if head.startswith(b"HTTP/1.1 ") else 0
    if "HEAD" in attack.name:
        return ("clean errors" if status == 405 else "wrong content"), f"status {status}"
    try:
        value = json.loads(body)
    except ValueError:
        return "tracebacks", f"status {status}, no JSON: {body[:80]!r}"
    if status == 200 and attack.ends == ("ok",):
        return ("accepted" if value == {"status": "ok"} else "wrong content"), str(value)[:80]
    if status == 200:
        right = "ranking" in attack.ends and value == {"predictions": expected[attack.name == LARGE]}
        return ("accepted" if right else "wrong content"), f"status 200: {str(value)[:80]}"
    message = value.get("message", "\n") if isinstance(value, dict) else "\n"
    clean = (400 <= status < 500 or status in (503, 504)) and "\n" not in message and len(message) < 520
    if clean and "error" not in attack.ends and status not in (503, 504):
        return "wrong content", f"status {status}: {message}"
    return ("clean errors" if clean else "tracebacks"), f"status {status}: {message[:80]}"


async def attack_once(address: tuple[str, int], attack: Attack, expected: Expected, counts: Counts) -> None:
    try:
        response, seconds = await answer(address, attack)
    except TimeoutError:
        counts.add("hangs", attack.name)
        return
    except OSError as error:
        counts.add("hangs", f"{attack.name}: {error}")
        return
    counts.slowest = max(counts.slowest, (seconds, attack.name))
    outcome, reason = judged(response, attack, expected)
    counts.add(outcome, f"{attack.name}: {reason}")


async def correct_client(
    address: tuple[str, int], body: bytes, number: int, expected: Expected, counts: Counts
) -> None:
    """Send correct requests one after another; a refusal for lack of room is tried again, as a client would."""
    attack = Attack("a correct request", lambda: [http(body)], ("ranking",))
    for _ in range(number):
        start = time.monotonic()
        for _ in range(SECONDS):
            one = Counts()
            await attack_once(address, attack, expected, one)
            if not one.outcomes["clean errors"]:
                break
            await asyncio.sleep(1)
        seconds = time.monotonic() - start
        counts.slowest = max(counts.slowest, (seconds, attack.name))
        if one.outcomes["accepted"] and seconds <= SECONDS:
            counts.add("accepted", "")
        else:
            counts.add("hangs", f"a correct request: {seconds:.1f} s, {one.findings}")


async def half_open(address: tuple[str, int], kind: int, ended: asyncio.Event) -> None:
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


async def all_requests(
    address: tuple[str, int], hostile: list[Attack], correct: bytes, expected: Expected
) -> tuple[Counts, Counts]:
    """Send the hostile and the correct requests next to the half-open connections; return the outcomes of both."""
    attacked, served, ended = Counts(), Counts(), asyncio.Event()
    opened = [asyncio.create_task(half_open(address, kind, ended)) for kind in range(HALF_OPEN)]
    queue = iter(hostile)

    async def attacker() -> None:
        for attack in queue:
            await attack_once(address, attack, expected, attacked)

    async def clients() -> None:
        number = REQUESTS // CLIENTS
        await asyncio.gather(*(correct_client(address, correct, number, expected, served) for _ in range(CLIENTS)))

    await asyncio.gather(clients(), *(attacker() for _ in range(AT_A_TIME)))
    await clients()  # after the attack
    ended.set()
    await asyncio.gather(*opened)
    return attacked, served


@contextmanager
def running(model: Path, log: Path) -> Iterator[tuple[tuple[str, int], int]]:
    """Run `hlorank serve`; yield its address and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address: tuple[str, int] = free.getsockname()
    command = [
        str(Path(sys.executable).with_name("hlorank")),
        "serve",
        "--model",
        str(model),
        "--port",
        str(address[1]),
    ]
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


def attack(model: Path, graph: Path, work: Path, count: int, seed: int = 0) -> dict[str, Any]:
    """Attack a server of a model and return the outcomes.

    Args:
        model: the model folder.
        graph: an npz file that the model ranks.
        work: folder for the server's log.
        count: hostile requests; each kind is sent at least once where there are as many.
        seed: seed of the order of the kinds and of their random bytes.
    """
    kinds = list(attacks(graph, seed))
    random.Random(seed).shuffle(kinds)
    hostile = [kinds[number % len(kinds)] for number in range(count)]
    request = make_request([graph])
    ranker = Ranker(model)
    ordinary, large = (predictions(ranker, parse_request(one), Limits()) for one in (request, large_request(graph)))
    log = work / "server.log"
    with running(model, log) as (address, pid):
        start = time.monotonic()
        attacked, served = asyncio.run(all_requests(address, hostile, json.dumps(request).encode(), (ordinary, large)))
        seconds = time.monotonic() - start
        peak = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    text = log.read_text(errors="replace")
    assert peak is not None
    memory = int(peak[1]) * 1024
    for _ in range(text.count("Traceback (most recent call last)")):
        attacked.add("tracebacks", "in the server's log: " + text.strip().splitlines()[-1][:200])
    if memory > BYTES:
        attacked.add("memory", f"{memory:,} bytes")
    return {
        "kinds": len({attack.name for attack in hostile}),
        "seconds": seconds,
        "peak_memory_bytes": memory,
        "attack": {"attacked": count, **figures(attacked)},
        "correct requests": {"attacked": 2 * REQUESTS, **figures(served)},
        "findings": attacked.findings + served.findings,
    }


def figures(counts: Counts) -> dict[str, Any]:
    seconds, name = counts.slowest
    return {**{name: counts.outcomes[name] for name in OUTCOMES}, "slowest_seconds": seconds, "slowest": name}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="hostile requests (default: each kind three times)")
    parser.add_argument("--quick", action="store_true", help="100 hostile requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a model (default: one trained for one step)")
    parser.add_argument("--graph", type=Path, metavar="FILE", help="a graph that the model ranks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="hlorank-attack-"))
    try:
        model, graph = arguments.model, arguments.graph
        if model is None or graph is None:
            import serving  # type: ignore[import-not-found] # same folder

            model = serving.some_model(work)
            graph = sorted((work / "raw").rglob("valid/*.npz"))[0]
        kinds = len(list(attacks(graph, arguments.seed)))
        results = attack(model, graph, work, arguments.count or (100 if arguments.quick else 3 * kinds), arguments.seed)
    finally:
        shutil.rmtree(work)
    print(f"{results['kinds']} kinds, {results['seconds']:.0f} s, {results['peak_memory_bytes'] / 1e6:,.0f} MB\n")
    columns = ("attacked", *OUTCOMES, "slowest_seconds")
    print("| | " + " | ".join(columns).replace("slowest_seconds", "slowest answer (s)") + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name in ("attack", "correct requests"):
        print(f"| {name} | " + " | ".join(f"{results[name][column]:,.4g}" for column in columns) + " |")
    print(f"\nslowest attack: {results['attack']['slowest']}")
    print(*results["findings"], sep="\n")
    if arguments.json:
        write_json(arguments.json, results)
    return 1 if results["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
