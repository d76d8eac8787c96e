"""The model as MLflow runs it: a package holds a copy of this file, which MLflow executes to load the model."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd

from hlorank.io import DataError
from hlorank.metrics import ranking
from hlorank.serving.answer import first
from hlorank.serving.guard import guard_scoring_server
from hlorank.serving.ranker import Ranker
from hlorank.serving.request import TOP, Limits, read_graph


class RankingModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # MLflow ships no types
    """Ranks the configurations of each graph of a request."""

    def load_context(self, context: Any) -> None:
        """Loads the model; in MLflow's scoring server, bounds the size of requests.

        Raises:
            DataError: the model is damaged or changed, or of another version of hlorank.
            ConfigError: a variable of the limits holds no positive number.
        """
        self._ranker = Ranker(Path(context.artifacts["model"]))
        self._limits = Limits.of_environment()
        # The server calls predict in many threads, which together would exceed the memory that a ranking is given.
        self._one_at_a_time = threading.Lock()
        guard_scoring_server(self._limits.request_bytes)

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
            MlflowException: the request is wrong; the server answers with status 400.
        """
        top = int((params or {}).get("top", TOP))
        try:
            if top < 1:
                raise DataError("top", "at least 1", top, file="params")
            with self._one_at_a_time:
                return [self._answer(row, top) for row in model_input.to_dict("records")]
        except DataError as error:
            raise mlflow.MlflowException.invalid_parameter_value(str(error)) from None

    def _answer(self, row: Mapping[Hashable, Any], top: int) -> dict[str, Any]:
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
