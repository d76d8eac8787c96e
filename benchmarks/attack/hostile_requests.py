"""Hostile requests to `hlorank serve`: damaged JSON, npz files, headers, lengths and encodings; slow bodies."""

from __future__ import annotations

import base64
import gzip
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.ranking.limits import Limits
from hlorank.ranking.request import make_request

from .npz import with_zeros

MIB = 2**20
LARGE = "a large graph"
HARMLESS = ("12,000 distinct keys in a record", "npz with a member twice")
"""Wrong bodies that may also be ranked."""

Piece = bytes | float
"""Bytes to send, or seconds to wait."""


@dataclass(frozen=True)
class Request:
    """A hostile request.

    Attributes:
        name: its kind.
        pieces: function that yields what is sent.
        ends: answers that are right: `error`, `ranking`, `ok` (another answer with status 200), and `closed` (none).
    """

    name: str
    pieces: Callable[[], Iterable[Piece]]
    ends: tuple[str, ...] = ("error",)


def hostile_requests(graph: Path, seed: int) -> Iterator[Request]:
    """Yield one request of each kind."""
    rng = random.Random(seed)
    for name, body in bodies(graph, rng):
        ends = ("error", "ranking") if name in HARMLESS else ("error",)
        yield Request(name, partial(_posted, body), ends)
    yield from raw(json.dumps(make_request([graph])).encode(), rng)
    yield Request(LARGE, lambda: [http(json.dumps(large_request(graph)).encode())], ("ranking",))


def _posted(body: bytes) -> list[Piece]:
    return [http(body)]


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
    texts = ("?", "data:application/zip;base64,AAAA", "A\nA=", "AAA", "../../etc/passwd", "\0")
    values: tuple[Any, ...] = (None, 5, True, [], {}, *texts)
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


def files(graph: Path, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield files that are no correct npz files of a graph, with names."""
    data = graph.read_bytes()
    with np.load(graph, allow_pickle=False) as file:
        arrays = dict(file)

    def packed(**changes: Any) -> bytes:
        stream = io.BytesIO()
        kept = {key: value for key, value in (arrays | changes).items() if value is not None}
        np.savez_compressed(stream, allow_pickle=True, **kept)
        return stream.getvalue()

    yield "npz without members", _zipped()
    yield "npz of text", b"text" * 1000
    for _ in range(5):
        yield "npz that is cut off", data[: rng.randrange(len(data))]
    yield "npz with 200,000 members", _zipped(*map(str, range(200_000)))
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
    yield "zip bomb of 1 GB", with_zeros(_zipped(), "node_feat", "<f4", (2**28,), 2**30)
    for name, shape in (("negative", (-1, 5)), ("huge", (2**62, 2)), ("boolean", (True, 8)), ("endless", (1,) * 5000)):
        yield f"shape that is {name}", with_zeros(_zipped(), "node_feat", "<f4", shape, 32)
    yield "140,000,000 layouts", with_zeros(_zipped(), "node_config_feat", "|i1", (140_000, 1000, 1), 140_000_000)
    directory = data.index(b"PK\x01\x02")
    for name, place, flags in (("encrypted", 8, data[directory + 8] | 1), ("LZMA", 10, zipfile.ZIP_LZMA)):
        changed = bytearray(data)
        struct.pack_into("<H", changed, directory + place, flags)
        yield f"{name} member", bytes(changed)


def _zipped(*names: str) -> bytes:
    """Return a zip file with empty members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, b"")
    return file.getvalue()


def raw(right: bytes, rng: random.Random) -> Iterator[Request]:
    """Yield requests with hostile headers, lengths, encodings and times."""

    def sent(name: str, *pieces: Piece, ends: tuple[str, ...] = ("error",)) -> Request:
        return Request(name, lambda: pieces, ends)

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
    yield Request("an endless body", lambda: [http(b"", b"Content-Length: %d" % 10**15), *[bytes(MIB)] * 200])
    chunked = http(b"", b"Transfer-Encoding: chunked", length=False)
    yield Request("endless chunks", lambda: [chunked, *[b"100000\r\n" + bytes(MIB) + b"\r\n"] * 200])
    yield Request("chunks of one byte", lambda: [chunked, *[b"1\r\n[\r\n" * 10_000] * 20, b"0\r\n\r\n"])
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


def http(
    body: bytes = b"", *headers: bytes, method: bytes = b"POST", path: bytes = b"/invocations", length: bool = True
) -> bytes:
    """Return a request; its headers are those of a correct one unless they are given."""
    names = {header.partition(b":")[0].lower() for header in headers}
    lines = [b"%s %s HTTP/1.1" % (method, path)]
    for line in (b"Host: x", b"Content-Type: application/json", b"Content-Length: %d" % len(body)):
        name = line.partition(b":")[0].lower()
        if name not in names and (length or name != b"content-length"):
            lines.append(line)
    return b"\r\n".join([*lines, *headers, b"", body])
