"""A weighted sum of pooled features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.predictor import Predictor, check_array, check_values


@dataclass(frozen=True, eq=False)
class Linear(Predictor):
    """score = sum over columns of weight * x / scale, with x the pooled features of a configuration.

    Attributes:
        weight: (columns,) float64.
        scale: (columns,) float64, above 0.
    """

    weight: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def none(cls, columns: int) -> Linear:
        """No weights: every score is 0."""
        return cls(np.zeros(columns), np.ones(columns))

    @classmethod
    def of_column(cls, column: int, columns: int) -> Linear:
        """A single column, as it is."""
        return cls(np.eye(columns)[column], np.ones(columns))

    def score(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The sums: (configurations,) float64."""
        # No matrix product, whose last bits depend on how many rows there are.
        summed: NDArray[np.float64] = self.embed(graph, rows).sum(axis=1)
        return summed

    def embed(self, graph: PooledGraph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The summands, so that a column counts as much as it weighs: (configurations, columns) float64."""
        return graph.rows(rows) * (self.weight / self.scale)

    def check(self, columns: int) -> None:
        """Makes sure that there is a weight and a scale for each column.

        Raises:
            DataError: there is not.
        """
        for name, array in vars(self).items():
            check_array(name, array, np.float64, (columns,))
        check_values("weight", np.isfinite(self.weight), "finite numbers")
        check_values("scale", np.isfinite(self.scale) & (self.scale > 0), "finite numbers above 0")
