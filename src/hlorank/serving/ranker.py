"""A trained model that ranks the configurations of any graph of its kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hlorank.collection import Collection
from hlorank.evaluation.scorer import load_scorer
from hlorank.featurize.features import GraphFeatures
from hlorank.featurize.graph import featurize_graph
from hlorank.graph import MeasuredGraph
from hlorank.hlo.extra import Extra
from hlorank.metrics import ranking
from hlorank.partition.build import partition_graph
from hlorank.partition.segments import Partition

MEMORY_BYTES = 256 * 2**20


class Ranker:
    """Scores and ranks configurations, by whatever model a folder holds.

    Args:
        folder: what the stage train wrote.
        memory_bytes: bound of the activations held while scoring.

    Attributes:
        spec: what the model is.

    Raises:
        DataError: a file is missing or damaged.
    """

    def __init__(self, folder: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        self._scorer = load_scorer(folder, memory_bytes)
        self.spec = self._scorer.spec

    @property
    def collection(self) -> Collection:
        """What the model was trained on."""
        return Collection.parse(self.spec.collection)

    def score(self, measured: MeasuredGraph, extra: Extra | None = None) -> NDArray[np.float64]:
        """Scores every configuration of a graph; its runtimes are not looked at.

        Args:
            measured: the graph.
            extra: its extra features of the protobuf, for a model that was trained with them.

        Returns:
            (configurations,) float64, larger = slower; configurations that repeat score the same.

        Raises:
            DataError: layouts where the model ranks tiles or the other way round, or extra features are missing.
        """
        features, segments = self._prepared(measured, extra)
        return self._scorer.score(features, segments)[features.row_of]

    def embed(self, measured: MeasuredGraph, extra: Extra | None = None) -> NDArray[np.float64]:
        """(configurations, width) float64: what the model knows of every configuration; arguments as for `score`."""
        features, segments = self._prepared(measured, extra)
        return self._scorer.embed(features, segments)[features.row_of]

    def _prepared(self, measured: MeasuredGraph, extra: Extra | None) -> tuple[GraphFeatures, Partition | None]:
        """What a model reads of a graph, and its segments."""
        features = featurize_graph(measured, self.spec.features, extra)
        cut = self._scorer.cut
        return features, None if cut is None else partition_graph(features, cut)

    def rank(self, measured: MeasuredGraph, extra: Extra | None = None) -> NDArray[np.int64]:
        """The indices of a graph's configurations from the fastest to the slowest by score, ties by index."""
        return ranking(self.score(measured, extra))
