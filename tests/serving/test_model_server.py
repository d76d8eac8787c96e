"""The model in a server: what it refuses before it decodes anything, and what it no longer ranks."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from hlorank.data.collection import Collection, graph_files
from hlorank.serving.guard import Guard, Message, Receive, Send
from hlorank.serving.ranker import Ranker
from hlorank.serving.request import request

# Importing MLflow's pyfunc warns of its own classes.
pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning")


@pytest.fixture(scope="module")
def folder(linear_model: Callable[..., Path]) -> Path:
    return linear_model()


@pytest.fixture
def graphs(tiny_collections: Path) -> list[Path]:
    return graph_files(tiny_collections / "raw", Collection.parse("layout:synthetic:random"), "valid")


def loaded(folder: Path) -> Any:
    from hlorank.serving.model_code import RankingModel

    model = RankingModel()
    model.load_context(SimpleNamespace(artifacts={"model": str(folder)}))
    return model


def answer(model: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = model.predict(None, pd.DataFrame(body["dataframe_records"]), body["params"])
    return answers


def refusal(model: Any, body: dict[str, Any]) -> tuple[int, str]:
    """Status and message."""
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException) as caught:
        answer(model, body)
    return caught.value.get_http_status_code(), str(caught.value.message)


def guarded(seconds: float, call: Callable[[], Any]) -> Any:
    """Calls as the server does: in a thread, behind the guard, which gives up after so many seconds."""
    returned = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        returned.append(await asyncio.to_thread(call))
        await send({"type": "http.response.start", "status": 200})

    async def nothing(*_: Any) -> Any:
        return None

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    asyncio.run(Guard(app, 10, 1, seconds)(scope, nothing, nothing))
    return returned[0]


def test_too_much_is_refused_before_it_is_decoded(
    folder: Path, graphs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("base64.b64decode", lambda *_, **__: pytest.fail("a graph was decoded"))
    model, one = loaded(folder), request(graphs[:1])["dataframe_records"]
    assert refusal(model, {"dataframe_records": one * 1001, "params": {"top": 1}}) == (
        400,
        "request: graphs: expected at most 1,000 graphs, found 1,001",
    )
    assert refusal(model, {"dataframe_records": one * 3, "params": {"top": 66_667}}) == (
        400,
        "params: top: expected at most 200,000 configurations of all graphs, found 200,001",
    )


@pytest.mark.parametrize("trace", ["module", "variable"])
def test_a_server_without_its_guard_ranks_nothing(
    trace: str, folder: Path, graphs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fastapi

    monkeypatch.setattr(fastapi, "FastAPI", fastapi.FastAPI)  # put back after the test
    if trace == "module":
        monkeypatch.setitem(sys.modules, "mlflow.pyfunc.scoring_server.app", ModuleType("app"))
    else:
        monkeypatch.setenv("__pyfunc_model_path__", "somewhere")
    model, body = loaded(folder), request(graphs)
    message = "no guard bounds this server's requests; serve with the MLflow that is pinned"
    assert refusal(model, body) == (500, message)
    assert len(guarded(60, lambda: answer(model, body))) == len(graphs)


def test_what_nobody_waits_for_is_not_ranked(folder: Path, graphs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, body, score = loaded(folder), request(graphs), Ranker.score
    started, go, ranked = threading.Event(), threading.Event(), []

    def slow(self: Ranker, *args: Any, **rest: Any) -> Any:
        ranked.append(threading.current_thread().name)
        started.set()
        assert go.wait(10)
        return score(self, *args, **rest)

    monkeypatch.setattr(Ranker, "score", slow)
    first = threading.Thread(target=answer, args=(model, body), name="first")
    first.start()
    try:
        assert started.wait(10)
        given_up = (504, "the server gave up this request")
        assert guarded(0.05, lambda: refusal(model, body)) == given_up  # while it waits for its turn
    finally:
        go.set()
        first.join()
    assert guarded(0, lambda: refusal(model, body)) == given_up  # before its next graph
    assert ranked == ["first"] * len(graphs)
    assert len(answer(model, body)) == len(graphs)  # the turn was given back
