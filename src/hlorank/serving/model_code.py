"""The model as MLflow runs it: a package holds a copy of this file, which MLflow executes to load the model."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.protos.databricks_pb2 import DEADLINE_EXCEEDED

from hlorank.files import DataError
from hlorank.metrics import ranking
from hlorank.serving.guard import guard_scoring_server, time_left
from hlorank.serving.ranker import Ranker
from hlorank.serving.request import TOP, Limits, read_graph
from hlorank.serving.response import first


class RankingModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # MLflow ships no types
    """Ranks the configurations of each graph of a request."""

    def load_context(self, context: Any) -> None:
        """Loads the model; in MLflow's scoring server, bounds requests.

        Raises:
            DataError: the model is damaged or changed, or of another version of hlorank.
            ConfigError: a variable of the limits holds no positive number.
        """
        self._ranker = Ranker(Path(context.artifacts["model"]))
        self._limits = Limits.of_environment()
        # The server calls predict in many threads, which together would exceed the memory that a ranking is given.
        self._one_at_a_time = threading.Lock()
        self._serving = guard_scoring_server(self._limits.request_bytes, self._limits.requests)

    def predict(
        self,
        context: Any,  # noqa: ARG002 - MLflow's signature
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Answers a request.

        Args:
            context: MLflow's.
            model_input: a row for each graph, with the columns of `hlorank.serving.request`.
            params: `top`, how many configurations of each graph the answer holds.

        Returns:
            For each graph: `graph` (its name), `configurations` (how many) and `top`, as `hlorank rank --json` gives
            it.

        Raises:
            MlflowException: the request is wrong (the server answers with status 400), the server gave it up (504), or
                the server has no guard (500), as one of another version of MLflow may be.
        """
        if self._serving and time_left() is None:
            raise mlflow.MlflowException("no guard bounds this server's requests; serve with the MLflow that is pinned")
        top = int((params or {}).get("top", TOP))
        try:
            self._limits.check_request(len(model_input), top)
            with self._turn():
                return [self._answer(row, top) for row in model_input.to_dict("records")]
        except DataError as error:
            raise mlflow.MlflowException.invalid_parameter_value(str(error)) from None
        except TimeoutError:
            raise mlflow.MlflowException("the server gave up this request", DEADLINE_EXCEEDED) from None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Waits until no other request is being ranked.

        Raises:
            TimeoutError: the server has given up this one meanwhile. It cannot stop the thread: without this, requests
                that nobody waits for any more would keep the others waiting, and their bodies in memory.
        """
        left = time_left()
        if not self._one_at_a_time.acquire(timeout=-1 if left is None else left):
            raise TimeoutError
        try:
            yield
        finally:
            self._one_at_a_time.release()

    def _answer(self, row: Mapping[Hashable, Any], top: int) -> dict[str, Any]:
        if time_left() == 0:
            raise TimeoutError
        name = row.get("graph")
        name = name if isinstance(name, str) else ""
        try:
            given = read_graph(row.get("npz"), row.get("extra"), self._ranker.spec.features, self._limits)
            scores = self._ranker.score(given.measured.graph, given.measured.configurations, given.extra)
        except DataError as error:
            place = [str(part) for part in (name, error.file) if part]
            raise (error.in_file(": ".join(place)) if place else error) from None
        return {"graph": name, "configurations": len(scores), "top": first(scores, ranking(scores), top)}


mlflow.models.set_model(RankingModel())
