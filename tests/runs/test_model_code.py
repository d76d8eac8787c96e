"""The model as MLflow runs it: requests are data frames, and wrong requests are MLflow's errors of status 400."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from hlorank.data.collection import Collection, graph_files
from hlorank.files import DataError
from hlorank.ranking.limits import Limits
from hlorank.ranking.ranker import Ranker
from hlorank.ranking.request import make_request, parse_request
from hlorank.ranking.result import predictions

# MLflow's pyfunc warns of its own classes when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning")


@pytest.fixture(scope="module")
def folder(linear_model: Callable[..., Path]) -> Path:
    return linear_model()


@pytest.fixture
def graphs(tiny_collections: Path) -> list[Path]:
    return graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")


def loaded(folder: Path) -> Any:
    from hlorank.runs.model_code import RankingModel

    model = RankingModel()
    model.load_context(SimpleNamespace(artifacts={"model": str(folder)}))
    return model


def test_predictions_equal_those_of_a_request(folder: Path, graphs: list[Path]) -> None:
    body = make_request(graphs, 5)
    expected = predictions(Ranker(folder), parse_request(body), Limits())
    assert loaded(folder).predict(None, pd.DataFrame(body["dataframe_records"]), body["params"]) == expected


def test_columns_that_some_rows_lack(folder: Path, graphs: list[Path]) -> None:
    first, second = make_request(graphs[:2])["dataframe_records"]
    del second["graph"]
    ranked = loaded(folder).predict(None, pd.DataFrame([first, second | {"extra": None}]))
    assert [graph["graph"] for graph in ranked] == [graphs[0].stem, ""]


@pytest.mark.parametrize(
    ("columns", "params", "message"),
    [
        ({"npz": ["?"], "graph": ["mine"]}, None, "mine: npz: expected the bytes of an npz file in base64"),
        ({"npz": [5]}, None, "dataframe_records.0.npz: expected a valid string, found 5"),
        ({"npz": ["AAAA"]}, {"top": 0}, "params.top: expected greater than or equal to 1, found 0"),
        ({"npz": ["AAAA"] * 1001}, {"top": 1}, "request: graphs: expected at most 1,000 graphs, found 1,001"),
    ],
)
def test_a_wrong_request(columns: dict[str, Any], params: dict[str, Any] | None, message: str, folder: Path) -> None:
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException) as caught:
        loaded(folder).predict(None, pd.DataFrame(columns), params)
    assert caught.value.get_http_status_code() == 400
    assert str(caught.value.message).startswith(message)


def test_other_columns_and_rows_are_dropped_before_they_are_converted(folder: Path, graphs: list[Path]) -> None:
    from mlflow.exceptions import MlflowException

    (record,) = make_request(graphs[:1])["dataframe_records"]
    table = pd.DataFrame([record] * 2000).join(pd.DataFrame({f"k{number}": ["x"] * 2000 for number in range(2000)}))
    with pytest.raises(MlflowException):
        loaded(folder).predict(None, table)
    (graph,) = loaded(folder).predict(None, table[:1])
    assert graph["graph"] == record["graph"]
    with pytest.raises(MlflowException):
        loaded(folder).predict(None, table[["k0"]])


def test_a_changed_model_is_refused(linear_model: Callable[..., Path]) -> None:
    folder = linear_model()
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"weights\.safetensors: sha256"):
        loaded(folder)
