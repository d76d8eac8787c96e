"""A trained model that ranks the configurations of any graph of its kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hlorank.collection import Collection
from hlorank.evaluation.scoring import score_configurations
from hlorank.featurize.features import GraphFeatures
from hlorank.featurize.graph import featurize_graph
from hlorank.graph import MeasuredGraph
from hlorank.hlo.extra import Extra
from hlorank.io import read_json
from hlorank.metrics import ranking
from hlorank.models.baseline import BASELINES, load_baseline
from hlorank.models.folder import SPEC, Spec, load_model
from hlorank.models.inputs import GraphInputs
from hlorank.partition.build import partition_graph, whole_graph

MEMORY_BYTES = 256 * 2**20


@dataclass(frozen=True, eq=False)
class Ranker:
    """Scores and ranks configurations, by whatever model a folder holds.

    Attributes:
        spec: what the model is.
        score_features: scores of the distinct configurations of a featurized graph.
    """

    spec: Spec
    score_features: Callable[[GraphFeatures], NDArray[np.float64]]

    @classmethod
    def load(cls, folder: Path, memory_bytes: int = MEMORY_BYTES) -> Ranker:
        """Reads what the stage train wrote.

        Args:
            folder: the model folder.
            memory_bytes: bound of the activations held while scoring.

        Raises:
            DataError: a file is missing or damaged.
        """
        if read_json(folder / SPEC).get("method") in BASELINES:
            baseline, baseline_spec = load_baseline(folder)
            return cls(baseline_spec, lambda features: baseline.score(features, memory_bytes))
        device = torch.device("cpu")
        model, spec = load_model(folder, device)

        def score(features: GraphFeatures) -> NDArray[np.float64]:
            cut = whole_graph(features) if spec.whole_graph else partition_graph(features, spec.cut)
            graph = GraphInputs(features, cut, device)
            return score_configurations(model, graph, np.arange(features.distinct), memory_bytes)

        return cls(spec, score)

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
        features = featurize_graph(measured, self.spec.features, extra)
        return self.score_features(features)[features.row_of]

    def rank(self, measured: MeasuredGraph, extra: Extra | None = None) -> NDArray[np.int64]:
        """The indices of a graph's configurations from the fastest to the slowest by score, ties by index."""
        return ranking(self.score(measured, extra))
