"""Trained models of any kind, networks and baselines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hlorank.compute import find_device
from hlorank.featurize.features import GraphFeatures
from hlorank.files import SPEC, read_json
from hlorank.models.baselines.baseline import BASELINES, Baseline, load_baseline, load_joined
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.scoring import PlanCache, keep_memory, mean_of_members, mean_over_orders, release_memory
from hlorank.models.serialization import ModelSpec, Spec, load_model
from hlorank.partition.segments import Partition, whole_graph


class TrainedModel:
    """A trained model or ensemble: cost models, blended with baselines if there are any, or one baseline alone.

    Attributes:
        spec: its specification.
        partition: options of the partition of graphs; None if it reads whole graphs.
    """

    def __init__(
        self, members: Sequence[CostModel], baselines: Sequence[Baseline], spec: Spec, memory_bytes: int
    ) -> None:
        self.spec, self.partition, self._weights = spec, None, None
        if isinstance(spec, ModelSpec):
            self.partition, self._weights = None if spec.whole_graph else spec.partition, spec.weights or None
        self._members, self._baselines, self._memory_bytes = members, baselines, memory_bytes

    def _of_members(
        self, features: GraphFeatures, partition: Partition | None, *, embed: bool
    ) -> list[NDArray[np.float64]]:
        graph = GraphInputs(features, whole_graph(features) if partition is None else partition)
        plans = PlanCache(self._memory_bytes if len(self._members) > 1 else 0)
        return [mean_over_orders(model, graph, self._memory_bytes, plans, embed=embed) for model in self._members]

    def score(self, features: GraphFeatures, partition: Partition | None) -> NDArray[np.float64]:
        """Score the distinct configurations of a graph: (distinct,), larger = slower; None for a whole graph."""
        scores = []
        if self._members:
            scores.append(mean_of_members(self._of_members(features, partition, embed=False)))
            release_memory()  # several workers score graphs side by side
        blended = {each: each.score(features, self._memory_bytes) for each in dict.fromkeys(self._baselines)}
        return mean_of_members([*scores, *(blended[each] for each in self._baselines)], self._weights)

    def embed(self, features: GraphFeatures, partition: Partition | None) -> NDArray[np.float64]:
        """Embed the distinct configurations of a graph: (distinct, width); members of an ensemble are concatenated."""
        if not self._members:
            return self._baselines[0].embed(features)
        return np.hstack(self._of_members(features, partition, embed=True))


def load_trained(folder: Path, memory_bytes: int, accelerator: str = "auto") -> TrainedModel:
    """Read a model folder, of which scoring holds activations of at most `memory_bytes`; baselines run on the CPU."""
    if read_json(folder / SPEC).get("method") in BASELINES:
        baseline, own = load_baseline(folder)
        return TrainedModel([], [baseline], own, memory_bytes)
    keep_memory()
    members, spec = load_model(folder, find_device(accelerator))
    return TrainedModel(members, load_joined(folder, spec), spec, memory_bytes)
