"""Scores of any number of configurations of a graph of any size, in bounded memory; trained models of any kind."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hlorank.compute import find_device
from hlorank.data.graph import Int64
from hlorank.featurize.features import GraphFeatures
from hlorank.files import SPEC, read_json
from hlorank.metrics import Float64
from hlorank.models.baselines.baseline import BASELINES, Baseline, load_baseline, load_blended
from hlorank.models.compression.build_plan import max_varied_nodes
from hlorank.models.compression.declarations import Mixing, Recipe
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.serialization import ModelSpec, Spec, load_model
from hlorank.partition.segments import Partition

if TYPE_CHECKING:  # imports PyTorch, which baselines do not need
    from torch import Tensor

    from hlorank.models.cost_model import CostModel
    from hlorank.models.plan_tensors import PackedPlan

# Tensors of (varied nodes, configurations, width) that exist at once in a layer without gradients.
_LIVE_STATES = 8
# Tensors of (configurations, embedding width) that exist at once while segments are summed, in a quarter of the memory.
_LIVE_EMBEDDINGS = 3 * 4
# More frequent releases cost time, as pages are allocated again; less frequent ones cost memory.
_CHUNKS_PER_RELEASE = 4
# The maximum number of configurations that a layer which mixes configurations compares; the same as in TGraph.
RANKED_TOGETHER = 128
# Scores whose relative difference is below this differ by the rounding of float32 only.
_ROUNDING = 1e-6
# Options of mallopt, and how much memory they keep.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _KEPT_BYTES = -1, -3, 2**30


def keep_memory() -> None:
    """Keep freed memory for the next tensors, until `release_memory`, in all of the process.

    glibc would give the memory of a large tensor back at once, and the operating system clears the memory of the next
    tensor: half of the time of scoring, and more on large graphs.
    """
    if set_option := getattr(ctypes.CDLL(None), "mallopt", None):
        set_option(_MMAP_THRESHOLD, _KEPT_BYTES)
        set_option(_TRIM_THRESHOLD, _KEPT_BYTES)


def release_memory() -> None:
    """Return freed memory to the operating system: fragments that glibc keeps grow to several times the bound."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


class PlanCache:
    """Plans that are used repeatedly, such as in validation, up to `max_bytes`; others are made each time."""

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes
        self._plans: dict[tuple[str, int, bytes], PackedPlan] = {}

    def get(self, graph: GraphInputs, j: int, configurations: Int64, recipe: Recipe) -> PackedPlan:
        """Return the plan of segment j of a graph under distinct configurations."""
        from hlorank.models.plan_tensors import PackedPlan

        key = graph.features.name, j, configurations.tobytes()
        if (plan := self._plans.get(key)) is None:
            plan = PackedPlan(graph.plan({j: configurations}, recipe))
            if plan.bytes <= self._free_bytes:
                self._free_bytes -= plan.bytes
                self._plans[key] = plan
        return plan


class Part(NamedTuple):
    """Configurations of a segment that are computed at once."""

    plan: PackedPlan  # their plan
    places: slice  # their places among the distinct local configurations of the segment
    # for each configuration the place of its embedding; None before the last part of a segment
    inverse: Int64 | None


def plan_parts(
    model: CostModel, graph: GraphInputs, configurations: Int64, memory_bytes: int, cache: PlanCache
) -> Iterator[Part]:
    """Yield the parts of all segments; arguments as for `sum_segments`."""
    recipe = replace(model.recipe, gradients=False)
    item = model.config.width * model.dtype.itemsize * _LIVE_STATES
    for j, segment in enumerate(graph.segments):
        chunk = max(1, memory_bytes // (max(1, max_varied_nodes(recipe, segment)) * item))
        distinct, inverse = graph.distinct(configurations, j)
        if Mixing.CONFIGURATIONS in recipe.mixing:
            distinct, inverse, chunk = configurations, np.arange(len(configurations)), len(configurations)
        for start in range(0, len(distinct), chunk):
            stop = min(start + chunk, len(distinct))
            plan = cache.get(graph, j, distinct[start:stop], recipe)
            yield Part(plan, slice(start, stop), inverse if stop == len(distinct) else None)


def _run_ahead(parts: Iterator[Part]) -> Iterator[Part]:
    """Yield the parts; a thread makes the next part meanwhile."""
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(next, parts, None)
        while (part := future.result()) is not None:
            future = executor.submit(next, parts, None)
            yield part


@contextmanager
def _evaluating(model: CostModel) -> Iterator[None]:
    """Put a model into evaluation mode for a while, without gradients."""
    import torch

    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def sum_segments(
    model: CostModel, graph: GraphInputs, configurations: Int64, memory_bytes: int, cache: PlanCache | None = None
) -> Tensor:
    """Compute the sum of the embeddings of all segments under distinct configurations: (configurations, embedding).

    Segments are computed one after the other, each for as many distinct local configurations at once as fit into
    `memory_bytes` of activations, but at least one; if a layer mixes configurations, group by group, see `_chunks`.
    """
    import torch

    total = torch.zeros(len(configurations), model.embedding_width, dtype=model.dtype, device=model.device)
    if Mixing.CONFIGURATIONS in model.recipe.mixing and len(configurations) > RANKED_TOGETHER:
        for group in _chunks(model, len(configurations), memory_bytes):
            total[group] = sum_segments(model, graph, configurations[group], memory_bytes, cache)
        return total
    embedded = total[:0]
    parts = plan_parts(model, graph, configurations, memory_bytes, cache or PlanCache(0))
    with _evaluating(model):
        for number, part in enumerate(_run_ahead(parts), start=1):
            if part.places.start == 0:
                embedded = total.new_empty(len(configurations), model.embedding_width)
            embedded[part.places] = model(part.plan.to(model.device).unpack())
            if part.inverse is not None:
                total += embedded[torch.from_numpy(part.inverse).to(model.device)]
            if number % _CHUNKS_PER_RELEASE == 0:
                release_memory()
    return total


def _chunks(model: CostModel, count: int, memory_bytes: int) -> Iterator[slice]:
    """Divide configurations into chunks that fit into memory, or into groups that are ranked together.

    If a layer mixes configurations, they are in as few groups of at most `RANKED_TOGETHER` as possible, number i in
    group i modulo their number: scores depend on the configurations and their order, not on the memory.
    """
    if Mixing.CONFIGURATIONS in model.recipe.mixing:
        groups = -(-count // RANKED_TOGETHER)
        yield from (slice(group, None, groups) for group in range(groups))
    else:
        step = max(1, memory_bytes // (model.embedding_width * model.dtype.itemsize * _LIVE_EMBEDDINGS))
        yield from (slice(start, start + step) for start in range(0, count, step))


def score_configurations(
    model: CostModel, graph: GraphInputs, configurations: Int64, memory_bytes: int, cache: PlanCache | None = None
) -> Float64:
    """Score distinct configurations, with as many embeddings in memory as fit: (configurations,), larger = slower."""
    import torch

    result = np.empty(len(configurations))
    for number, chunk in enumerate(_chunks(model, len(configurations), memory_bytes), start=1):
        total = sum_segments(model, graph, configurations[chunk], memory_bytes, cache)
        with torch.no_grad():
            result[chunk] = model.score(total, len(graph.segments)).double().cpu().numpy()
        if number % _CHUNKS_PER_RELEASE == 0:
            release_memory()
    return result


def mean_over_orders(model: CostModel, graph: GraphInputs, memory_bytes: int, cache: PlanCache) -> Float64:
    """Average scores over `model.permutations` orders of all distinct configurations of a graph.

    If a layer mixes configurations, their order determines the groups that are ranked together. The first order is the
    graph's; the others are drawn, equal on every call. Without such a layer, or with a single group, the order is
    irrelevant, and one order is computed.
    """
    configurations = np.arange(graph.features.distinct)
    total = score_configurations(model, graph, configurations, memory_bytes, cache)
    if Mixing.CONFIGURATIONS not in model.recipe.mixing or len(configurations) <= RANKED_TOGETHER:
        return total
    orders = model.config.permutations
    for number in range(1, orders):
        order = np.random.default_rng(number).permutation(configurations)
        total[order] += score_configurations(model, graph, order, memory_bytes, cache)
    return total / orders


def mean_of_members(scores: Sequence[Float64], weights: Sequence[float] | None = None) -> Float64:
    """Average the scores of members by weights, equal if None; scores of a single member stay unchanged.

    A ranking loss leaves the scale of scores open, so each member's scores are standardized over the graph's
    configurations to mean 0 and standard deviation 1; a member whose scores are all equal counts as 0. The result
    depends on the configurations that are ranked together by a constant and a factor per member.
    """
    if len(scores) == 1:
        return scores[0]
    return np.asarray(np.average([*map(_standardized, scores)], axis=0, weights=weights))


def _standardized(scores: Float64) -> Float64:
    if np.ptp(scores) <= _ROUNDING * np.abs(scores).max():
        return np.zeros_like(scores)
    standardized: Float64 = (scores - scores.mean()) / scores.std()
    return standardized


class TrainedModel:
    """A trained model or ensemble: cost models, blended with baselines if there are any, or one baseline alone.

    It has its specification, `spec`, and options of the `partition` of graphs, None if it reads whole graphs.
    """

    def __init__(
        self, members: Sequence[CostModel], baselines: Sequence[Baseline], spec: Spec, memory_bytes: int
    ) -> None:
        self.spec, self.partition, self._weights = spec, None, None
        if isinstance(spec, ModelSpec):
            self.partition, self._weights = None if spec.whole_graph else spec.partition, spec.weights or None
        if self._weights and not self._weights[0]:
            members, self._weights = [], self._weights[1:]
        self._members, self._baselines, self._memory_bytes = members, baselines, memory_bytes

    def score(self, features: GraphFeatures, partition: Partition | None) -> Float64:
        """Score the distinct configurations of a graph: (distinct,), larger = slower; None for a whole graph."""
        scores = []
        if self._members:
            graph = GraphInputs(features, partition)
            plans = PlanCache(self._memory_bytes if len(self._members) > 1 else 0)
            members = [mean_over_orders(model, graph, self._memory_bytes, plans) for model in self._members]
            scores.append(mean_of_members(members))
            release_memory()  # several workers score graphs side by side
        distinct = dict.fromkeys(self._baselines)
        blended = {baseline: baseline.score(features, self._memory_bytes) for baseline in distinct}
        return mean_of_members([*scores, *(blended[baseline] for baseline in self._baselines)], self._weights)


def load_trained(folder: Path, memory_bytes: int, accelerator: str = "auto") -> TrainedModel:
    """Read a model folder, of which scoring holds activations of at most `memory_bytes`; baselines run on the CPU."""
    if str(read_json(folder / SPEC).get("method")) in BASELINES:
        baseline, baseline_spec = load_baseline(folder)
        return TrainedModel([], [baseline], baseline_spec, memory_bytes)
    keep_memory()
    members, spec = load_model(folder, find_device(accelerator))
    return TrainedModel(members, load_blended(folder, spec), spec, memory_bytes)
