"""The cost model: segment encoder F, aggregation A and head H of Graph Segment Training (arXiv 2305.12322)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hlorank.config import ConfigError, ModelConfig
from hlorank.models.encoder import Encoder
from hlorank.models.inputs import ConfigurationBatch, GraphInputs, InputSizes, Segment
from hlorank.models.layers import SageLayer
from hlorank.models.state import State


def _sum(state: State) -> Tensor:
    return state.varied.sum(dim=0) + state.unreached().sum(dim=0)


def _max(state: State) -> Tensor:
    parts = [part.amax(dim=0) for part in (state.varied, state.unreached()[:, None]) if len(part)]
    return functools.reduce(torch.maximum, parts).expand(state.varied.shape[1], -1)


POOLINGS: Mapping[str, Callable[[State], Tensor]] = MappingProxyType(
    {"mean": lambda state: _sum(state) / len(state.shared), "sum": _sum, "max": _max}
)
AGGREGATIONS = ("mean", "sum")


class CostModel(nn.Module):
    """Scores configurations of a graph from embeddings of its segments; a larger score means slower.

    Args:
        config: widths, layers and pooling.
        sizes: what the inputs look like.
        aggregation: mean or sum over a graph's segments.

    Attributes:
        config_sparse: only nodes that a configurable node can reach get the configuration axis; False computes the
            plain form, every node under every configuration, with equal results.
        deduplicate: each distinct local configuration of a segment is computed once; False computes every row.

    Raises:
        ConfigError: a pooling or the aggregation has no such name.
    """

    def __init__(self, config: ModelConfig, sizes: InputSizes, aggregation: str) -> None:
        super().__init__()
        if aggregation not in AGGREGATIONS:
            raise ConfigError(f"segments.aggregation: expected one of {', '.join(AGGREGATIONS)}, found {aggregation!r}")
        unknown = set(config.pooling) - set(POOLINGS)
        if unknown or not config.pooling:
            raise ConfigError(f"model.pooling: expected some of {sorted(POOLINGS)}, found {list(config.pooling)}")
        self.config = config
        self.sizes = sizes
        self.aggregation = aggregation
        self.config_sparse = True
        self.deduplicate = True
        self.encoder = Encoder(config, sizes)
        self.layers = nn.ModuleList(SageLayer(config.width, config.dropout) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Sequential(nn.Linear(self.embedding_width, config.width), nn.GELU(), nn.Linear(config.width, 1))

    @property
    def embedding_width(self) -> int:
        """Numbers in the embedding of a segment."""
        return self.config.width * len(self.config.pooling)

    def embed(self, segment: Segment, batch: ConfigurationBatch) -> Tensor:
        """F: the embedding of one segment under some configurations, (configurations, width * poolings)."""
        state: State = self.encoder(segment, batch)
        if self.config_sparse:
            for index, layer in enumerate(cast("Iterable[SageLayer]", self.layers)):
                state = layer.spread(state, segment, index)
        else:
            x = state.dense()
            for plain_layer in self.layers:
                x = plain_layer(x, segment)
            state = State(x[:, 0], x)
        state = State(self.norm(state.shared), self.norm(state.varied))
        return torch.cat([POOLINGS[name](state) for name in self.config.pooling], dim=-1)

    def embed_rows(self, graph: GraphInputs, j: int, rows: NDArray[np.int64]) -> Tensor:
        """F for distinct configurations of a graph.

        Args:
            graph: the graph.
            j: the segment.
            rows: (configurations,) int64, indices of distinct configurations.

        Returns:
            (configurations, width * poolings).
        """
        segment = graph.segments[j]
        if not self.deduplicate:
            return self.embed(segment, graph.configurations(rows, segment))
        distinct, standing_for = graph.distinct(rows, j)
        return self.embed(segment, graph.configurations(distinct, segment))[standing_for]

    def score(self, total: Tensor, segments: int) -> Tensor:
        """A and H: summed segment embeddings to scores.

        Args:
            total: (configurations, width * poolings), the sum over the graph's segments.
            segments: J, the number of segments of the graph.

        Returns:
            (configurations,) scores.
        """
        scores: Tensor = self.head(total / segments if self.aggregation == "mean" else total)
        return scores.squeeze(-1)
