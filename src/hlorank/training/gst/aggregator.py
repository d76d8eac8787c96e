"""Aggregation of a graph's segment embeddings in a training step, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from hlorank.config import ConfigError, SegmentsConfig
from hlorank.models.compression.build_plan import sparse
from hlorank.models.compression.declarations import Mixing
from hlorank.models.cost_model import CostModel
from hlorank.models.plan_tensors import propagate, tensors
from hlorank.training.gst.embedding_table import EmbeddingTable, entry_keys
from hlorank.training.methods import METHODS, Method, segment_weights
from hlorank.training.step_plans import PlannedPart, PlannedStep

MissingPlans = Callable[[int, Mapping[int, NDArray[np.int64]]], list[PlannedPart]]
"""Plans without gradient of segments of a training graph: by its number and the configurations of each segment."""


@dataclass
class StepCost:
    """Amount of computation of one or more training steps.

    Attributes:
        rows: node states that the layers computed, each distinct one of a segment once.
        dense_rows: the same in the dense form, every node under every configuration.
        peak_rows: the most rows whose states were held at once for their gradients.
        looked_up: embeddings of segments that were looked up in the table.
        found: embeddings among them that the table had.
        used: stale embeddings in the aggregates.
        staleness: sum of their ages, in steps since they were written.
    """

    rows: int = 0
    dense_rows: int = 0
    peak_rows: int = 0
    looked_up: int = 0
    found: int = 0
    used: int = 0
    staleness: int = 0


def make_aggregator(
    model: CostModel, method: Method, settings: SegmentsConfig, plans: MissingPlans
) -> SegmentAggregator:
    """Make an aggregator, with an empty embedding table if the method has one.

    Args:
        model: the cost model.
        method: the method.
        settings: the settings of the method.
        plans: makes the plans of missing embeddings, if `settings` say that they are computed.

    Raises:
        ConfigError: the table's budget is smaller than one entry, or the model's embeddings cannot be kept.
    """
    table = None
    if method.others == "table":
        table = EmbeddingTable(model.embedding_width, settings.table_bytes, settings.table_dtype)
    compute = plans if settings.missing == "compute" else None
    return SegmentAggregator(model, method, settings.keep_probability, table, compute)


class SegmentAggregator:
    """Aggregation of a graph's segments by a method: some with gradient, the others fresh, stale or left out.

    Args:
        model: the cost model.
        method: the method.
        keep_probability: p of stale-embedding dropout, for methods that have it.
        table: the embedding table, for methods that have one.
        missing: makes the plans of embeddings that the table lacks, which are then computed without gradient and
            written; None leaves their segments out, and weighs the sampled ones more.

    Attributes:
        cost: the cost of all steps since the attribute was last replaced.

    Raises:
        ConfigError: the method keeps embeddings for later steps, but they depend on the configurations of their step.
    """

    def __init__(
        self,
        model: CostModel,
        method: Method,
        keep_probability: float,
        table: EmbeddingTable | None,
        missing: MissingPlans | None = None,
    ) -> None:
        if method.others == "table" and Mixing.CONFIGURATIONS in model.recipe.mixing:
            allowed = ", ".join(name for name, other in METHODS.items() if other.others != "table")
            raise ConfigError(
                f"model.block: with {model.layers_that_mix(Mixing.CONFIGURATIONS)} an embedding depends on the "
                "configurations of its step, and an embedding table would keep it for other steps; leave the layer "
                f"out, or set method to one of {allowed}"
            )
        self.model = model
        self.method = method
        self.keep_probability = keep_probability if method.drop_stale else 1.0
        self.table = table
        self.missing = missing
        self.cost = StepCost()

    def __call__(self, step: PlannedStep, now: int) -> Tensor:
        """Compute the weighted sum over segments, and write the embeddings that were computed to the table.

        Args:
            step: the plans of the segments that are computed.
            now: number of the step, for the table.

        Returns:
            (configurations, width * poolings).
        """
        count = len(step.local)
        sampled = np.zeros(count, dtype=np.bool_)
        sampled[step.with_gradient] = True
        distinct, entry = np.unique(entry_keys(step.number, np.arange(count)[:, None], step.local), return_inverse=True)
        keys = distinct.tolist()
        if self.table is None:
            available = np.full(entry.shape, self.method.others == "fresh")
        else:
            # Looked up for all segments before anything is written, so that it does not depend on the sample.
            present = self.table.look_up(keys)[entry]
            self.cost.looked_up += present.size
            self.cost.found += int(present.sum())
            available = present if self.missing is None else np.ones_like(present)
        weights = segment_weights(sampled, available, self.keep_probability, step.draws)

        total = torch.zeros((), device=step.labels.device)
        stale = np.where(sampled[:, None], 0, weights)
        if self.table is not None and stale.any():
            if self.missing is not None:
                self._compute_missing(self.table, self.missing, step, keys, entry, (stale > 0) & ~present, now)
            total = self._stale(self.table, keys, entry, stale, now)
        with torch.no_grad():
            for part in step.others:
                total = self._add(total, part, self._embed(part, step), weights)
        written = []
        for part in step.sampled:
            embedding = self._embed(part, step, recomputed=step.recomputed)
            total = self._add(total, part, embedding, weights)
            written.append((entry[part.segments, part.configurations].ravel(), embedding.detach().flatten(0, 1)))
        self.cost.dense_rows += step.dense_rows
        self.cost.peak_rows = max(self.cost.peak_rows, step.rows_with_gradient)
        if self.table is not None:
            for entries, embedding in written:
                places, first = np.unique(entries, return_index=True)
                self.table.write([keys[place] for place in places], embedding[torch.from_numpy(first)], now)
        return total

    def _compute_missing(
        self,
        table: EmbeddingTable,
        plans: MissingPlans,
        step: PlannedStep,
        keys: list[int],
        entry: NDArray[np.int64],
        missing: NDArray[np.bool_],
        now: int,
    ) -> None:
        """Compute the entries of the mask `missing`, (J, configurations), without gradient, and write them."""
        first = {}  # of the places of each entry of a segment
        for j in np.flatnonzero(missing.any(axis=1)).tolist():
            first[j] = np.flatnonzero(missing[j])[np.unique(entry[j, missing[j]], return_index=True)[1]]
        with torch.no_grad():
            for part in plans(step.number, {j: step.rows[places] for j, places in first.items()}):
                for j, embeddings in zip(part.segments, self._embed(part, step), strict=True):
                    places = first[j][part.configurations]
                    table.write([keys[place] for place in entry[j, places]], embeddings[: len(places)], now)

    def _embed(self, part: PlannedPart, step: PlannedStep, *, recomputed: bool = False) -> Tensor:
        """Compute the embeddings of a part, (segments, configurations, width); perhaps again for their gradients."""
        self.cost.rows += part.plan.rows
        plan = part.plan.to(step.labels.device).unpack()
        embedding: Tensor = checkpoint(self.model, plan, use_reentrant=False) if recomputed else self.model(plan)
        return embedding.view(len(part.segments), -1, embedding.shape[1])

    @staticmethod
    def _add(total: Tensor, part: PlannedPart, embedding: Tensor, weights: NDArray[np.float64]) -> Tensor:
        """Add the weighted embeddings of a part to the sum over segments."""
        own = torch.from_numpy(weights[part.segments, part.configurations]).to(embedding, non_blocking=True)
        added = (own[:, :, None] * embedding).sum(dim=0)
        start, stop = part.configurations.start, part.configurations.stop
        return total + pad(added, (0, 0, start, weights.shape[1] - stop))

    def _stale(
        self, table: EmbeddingTable, keys: list[int], entry: NDArray[np.int64], weights: NDArray[np.float64], now: int
    ) -> Tensor:
        """Compute the weighted sum of stale embeddings, (configurations, width * poolings).

        Args:
            table: has every entry whose weight is not 0.
            keys: the keys of the table's entries.
            entry: (J, configurations), the index of each embedding's key.
            weights: (J, configurations).
            now: number of the step.
        """
        configuration, segment = np.nonzero(weights.T)
        places, index = np.unique(entry[segment, configuration], return_inverse=True)
        embeddings, written = table.read([keys[place] for place in places])
        self.cost.used += len(places)
        self.cost.staleness += int((now - written).sum())
        starts = np.searchsorted(configuration, np.arange(entry.shape[1] + 1))
        matrix = sparse(index, starts, len(places), weights[segment, configuration], gradients=False)
        return propagate(embeddings, tensors(matrix, embeddings.device))
