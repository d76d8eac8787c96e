"""One graph's aggregated embedding in a training step, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hlorank.config import ConfigError
from hlorank.models.adjacency import Adjacency
from hlorank.models.cost_model import CostModel
from hlorank.models.layers.layer import Mixing
from hlorank.training.gst.embedding_table import EmbeddingTable, entry_keys
from hlorank.training.gst.methods import METHODS, Method
from hlorank.training.gst.segment_weights import segment_weights
from hlorank.training.step_data import Step


@dataclass
class StepCost:
    """What one or more training steps computed.

    Attributes:
        rows: node states that the layers computed, each distinct one of a segment once.
        plain_rows: the same in the dense form, every node under every configuration.
        looked_up: embeddings of segments that were asked of the table.
        found: those that it held.
        used: stale embeddings that entered the aggregate.
        staleness: steps since those were written, summed.
    """

    rows: int = 0
    plain_rows: int = 0
    looked_up: int = 0
    found: int = 0
    used: int = 0
    staleness: int = 0


class SegmentAggregator:
    """Combines the segments of a graph as a method asks: some with gradient, the others fresh, stale or left out.

    Args:
        model: the cost model.
        method: the specification.
        keep_probability: p of stale embedding dropout, for methods that drop.
        table: the embedding table, for methods that have one.

    Attributes:
        cost: of all steps since it was last replaced.

    Raises:
        ConfigError: embeddings depend on the configurations ranked together, and the method keeps them for others.
    """

    def __init__(self, model: CostModel, method: Method, keep_probability: float, table: EmbeddingTable | None) -> None:
        if method.others == "table" and Mixing.CONFIGURATIONS in model.mixing:
            allowed = ", ".join(name for name, other in METHODS.items() if other.others != "table")
            raise ConfigError(
                f"model.block: with {model.layers_that_mix(Mixing.CONFIGURATIONS)} an embedding depends on the "
                "configurations of its step, and a embedding table would keep it for other steps; leave it out, or "
                f"set method to one of {allowed}"
            )
        self.model = model
        self.method = method
        self.keep_probability = keep_probability if method.drop_stale else 1.0
        self.table = table
        self.cost = StepCost()

    def __call__(self, step: Step, now: int) -> Tensor:
        """The weighted sum over segments, (configurations, width * poolings); fresh embeddings go to the table.

        Args:
            step: the graph, its configurations and the sampled segments.
            now: number of the step, for the table.
        """
        graph = step.graph
        count = len(graph.segments)
        sampled = np.isin(np.arange(count), step.with_gradient)
        codes = np.asarray(graph.partition.local_codes[step.rows]).T
        distinct, entry = np.unique(entry_keys(step.number, np.arange(count)[:, None], codes), return_inverse=True)
        keys = distinct.tolist()
        if self.table is None:
            present = np.full(entry.shape, self.method.others == "fresh")
        else:
            # Read of all segments before anything is written, so that it does not depend on what is sampled.
            present = self.table.present(keys)[entry]
            self.cost.looked_up += present.size
            self.cost.found += int(present.sum())
        weights = segment_weights(sampled, present, self.keep_probability, step.draws)

        total = torch.zeros((), device=graph.device)
        stale = np.where(sampled[:, None], 0, weights)
        if self.table is not None and stale.any():
            total = self._stale(self.table, keys, entry, stale, now)
        written = []
        computed = np.flatnonzero(sampled if self.table is not None else weights.any(axis=1))
        # Those without gradient first: they leave nothing behind, while the others keep their states for backward.
        for j in computed[np.argsort(sampled[computed], kind="stable")].tolist():
            with torch.set_grad_enabled(torch.is_grad_enabled() and bool(sampled[j])):
                embedding = self._embed(step, j)
            total = total + torch.from_numpy(weights[j]).to(embedding)[:, None] * embedding
            if sampled[j]:
                written.append((entry[j], embedding.detach()))
        if self.table is not None:
            for entries, embedding in written:
                places, first = np.unique(entries, return_index=True)
                self.table.write([keys[place] for place in places], embedding[torch.from_numpy(first)], now)
        return total

    def _embed(self, step: Step, j: int) -> Tensor:
        model = self.model
        before = model.computed_rows
        embedding = model.embed_rows(step.graph, j, step.rows)
        self.cost.rows += model.computed_rows - before
        self.cost.plain_rows += model.dense_rows(step.graph.segments[j], len(step.rows))
        return embedding

    def _stale(
        self, table: EmbeddingTable, keys: list[int], entry: NDArray[np.int64], weights: NDArray[np.float64], now: int
    ) -> Tensor:
        """The sum of stale embeddings, (configurations, width * poolings).

        Args:
            table: holds every entry whose weight is not 0.
            keys: of the table's entries.
            entry: (J, configurations), which of the keys each embedding has.
            weights: (J, configurations).
            now: number of the step.
        """
        configuration, segment = np.nonzero(weights.T)
        places, index = np.unique(entry[segment, configuration], return_inverse=True)
        embeddings, written = table.read([keys[place] for place in places])
        self.cost.used += len(places)
        self.cost.staleness += int((now - written).sum())
        starts = np.searchsorted(configuration, np.arange(entry.shape[1] + 1))
        weight = weights[segment, configuration]
        return Adjacency(index, starts, weight, len(places), embeddings.device).apply(embeddings)
