"""Trained models of any kind, networks and baselines, behind one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hlorank.compute import find_device
from hlorank.config import PartitionConfig
from hlorank.featurize.features import GraphFeatures
from hlorank.files import SPEC, read_json
from hlorank.models.baselines.baseline import BASELINES, Baseline, load_baseline, load_joined
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.scoring import (
    Compute,
    PlanCache,
    embed_configurations,
    keep_memory,
    mean_of_members,
    mean_over_orders,
    release_memory,
    score_configurations,
)
from hlorank.models.serialization import ModelSpec, Spec, load_model
from hlorank.partition.segments import Partition, whole_graph


class TrainedModel(ABC):
    """A trained model or ensemble: its specification and, unless it reads whole graphs, options of their partition."""

    def __init__(self, spec: Spec, partition: PartitionConfig | None, memory_bytes: int) -> None:
        self.spec = spec
        self.partition = partition
        self._memory_bytes = memory_bytes

    @abstractmethod
    def score(self, features: GraphFeatures, partition: Partition | None) -> NDArray[np.float64]:
        """Score the distinct configurations of a graph: (distinct,), larger = slower; None for a whole graph."""

    @abstractmethod
    def embed(self, features: GraphFeatures, partition: Partition | None) -> NDArray[np.float64]:
        """Embed the distinct configurations of a graph: (distinct, width); members of an ensemble are concatenated."""


class _TrainedBaseline(TrainedModel):
    """A baseline, which reads whole graphs."""

    def __init__(self, baseline: Baseline, spec: Spec, memory_bytes: int) -> None:
        super().__init__(spec, None, memory_bytes)
        self._baseline = baseline

    def score(self, features: GraphFeatures, _: Partition | None) -> NDArray[np.float64]:
        return self._baseline.score(features, self._memory_bytes)

    def embed(self, features: GraphFeatures, _: Partition | None) -> NDArray[np.float64]:
        return self._baseline.embed(features)


class _TrainedNetworks(TrainedModel):
    """One or more cost models, blended with baselines if there are any."""

    def __init__(
        self, members: Sequence[CostModel], baselines: Sequence[Baseline], spec: ModelSpec, memory_bytes: int
    ) -> None:
        super().__init__(spec, None if spec.whole_graph else spec.partition, memory_bytes)
        self._members, self._baselines, self._weights = members, baselines, spec.weights or None

    def _of_members(
        self, compute: Compute, features: GraphFeatures, partition: Partition | None
    ) -> list[NDArray[np.float64]]:
        graph = GraphInputs(features, whole_graph(features) if partition is None else partition)
        plans = PlanCache(self._memory_bytes if len(self._members) > 1 else 0)
        return [mean_over_orders(compute, model, graph, self._memory_bytes, plans) for model in self._members]

    def score(self, features: GraphFeatures, partition: Partition | None) -> NDArray[np.float64]:
        scores = self._of_members(score_configurations, features, partition)
        release_memory()  # several workers score graphs side by side
        blended = {each: each.score(features, self._memory_bytes) for each in dict.fromkeys(self._baselines)}
        return mean_of_members([mean_of_members(scores), *(blended[each] for each in self._baselines)], self._weights)

    def embed(self, features: GraphFeatures, partition: Partition | None) -> NDArray[np.float64]:
        return np.hstack(self._of_members(embed_configurations, features, partition))


def load_trained(folder: Path, memory_bytes: int, accelerator: str = "auto") -> TrainedModel:
    """Read a model folder, of which scoring holds activations of at most `memory_bytes`; baselines run on the CPU."""
    if read_json(folder / SPEC).get("method") in BASELINES:
        return _TrainedBaseline(*load_baseline(folder), memory_bytes)
    keep_memory()
    members, spec = load_model(folder, find_device(accelerator))
    return _TrainedNetworks(members, load_joined(folder, spec), spec, memory_bytes)
