"""The model as MLflow runs it: answers equal those of the ranker, and bad requests are refused with their reason."""

from __future__ import annotations

import base64
import io
import math
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.lib import format as npy
from numpy.typing import NDArray

from hlorank.config import ConfigError
from hlorank.data.collection import Collection, graph_files, read_graph
from hlorank.serving.ranker import Ranker
from hlorank.serving.request import Limits, request

# Importing MLflow's pyfunc warns of its own classes.
pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning")

LAYOUT, TILE = "layout:synthetic:random", "tile:synthetic"
Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def folder(linear_model: Callable[..., Path]) -> Path:
    return linear_model()


@pytest.fixture
def model(folder: Path) -> Any:
    return loaded(folder)


@pytest.fixture
def graphs(tiny_collections: Path) -> list[Path]:
    return graph_files(tiny_collections / "raw", Collection.parse(LAYOUT), "valid")


@pytest.fixture
def arrays(graphs: list[Path]) -> Arrays:
    with np.load(graphs[0], allow_pickle=False) as file:
        return dict(file)


def loaded(folder: Path) -> Any:
    from hlorank.serving.model_code import RankingModel

    model = RankingModel()
    model.load_context(SimpleNamespace(artifacts={"model": str(folder)}))
    return model


def answer(model: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = model.predict(None, pd.DataFrame(body["dataframe_records"]), body.get("params"))
    return answers


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def packed(arrays: Arrays) -> str:
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=True, **arrays)
    return encoded(file.getvalue())


def refusal(model: Any, npz: Any, **columns: Any) -> str:
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException) as caught:
        answer(model, {"dataframe_records": [{"npz": npz, **columns}]})
    assert caught.value.get_http_status_code() == 400
    message = str(caught.value.message)
    assert "\n" not in message
    assert "/" not in message.partition(":")[0]  # of the server's folders, nothing is told
    return message


@pytest.mark.parametrize("top", [1, 5, 1000])
def test_answers_are_those_of_the_ranker(model: Any, folder: Path, graphs: list[Path], top: int) -> None:
    answers = answer(model, request(graphs, top))
    assert [one["graph"] for one in answers] == [path.stem for path in graphs]
    for one, path in zip(answers, graphs, strict=True):
        measured = read_graph(path, "layout")
        scores = Ranker(folder).score(measured.graph, measured.configurations)
        order = np.argsort(scores, kind="stable")[:top]
        assert one["configurations"] == len(scores)
        assert [best["configuration"] for best in one["top"]] == order.tolist()
        assert [best["score"] for best in one["top"]] == scores[order].tolist()
        assert [best["rank"] for best in one["top"]] == list(range(1, len(order) + 1))


def test_ten_configurations_are_the_default(model: Any, graphs: list[Path]) -> None:
    (one,) = answer(model, {"dataframe_records": [{"npz": encoded(graphs[0].read_bytes())}]})
    assert (one["graph"], len(one["top"])) == ("", 10)


def test_tiles(linear_model: Callable[..., Path], tiny_collections: Path) -> None:
    kernel = graph_files(tiny_collections / "raw", Collection.parse(TILE), "valid")[0]
    (one,) = answer(loaded(linear_model(TILE)), request([kernel], 2))
    assert len(one["top"]) == 2


def test_what_is_no_npz_file(model: Any, graphs: list[Path]) -> None:
    data = graphs[0].read_bytes()
    expected = "npz: expected the bytes of an npz file in base64, found "
    for value, found in ((5, "int"), (None, "NoneType"), (["AAAA"], "list"), ("ä", "string argument should contain")):
        assert refusal(model, value).startswith(expected + found)
    assert refusal(model, "A*A=").startswith(expected)
    for broken in (b"", b"text", data[: len(data) // 2]):
        assert refusal(model, encoded(broken)).startswith("npz: file: expected a complete npz (zip) file")
    damaged = bytearray(data)
    damaged[len(data) // 3] ^= 0xFF
    assert refusal(model, encoded(bytes(damaged))).startswith("npz: ")


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
def test_arrays_that_are_wrong(changes: dict[str, Any], message: str, model: Any, arrays: Arrays) -> None:
    for key, change in changes.items():
        if change is None:
            del arrays[key]
        else:
            arrays[key] = change(arrays[key]) if callable(change) else change
    assert refusal(model, packed(arrays), graph="mine").startswith(f"mine: {message}")


def test_another_kind(model: Any, linear_model: Callable[..., Path], tiny_collections: Path) -> None:
    kernel = graph_files(tiny_collections / "raw", Collection.parse(TILE), "valid")[0]
    assert "config_feat: expected layout configurations, as the model of" in refusal(
        model, encoded(kernel.read_bytes())
    )


def declaring(shape: tuple[int, ...]) -> Iterator[bytes]:
    """A .npy file of zeros, piece by piece, of one byte a number."""
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
            (99_999, 1343, 1),
            "at most 134,217,728 configurable nodes of all configurations, found 134,298,657 (99,999 x 1,343)",
        ),
    ],
)
def test_sizes_are_refused_by_their_header(
    key: str, shape: tuple[int, ...], message: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hlorank.data.collection.NpzFile.read", lambda *_: pytest.fail("an array was read"))
    monkeypatch.setattr("hlorank.data.collection.NpzFile.chunks", lambda *_: pytest.fail("an array was read"))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{key}.npy", "w") as member:
        for piece in declaring(shape):
            member.write(piece)
    assert refusal(model, encoded(file.getvalue())) == f"npz: {key}: expected {message}"


def test_a_zip_bomb(model: Any, arrays: Arrays) -> None:
    arrays["node_feat"] = np.zeros((100_000, 700), dtype=np.float32)
    message = refusal(model, packed(arrays))
    assert message.startswith("npz: arrays: expected at most 268,435,456 bytes, found 28")


def test_the_environment_sets_limits(folder: Path, graphs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLORANK_MAX_CONFIGURATIONS", "59")
    message = "config_runtime: expected at most 59 rows, found 60"
    assert message in refusal(loaded(folder), encoded(graphs[0].read_bytes()))
    assert Limits.of_environment() == Limits(configurations=59)
    for wrong in ("0", "-1", "many", "1.5"):
        monkeypatch.setenv("HLORANK_MAX_NODES", wrong)
        with pytest.raises(ConfigError, match=f"HLORANK_MAX_NODES={wrong}: expected a positive whole number"):
            loaded(folder)


def test_top_and_extra(model: Any, graphs: list[Path]) -> None:
    from mlflow.exceptions import MlflowException

    for top in (0, -1):
        with pytest.raises(MlflowException, match=f"params: top: expected at least 1, found {top}"):
            answer(model, request(graphs, top))
    npz = encoded(graphs[0].read_bytes())
    assert refusal(model, npz, extra="AAAA").startswith("extra: file: expected a complete npz")
    assert refusal(model, npz, extra="?").startswith("extra: expected the bytes of an npz file in base64")
    body = {"dataframe_records": [{"npz": npz, "extra": None}, {"npz": npz}]}
    assert len(answer(model, body)) == 2


def test_a_changed_model_is_refused(linear_model: Callable[..., Path]) -> None:
    folder = linear_model()
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"weights\.safetensors: sha256: expected"):
        loaded(folder)
