"""Requests of the HTTP servers: rankings of valid requests, and the errors of wrong ones."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy
from numpy.typing import NDArray

from hlorank.data.collection import Collection, graph_files, read_graph
from hlorank.files import DataError
from hlorank.ranking.limits import Limits
from hlorank.ranking.ranker import Ranker
from hlorank.ranking.request import GraphRecord, make_request, parse_request
from hlorank.ranking.request import read_graph as read_request_graph
from hlorank.ranking.result import predictions

LAYOUT, TILE = "layout:synthetic:random", "tile:synthetic"
Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def ranker(linear_model: Callable[..., Path]) -> Ranker:
    return Ranker(linear_model())


@pytest.fixture
def graphs(tiny_collections: Path) -> list[Path]:
    return graph_files(tiny_collections / "raw", Collection.parse(LAYOUT), "valid")


@pytest.fixture
def arrays(graphs: list[Path]) -> Arrays:
    with np.load(graphs[0], allow_pickle=False) as file:
        return dict(file)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def packed(arrays: Arrays) -> str:
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=True, **arrays)
    return encoded(file.getvalue())


def refusal(ranker: Ranker, npz: Any, limits: Limits | None = None, **fields: Any) -> str:
    """Return the message about a request with one graph."""
    with pytest.raises(DataError) as caught:
        predictions(ranker, parse_request({"dataframe_records": [{"npz": npz, **fields}]}), limits or Limits())
    message = str(caught.value)
    assert "\n" not in message
    assert "/" not in message.partition(":")[0]  # no path of the server
    return message


@pytest.mark.parametrize("top", [1, 5, 1000])
def test_predictions_are_rankings(ranker: Ranker, graphs: list[Path], top: int) -> None:
    request = parse_request(json.dumps(make_request(graphs, top)).encode())
    ranked = predictions(ranker, request, Limits())
    assert [graph["graph"] for graph in ranked] == [path.stem for path in graphs]
    for graph, path in zip(ranked, graphs, strict=True):
        measured = read_graph(path, "layout")
        scores = ranker.score(measured.graph, measured.configurations)
        order = np.argsort(scores, kind="stable")[:top]
        assert graph["configurations"] == len(scores)
        assert [entry["configuration"] for entry in graph["top"]] == order.tolist()
        assert [entry["score"] for entry in graph["top"]] == scores[order].tolist()
        assert [entry["rank"] for entry in graph["top"]] == list(range(1, len(order) + 1))


def test_a_graph_without_a_name_and_the_default_of_top(ranker: Ranker, graphs: list[Path]) -> None:
    record = {"npz": encoded(graphs[0].read_bytes()), "extra": None, "unknown": 1}
    (graph,) = predictions(ranker, parse_request({"dataframe_records": [record]}), Limits())
    assert (graph["graph"], len(graph["top"])) == ("", 10)


def test_tiles(linear_model: Callable[..., Path], tiny_collections: Path) -> None:
    kernel = graph_files(tiny_collections / "raw", Collection.parse(TILE), "valid")[0]
    (graph,) = predictions(Ranker(linear_model(TILE)), parse_request(make_request([kernel], 2)), Limits())
    assert len(graph["top"]) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{bad", "body: expected JSON, found "),
        (b"\xff\xfe", "body: expected JSON, found "),
        (b"[" * 100_000, "body: expected JSON, found "),
        (b"", "body: expected JSON, found "),
        (b"[]", "body: expected "),
        (b"{}", "dataframe_records: expected a value, found none"),
        (b'{"dataframe_records": {}}', "dataframe_records: expected a valid "),
        (b'{"dataframe_records": [5]}', "dataframe_records.0: expected "),
        (b'{"dataframe_records": [{"graph": "mine"}]}', "dataframe_records.0.npz: expected a value, found none"),
        (b'{"dataframe_records": [{"npz": 5}]}', "dataframe_records.0.npz: expected a valid string, found 5"),
        (b'{"dataframe_records": [{"npz": null}]}', "dataframe_records.0.npz: expected a valid string, found None"),
        (b'{"dataframe_records": [{"npz": ["%s"]}]}' % (b"A" * 9999), "dataframe_records.0.npz: expected a valid"),
        (b'{"dataframe_records": [], "params": {"top": "all"}}', "params.top: expected a valid integer, found 'all'"),
        (b'{"dataframe_records": [], "params": {"top": 0}}', "params.top: expected greater than or equal to 1, found"),
    ],
)  # fmt: skip
def test_values_of_the_wrong_type(body: bytes, message: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_request(body)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 200


def test_too_much_is_refused_before_it_is_decoded(
    ranker: Ranker, graphs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = make_request(graphs[:1])["dataframe_records"]
    monkeypatch.setattr("base64.b64decode", lambda *_, **__: pytest.fail("a graph was decoded"))
    for graphs_, top, message in (
        (1001, 1, "request: graphs: expected at most 1,000 graphs, found 1,001"),
        (3, 66_667, "params: top: expected at most 200,000 configurations of all graphs, found 200,001"),
    ):
        request = parse_request({"dataframe_records": [record] * graphs_, "params": {"top": top}})
        with pytest.raises(DataError) as caught:
            predictions(ranker, request, Limits())
        assert str(caught.value) == message


def test_what_is_not_an_npz_file(ranker: Ranker, graphs: list[Path]) -> None:
    data = graphs[0].read_bytes()
    for text in ("ä", "A*A="):
        assert refusal(ranker, text).startswith("npz: expected the bytes of an npz file in base64, found ")
    for broken in (b"", b"text", data[: len(data) // 2]):
        assert refusal(ranker, encoded(broken)).startswith("npz: file: expected a complete npz (zip) file")
    damaged = bytearray(data)
    damaged[len(data) // 3] ^= 0xFF
    assert refusal(ranker, encoded(bytes(damaged))).startswith("npz: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node_feat": None}, "npz: keys: expected ['config_runtime', 'edge_index', "),
        ({"node_config_feat": None}, "npz: keys: expected "),
        ({"other": np.zeros(3)}, "npz: keys: expected "),
        ({"node_feat": np.array([{"a": 1}], dtype=object)}, "npz: node_feat: expected numbers (objects are never"),
        ({"node_opcode": np.array(["a"])}, "npz: node_opcode: expected numbers"),
        ({"node_feat": lambda x: x * np.nan}, "npz: node_feat: expected finite numbers, found nan at [0, 0]"),
        ({"node_config_feat": lambda x: x * np.nan}, "npz: node_config_feat: expected whole numbers in -1..5"),
        ({"node_config_feat": lambda x: x + 7}, "npz: node_config_feat: expected whole numbers in -1..5"),
        ({"edge_index": lambda x: x + 10**6}, "npz: edge_index: expected node ids in 0.."),
        ({"edge_index": lambda x: x[:, ::-1]}, "npz: edge_index: expected topological order"),
        ({"node_config_ids": lambda x: x + 10**6}, "npz: node_config_ids: expected node ids in 0.."),
        ({"node_opcode": lambda x: x * 0 + 200}, "npz: node_opcode: expected opcodes in 0..120, found 200"),
        ({"node_feat": lambda x: x[:, :100]}, "npz: node_feat: expected shape "),
        ({"node_config_feat": lambda x: x[:0]}, "npz: node_config_feat: expected at least one configuration"),
        ({"node_feat": lambda x: x.astype(np.float64)}, "npz: node_feat: expected dtype float32"),
    ],
)
def test_arrays_that_are_wrong(changes: dict[str, Any], message: str, ranker: Ranker, arrays: Arrays) -> None:
    for key, change in changes.items():
        if change is None:
            del arrays[key]
        else:
            arrays[key] = change(arrays[key]) if callable(change) else change
    assert refusal(ranker, packed(arrays), graph="mine").startswith(f"mine: {message}")


def test_another_kind(ranker: Ranker, tiny_collections: Path) -> None:
    kernel = graph_files(tiny_collections / "raw", Collection.parse(TILE), "valid")[0]
    message = refusal(ranker, encoded(kernel.read_bytes()))
    assert "config_feat: expected layout configurations, as the model of" in message


def declaring(shape: tuple[int, ...]) -> Iterator[bytes]:
    """Return the pieces of a .npy file of zeros, with one byte for each number."""
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": "|i1", "fortran_order": False, "shape": shape})
    yield header.getvalue()
    left = math.prod(shape)
    while left > 0:
        yield bytes(min(left, 2**20))
        left -= 2**20


@pytest.mark.parametrize(
    ("key", "shape", "message"),
    [
        ("node_config_feat", (10_000_000, 1, 1), "at most 200,000 rows, found 10,000,000"),
        ("config_runtime", (10_000_000,), "at most 200,000 rows, found 10,000,000"),
        ("node_opcode", (100_001,), "at most 100,000 rows, found 100,001"),
        ("edge_index", (1_000_001, 2), "at most 1,000,000 rows, found 1,000,001"),
        (
            "node_config_feat",
            (99_999, 336, 1),
            "at most 33,554,432 configurable nodes of all configurations, found 33,599,664 (99,999 x 336)",
        ),
    ],
)
def test_sizes_are_refused_by_their_header(
    key: str, shape: tuple[int, ...], message: str, ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hlorank.data.collection.NpzFile.read", lambda *_: pytest.fail("an array was read"))
    monkeypatch.setattr("hlorank.data.collection.NpzFile.chunks", lambda *_: pytest.fail("an array was read"))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{key}.npy", "w") as member:
        for piece in declaring(shape):
            member.write(piece)
    assert refusal(ranker, encoded(file.getvalue())) == f"npz: {key}: expected {message}"


def test_a_zip_bomb(ranker: Ranker, arrays: Arrays) -> None:
    arrays["node_feat"] = np.zeros((100_000, 700), dtype=np.float32)
    message = refusal(ranker, packed(arrays))
    assert message.startswith("npz: arrays: expected at most 134,217,728 bytes, found 28")


def test_limits_are_settings(ranker: Ranker, graphs: list[Path]) -> None:
    message = "config_runtime: expected at most 59 rows, found 60"
    assert message in refusal(ranker, encoded(graphs[0].read_bytes()), Limits(configurations=59))


def test_distinct_layouts_are_bounded(ranker: Ranker, graphs: list[Path]) -> None:
    distinct = len(read_graph(graphs[0], "layout").configurations.codebook)  # type: ignore[union-attr] # layouts
    record = GraphRecord(npz=encoded(graphs[0].read_bytes()))
    read_request_graph(record, ranker.spec.features, Limits(layouts=distinct))
    with pytest.raises(DataError, match=r"node_config_feat: .* distinct"):
        read_request_graph(record, ranker.spec.features, Limits(layouts=distinct - 1))


def test_extra_features_that_are_wrong(ranker: Ranker, graphs: list[Path]) -> None:
    npz = encoded(graphs[0].read_bytes())
    assert refusal(ranker, npz, extra="AAAA").startswith("extra: file: expected a complete npz")
    assert refusal(ranker, npz, extra="?").startswith("extra: expected the bytes of an npz file in base64")


def json_of(length: int, string: str) -> bytes:
    """Return JSON with this many bytes outside its strings, and one string."""
    return (" " * (length - 6) + "[" + json.dumps(string) + "]  ").encode()


@pytest.mark.parametrize("string", ["", "x" * 1000, "[,{" * 1000])
def test_strings_are_not_counted(string: str) -> None:
    Limits(json_bytes=50).check_json(json_of(50, string))
    with pytest.raises(DataError, match="body: expected at most 50 bytes"):
        Limits(json_bytes=50).check_json(json_of(51, string))


@pytest.mark.parametrize(
    ("string", "escapes"), [('"', 1), ("\\", 1), ('\\"', 2), ('x"y' * 9, 9), ("\\" * 9 + '"[,', 10)]
)
def test_escapes_are_counted(string: str, escapes: int) -> None:
    Limits(json_bytes=50).check_json(json_of(50 - escapes, string))
    with pytest.raises(DataError, match="body"):
        Limits(json_bytes=50).check_json(json_of(51 - escapes, string))


@pytest.mark.parametrize("piece", [b"[],", b"{},", b'"",', b'"a":{', b"9", b"[", b'"\\"', b'\\"', b"\\\\"])
def test_json_is_bounded_before_it_is_parsed(piece: bytes) -> None:
    limits = Limits(json_bytes=2**17)
    body = b'{"dataframe_records": ["' + piece * 200_000
    for begin in (0, body.index(b'"', 20), body.index(b'"', 20) + 1):  # outside and inside a string
        with contextlib.suppress(DataError):
            limits.check_json(body[begin:])
    outside = b'{"dataframe_records": [' + piece * 200_000
    with pytest.raises(DataError, match="body"):
        limits.check_json(outside)


def test_one_wrong_record_is_enough() -> None:
    with pytest.raises(DataError, match=r"dataframe_records\.0\.npz"):
        parse_request(b'{"dataframe_records": [' + b"{}," * 300_000 + b"{}]}")


def test_numbers_of_more_digits_than_python_writes() -> None:
    with pytest.raises(DataError, match=r"dataframe_records\.0\.npz: .* more than"):
        parse_request({"dataframe_records": [{"npz": 10**5000}]})
