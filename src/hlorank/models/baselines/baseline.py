"""The baselines by name, and the folders that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from hlorank.config import BaselineConfig
from hlorank.featurize.features import GraphFeatures
from hlorank.files import SPEC, DataError
from hlorank.models.baselines.linear import Linear
from hlorank.models.baselines.pooled_features import PooledGraph, pooled_columns
from hlorank.models.baselines.predictor import Predictor
from hlorank.models.baselines.random_ranker import RandomRanker
from hlorank.models.baselines.trees import Trees
from hlorank.models.inputs import InputSizes
from hlorank.models.serialization import Spec, input_sizes, read_folder, save_folder

GRADIENT_BOOSTING, LINEAR_RANKING = "gradient_boosting", "linear_ranking"
RANDOM, DEFAULT_CONFIGURATION = "random", "default_configuration"
BASELINES: Mapping[str, type[Predictor]] = MappingProxyType(
    {GRADIENT_BOOSTING: Trees, LINEAR_RANKING: Linear, RANDOM: RandomRanker, DEFAULT_CONFIGURATION: Linear}
)
"""Methods whose models are no cost models of `models.cost_model`, and what they are instead."""

_COLUMN_BYTES = 16  # what a configuration takes of memory while it is scored, for each column


class BaselineSpec(Spec):
    """The specification of a trained baseline."""

    settings: BaselineConfig
    """Settings that it was fitted with."""


class Baseline:
    """A predictor on the graphs of one collection.

    Args:
        predictor: scores configurations.
        sizes: those of the collection.
    """

    def __init__(self, predictor: Predictor, sizes: InputSizes) -> None:
        self.predictor = predictor
        self.sizes = sizes

    def score(self, graph: GraphFeatures, memory_bytes: int) -> NDArray[np.float64]:
        """Scores all distinct configurations of a graph.

        Args:
            graph: the graph.
            memory_bytes: bound of what is held at once of pooled features, and of what is computed from them; at
                least one configuration is.

        Returns:
            (distinct,) float64, larger = slower.
        """
        pooled = PooledGraph(graph, self.sizes)
        row_bytes = _COLUMN_BYTES * pooled_columns(self.sizes) + self.predictor.row_bytes
        step = max(1, memory_bytes // row_bytes)
        starts = range(0, graph.distinct, step)
        chunks = (np.arange(start, min(start + step, graph.distinct)) for start in starts)
        return np.concatenate([self.predictor.score(pooled, rows) for rows in chunks])

    def embed(self, graph: GraphFeatures) -> NDArray[np.float64]:
        """What all distinct configurations of a graph are scored by: (distinct, width) float64."""
        return self.predictor.embed(PooledGraph(graph, self.sizes), np.arange(graph.distinct))


def save_baseline(folder: Path, predictor: Predictor, spec: BaselineSpec) -> None:
    """Writes a baseline."""
    save_folder(folder, save(dict(vars(predictor))), spec)


def load_baseline(folder: Path) -> tuple[Baseline, BaselineSpec]:
    """Reads what `save_baseline` wrote.

    Raises:
        DataError: a file is missing or damaged, or the arrays do not fit the specification.
    """
    spec, path = read_folder(folder, BaselineSpec)
    if spec.method not in BASELINES:
        raise DataError("method", f"one of {', '.join(BASELINES)}", spec.method, file=folder / SPEC)
    sizes = input_sizes(spec.features)
    try:
        predictor = BASELINES[spec.method].from_arrays(load_file(path), pooled_columns(sizes))
    except DataError as error:
        raise error.in_file(path) from None
    return Baseline(predictor, sizes), spec
