"""The baselines by name, and the folders that hold them."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from hlorank.config import BaselineConfig
from hlorank.featurize.features import GraphFeatures, in_chunks
from hlorank.files import SPEC, WEIGHTS, DataError
from hlorank.models.baselines.pooled_features import PooledGraph, pooled_columns
from hlorank.models.baselines.predictors import Analytical, Linear, Predictor, RandomRanker, Trees
from hlorank.models.graph_inputs import InputSizes
from hlorank.models.serialization import ModelSpec, Spec, input_sizes, read_folder, save_folder

GRADIENT_BOOSTING, XGBOOST = "gradient_boosting", "xgboost"
LINEAR_RANKING, RANDOM, DEFAULT_CONFIGURATION = "linear_ranking", "random", "default_configuration"
ANALYTICAL = "analytical"
LAYOUT_BASELINES = frozenset({ANALYTICAL, DEFAULT_CONFIGURATION})
"""Baselines that read what only layout configurations have."""
BASELINES: Mapping[str, type[Predictor]] = MappingProxyType(
    {
        GRADIENT_BOOSTING: Trees,
        XGBOOST: Trees,
        LINEAR_RANKING: Linear,
        ANALYTICAL: Analytical,
        RANDOM: RandomRanker,
        DEFAULT_CONFIGURATION: Linear,
    }
)
"""Predictors of the baselines by name; a baseline is chosen by `method` like a training method."""

_COLUMN_BYTES = 16  # memory of a configuration while it is scored, for each column


class BaselineSpec(Spec):
    """The specification of a trained baseline."""

    settings: BaselineConfig  # settings that it was fitted with


class Baseline:
    """A predictor on the graphs of a collection, whose inputs have these sizes."""

    def __init__(self, predictor: Predictor, sizes: InputSizes) -> None:
        self.predictor, self.sizes = predictor, sizes

    def score(self, graph: GraphFeatures, memory_bytes: int) -> NDArray[np.float64]:
        """Score all distinct configurations of a graph, in chunks that fit into memory: (distinct,) float64."""
        pooled = PooledGraph(graph, self.sizes)
        row_bytes = _COLUMN_BYTES * pooled_columns(self.sizes) + self.predictor.row_bytes
        score = partial(self.predictor.score, pooled)
        return in_chunks(score, np.arange(graph.distinct), memory_bytes // row_bytes)


def save_baseline(folder: Path, predictor: Predictor, spec: BaselineSpec) -> None:
    """Write a baseline into a model folder."""
    save_folder(folder, save(dict(vars(predictor))), spec)


def load_blended(folder: Path, spec: ModelSpec) -> list[Baseline]:
    """Read the baselines that are blended with the cost models of a folder, whose digest has been checked.

    Baselines of equal arrays are one object. A DataError names arrays or weights that do not fit the specification.
    """
    if unknown := [name for name in spec.baselines if name not in BASELINES]:
        raise DataError("baselines", f"names of {', '.join(BASELINES)}", ", ".join(unknown), file=folder / SPEC)
    if len(spec.weights) not in (0, expected := 1 + len(spec.baselines)) or not all(spec.weights[1:]):
        raise DataError("weights", f"{expected} numbers, not 0 for baselines", [*spec.weights], file=folder / SPEC)
    arrays = load_file(folder / WEIGHTS) if spec.baselines else {}
    blended = list[Baseline]()
    known: dict[bytes, Baseline] = {}
    for number, name in enumerate(spec.baselines):
        prefix = f"{name}.{number}."
        fields = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
        blended.append(known.setdefault(name.encode() + save(fields), _read(name, fields, spec, folder / WEIGHTS)))
    return blended


def load_baseline(folder: Path) -> tuple[Baseline, BaselineSpec]:
    """Read a baseline from a model folder; a DataError names what is damaged."""
    spec, path = read_folder(folder, BaselineSpec)
    if spec.method not in BASELINES:
        raise DataError("method", f"one of {', '.join(BASELINES)}", spec.method, file=folder / SPEC)
    try:
        arrays = load_file(path)
    except SafetensorError as error:
        raise DataError("file", "weights as safetensors", error, file=path) from None
    return _read(spec.method, arrays, spec, path), spec


def _read(name: str, arrays: Mapping[str, NDArray[Any]], spec: Spec, path: Path) -> Baseline:
    sizes = input_sizes(spec.features)
    try:
        return Baseline(BASELINES[name].from_arrays(arrays, pooled_columns(sizes)), sizes)
    except DataError as error:
        raise error.in_file(path) from None
