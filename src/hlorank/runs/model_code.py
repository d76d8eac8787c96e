"""The model as code for MLflow: a package holds a copy of this file, which MLflow executes to load the model."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd

from hlorank.config import import_plugin
from hlorank.files import SPEC, DataError, read_json
from hlorank.ranking.limits import Limits
from hlorank.ranking.ranker import Ranker
from hlorank.ranking.request import GraphRecord, parse_request
from hlorank.ranking.result import predictions


class RankingModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # MLflow ships no types
    """Model that ranks the configurations of each graph of a request."""

    def load_context(self, context: Any) -> None:
        """Load the model.

        Raises:
            DataError: a file of the model is damaged or changed, or another version of hlorank wrote it.
        """
        folder = Path(context.artifacts["model"])
        for name in read_json(folder / SPEC).get("plugins", {}):
            import_plugin(name)  # its code is in the package, as this file is
        self._ranker = Ranker(folder)
        # MLflow's server calls `predict` in several threads, which together would exceed the memory of one ranking.
        self._one_at_a_time = threading.Lock()

    def predict(
        self,
        context: Any,  # noqa: ARG002 - MLflow's signature
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Rank the graphs of a request, within the default limits of their sizes.

        Args:
            context: passed by MLflow, unused.
            model_input: a row for each graph, with the fields of `hlorank.ranking.request.GraphRecord` as columns.
            params: the fields of `hlorank.ranking.request.RequestParams`.

        Returns:
            For each graph an object as in `hlorank.ranking.result.predictions`.

        Raises:
            MlflowException: the request is wrong; the server answers with status 400.
        """
        limits = Limits()
        # Rows and columns of other names may be many; one row too many is enough for the error.
        table = model_input.iloc[: limits.graphs + 1].filter(list(GraphRecord.model_fields))
        # pandas writes NaN where a row lacks a column.
        records = table.astype(object).where(table.notna(), None).to_dict("records")
        try:
            request = parse_request({"dataframe_records": records, "params": params or {}})
            with self._one_at_a_time:
                return predictions(self._ranker, request, limits)
        except DataError as error:
            raise mlflow.MlflowException.invalid_parameter_value(str(error)) from None


mlflow.models.set_model(RankingModel())
