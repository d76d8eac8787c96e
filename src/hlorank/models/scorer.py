"""One interface to score graphs with a model folder of any kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hlorank.compute.device import find_device
from hlorank.config import PartitionConfig
from hlorank.featurize.features import GraphFeatures
from hlorank.files import SPEC, read_json
from hlorank.models.baselines.baseline import BASELINES, load_baseline, load_joined
from hlorank.models.inputs import GraphInputs
from hlorank.models.scoring import (
    PlanCache,
    embed_configurations,
    keep_memory,
    mean_of_members,
    mean_over_orders,
    release_memory,
    score_configurations,
)
from hlorank.models.serialization import Spec, load_model
from hlorank.partition.segments import Partition, whole_graph


@dataclass(frozen=True, eq=False)
class Scorer:
    """A trained model or ensemble.

    Attributes:
        spec: its specification.
        cut: options of the partition of graphs for the model; None for a model of whole graphs.
        score: function of a graph and its segments, None for a whole graph, to (distinct,) scores of its distinct
            configurations, larger = slower.
        embed: function of a graph and its segments to (distinct, width), the embedding of each distinct configuration;
            embeddings of the cost models of an ensemble are concatenated.
    """

    spec: Spec
    cut: PartitionConfig | None
    score: Callable[[GraphFeatures, Partition | None], NDArray[np.float64]]
    embed: Callable[[GraphFeatures, Partition | None], NDArray[np.float64]]


def load_scorer(folder: Path, memory_bytes: int, accelerator: str = "auto") -> Scorer:
    """Read a model folder of the stage train.

    Args:
        folder: the model folder.
        memory_bytes: bound of the activations held while scoring.
        accelerator: auto, cpu or cuda; baselines run on the CPU.

    Raises:
        ConfigError: there is no such accelerator.
        DataError: a file is missing or damaged.
    """
    if read_json(folder / SPEC).get("method") in BASELINES:
        baseline, baseline_spec = load_baseline(folder)
        return Scorer(
            baseline_spec,
            None,
            score=lambda graph, _: baseline.score(graph, memory_bytes),
            embed=lambda graph, _: baseline.embed(graph),
        )
    keep_memory()
    members, spec = load_model(folder, find_device(accelerator))
    baselines = load_joined(folder, spec)

    def inputs(graph: GraphFeatures, segments: Partition | None) -> GraphInputs:
        return GraphInputs(graph, whole_graph(graph) if segments is None else segments)

    def plan_cache() -> PlanCache:
        return PlanCache(memory_bytes if len(members) > 1 else 0)

    def score(graph: GraphFeatures, segments: Partition | None) -> NDArray[np.float64]:
        cut, plans = inputs(graph, segments), plan_cache()
        scores = [mean_over_orders(score_configurations, model, cut, memory_bytes, plans) for model in members]
        release_memory()  # several workers score graphs side by side
        joined = {one: one.score(graph, memory_bytes) for one in dict.fromkeys(baselines)}
        return mean_of_members([mean_of_members(scores), *(joined[one] for one in baselines)], spec.weights or None)

    def embed(graph: GraphFeatures, segments: Partition | None) -> NDArray[np.float64]:
        cut, plans = inputs(graph, segments), plan_cache()
        embeddings = [mean_over_orders(embed_configurations, model, cut, memory_bytes, plans) for model in members]
        return np.hstack(embeddings)

    return Scorer(spec, None if spec.whole_graph else spec.cut, score, embed)
