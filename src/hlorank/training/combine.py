"""One graph's aggregated embedding in a training step, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hlorank.config import ConfigError
from hlorank.models.cost_model import CostModel
from hlorank.models.layers.layer import Mixing
from hlorank.training.data import Step
from hlorank.training.estimator import segment_weights
from hlorank.training.methods import METHODS, Method
from hlorank.training.table import HistoricalTable, entry_keys


@dataclass
class StepCost:
    """What one or more training steps computed.

    Attributes:
        rows: node states that the layers computed, one for each configuration that a node depends on.
        plain_rows: the same in the plain form, every node under every configuration.
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


class Combiner:
    """Combines the segments of a graph as a method asks: some with gradient, the others fresh, stale or left out.

    Args:
        model: the cost model.
        method: the specification.
        keep_probability: p of stale embedding dropout, for methods that drop.
        table: the historical table, for methods that have one.

    Attributes:
        cost: of all steps since it was last replaced.

    Raises:
        ConfigError: embeddings depend on the configurations ranked together, and the method keeps them for others.
    """

    def __init__(
        self, model: CostModel, method: Method, keep_probability: float, table: HistoricalTable | None
    ) -> None:
        if method.others == "table" and Mixing.CONFIGURATIONS in model.mixing:
            allowed = ", ".join(name for name, other in METHODS.items() if other.others != "table")
            raise ConfigError(
                "model.configuration_attention=true: an embedding then depends on the configurations of its step, and "
                f"a historical table would keep it for other steps; set it to false, or method to one of {allowed}"
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
        local = np.asarray(graph.partition.local_codes[step.rows])
        codes = [np.unique(local[:, j], return_inverse=True) for j in range(count)]
        keys = [entry_keys(step.number, j, codes[j][0]) for j in range(count)]
        if self.table is None:
            present = np.full(local.T.shape, self.method.others == "fresh")
        else:
            # Read of all segments before anything is written, so that it does not depend on what is sampled.
            present = np.stack([self.table.present(keys[j])[codes[j][1]] for j in range(count)])
            self.cost.looked_up += present.size
            self.cost.found += int(present.sum())
        weights = segment_weights(sampled, present, self.keep_probability, step.draws)

        total = torch.zeros((), device=graph.device)
        written = []
        for j in range(count):
            if not weights[j].any():
                continue
            if sampled[j]:
                embedding = self._embed(step, j, len(codes[j][0]))
                first = np.unique(codes[j][1], return_index=True)[1]
                written.append((keys[j], embedding.detach()[torch.from_numpy(first)]))
            elif self.table is None:
                with torch.no_grad():
                    embedding = self._embed(step, j, len(codes[j][0]))
            else:
                embedding = self._stale(self.table, keys[j], codes[j][1], weights[j] > 0, now)
            weight = torch.from_numpy(weights[j]).to(embedding)
            total = total + weight[:, None] * embedding
        if self.table is not None:
            for key, embedding in written:
                self.table.write(key, embedding, now)
        return total

    def _embed(self, step: Step, j: int, distinct: int) -> Tensor:
        segment = step.graph.segments[j]
        configurations = distinct if self.model.deduplicates else len(step.rows)
        for varied in self.model.varied_rows(segment):
            self.cost.rows += varied * configurations + segment.nodes - varied
            self.cost.plain_rows += segment.nodes * len(step.rows)
        return self.model.embed_rows(step.graph, j, step.rows)

    def _stale(
        self, table: HistoricalTable, keys: list[int], inverse: np.ndarray, wanted: np.ndarray, now: int
    ) -> Tensor:
        """Stale embeddings of the wanted configurations, zeros for the others."""
        places = np.unique(inverse[wanted])
        embeddings, written = table.read([keys[place] for place in places])
        full = embeddings.new_zeros(len(keys), embeddings.shape[1])
        full[torch.from_numpy(places).to(full.device)] = embeddings
        self.cost.used += len(places)
        self.cost.staleness += int((now - written).sum())
        return full[torch.from_numpy(inverse).to(full.device)]
