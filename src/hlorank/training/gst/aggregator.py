"""Aggregation of a graph's segment embeddings in a training step, and its cost."""

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
    """Amount of computation of one or more training steps."""

    states: int = 0  # node states that the layers computed, each distinct state of a segment once
    dense_states: int = 0  # the same in the dense form, every node under every configuration
    peak_states: int = 0  # the most states that were held at once for their gradients
    looked_up: int = 0  # embeddings of segments that were looked up in the table
    found: int = 0  # embeddings among them that the table had
    used: int = 0  # stale embeddings in the aggregates
    staleness: int = 0  # sum of their ages, in steps since they were written


class Aggregator:
    """Aggregation of a graph's segments by a method: sampled segments with gradient, others fresh, stale or left out.

    A ConfigError says that the table's budget is smaller than one entry, or that embeddings depend on the
    configurations of their step and cannot be kept for later steps.
    """

    def __init__(self, model: CostModel, method: Method, settings: SegmentsConfig) -> None:
        if method.others == "table" and Mixing.CONFIGURATIONS in model.recipe.mixing:
            allowed = ", ".join(name for name, other in METHODS.items() if other.others != "table")
            raise ConfigError(
                f"model.block: with {model.layers_that_mix(Mixing.CONFIGURATIONS)} an embedding depends on the "
                "configurations of its step, and an embedding table would keep it for other steps; leave the layer "
                f"out, or set method to one of {allowed}"
            )
        self.model, self.method = model, method
        self.keep_probability = settings.keep_probability if method.drop_stale else 1.0
        self.table: EmbeddingTable | None = None  # at first empty; None for methods without a table
        if method.others == "table":
            self.table = EmbeddingTable(model.embedding_width, settings.table_bytes, settings.table_dtype)
        self._computes_missing = settings.missing == "compute"
        self.cost = StepCost()  # of all steps since it was last replaced

    def __call__(self, step: PlannedStep, plans: MissingPlans, now: int) -> Tensor:
        """Compute the weighted sum over segments, (configurations, width * poolings), and write what it computes.

        Embeddings that the table lacks are planned now, not ahead: only now the content of the table is known.
        """
        sampled = np.zeros((len(step.local), 1), dtype=np.bool_)
        sampled[step.with_gradient] = True
        numbers = np.arange(len(sampled))[:, None]
        distinct, entry = np.unique(entry_keys(step.number, numbers, step.local), return_inverse=True)
        keys, total = distinct.tolist(), torch.zeros((), device=step.labels.device)
        if self.table is None:
            available = np.full(entry.shape, self.method.others == "fresh")
            weights = segment_weights(sampled[:, 0], available, self.keep_probability, step.draws)
        else:
            # Looked up for all segments before anything is written, so that it does not depend on the sample.
            present = self.table.look_up(keys)[entry]
            self.cost.looked_up += present.size
            self.cost.found += int(present.sum())
            available = np.ones_like(present) if self._computes_missing else present
            weights = segment_weights(sampled[:, 0], available, self.keep_probability, step.draws)
            if self._computes_missing:
                self._compute_missing(self.table, step, plans, keys, entry, (weights > 0) & ~sampled & ~present, now)
            if (stale := np.where(sampled, 0, weights)).any():
                total = self._stale(self.table, keys, entry, stale, now)
        with torch.no_grad():
            for part in step.others:
                total = self._add(total, part, self._embed(part, step), weights)
        written = []
        for part in step.sampled:
            embedding = self._embed(part, step, recomputed=step.recomputed)
            total = self._add(total, part, embedding, weights)
            written.append((entry[part.segments, part.places].ravel(), embedding.detach().flatten(0, 1)))
        self.cost.dense_states += step.dense_states
        self.cost.peak_states = max(self.cost.peak_states, step.states_with_gradient)
        if self.table is not None:
            for entries, embedding in written:
                places, first = np.unique(entries, return_index=True)
                self.table.write([keys[place] for place in places], embedding[torch.from_numpy(first)], now)
        return total

    def _compute_missing(
        self,
        table: EmbeddingTable,
        step: PlannedStep,
        plans: MissingPlans,
        keys: list[int],
        entry: NDArray[np.int64],
        lacking: NDArray[np.bool_],
        now: int,
    ) -> None:
        """Compute the embeddings of the mask `lacking`, (J, configurations), without gradient, and write them."""
        first = {}  # of the places of each entry of a segment
        for j in np.flatnonzero(lacking.any(axis=1)).tolist():
            first[j] = np.flatnonzero(lacking[j])[np.unique(entry[j, lacking[j]], return_index=True)[1]]
        wanted = {j: step.configurations[places] for j, places in first.items()}
        with torch.no_grad():
            for part in plans(step.number, wanted) if wanted else ():
                for j, embeddings in zip(part.segments, self._embed(part, step), strict=True):
                    own = [keys[place] for place in entry[j, first[j][part.places]]]
                    table.write(own, embeddings[: len(own)], now)

    def _embed(self, part: PlannedPart, step: PlannedStep, *, recomputed: bool = False) -> Tensor:
        """Compute the embeddings of a part, (segments, configurations, width); perhaps again for their gradients."""
        self.cost.states += part.plan.states
        plan = part.plan.to(step.labels.device).unpack()
        embedding: Tensor = checkpoint(self.model, plan, use_reentrant=False) if recomputed else self.model(plan)
        return embedding.view(len(part.segments), -1, embedding.shape[1])

    @staticmethod
    def _add(total: Tensor, part: PlannedPart, embedding: Tensor, weights: NDArray[np.float64]) -> Tensor:
        """Add the weighted embeddings of a part to the sum over segments."""
        own = torch.from_numpy(weights[part.segments, part.places]).to(embedding, non_blocking=True)
        added = (own[:, :, None] * embedding).sum(dim=0)
        return total + pad(added, (0, 0, part.places.start, weights.shape[1] - part.places.stop))

    def _stale(
        self, table: EmbeddingTable, keys: list[int], entry: NDArray[np.int64], weights: NDArray[np.float64], now: int
    ) -> Tensor:
        """Compute the weighted sum of stale embeddings: the table has every entry whose weight is not 0."""
        configuration, segment = np.nonzero(weights.T)
        places, index = np.unique(entry[segment, configuration], return_inverse=True)
        embeddings, written = table.read([keys[place] for place in places])
        self.cost.used += len(places)
        self.cost.staleness += int((now - written).sum())
        starts = np.searchsorted(configuration, np.arange(entry.shape[1] + 1))
        matrix = sparse(index, starts, len(places), weights[segment, configuration], gradients=False)
        return propagate(embeddings, tensors(matrix, embeddings.device))
