"""The cost model: segment encoder F, aggregation A and head H of Graph Segment Training (arXiv 2305.12322)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hlorank.config import ConfigError, ModelConfig
from hlorank.models.encoder import Encoder
from hlorank.models.inputs import ConfigurationBatch, GraphInputs, InputSizes, Segment
from hlorank.models.layers import SageLayer

POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean(dim=0),
    "sum": lambda x: x.sum(dim=0),
    "max": lambda x: x.amax(dim=0),
}
AGGREGATIONS = ("mean", "sum")


class CostModel(nn.Module):
    """Scores configurations of a graph from embeddings of its segments; a larger score means slower.

    Args:
        config: widths, layers and pooling.
        sizes: what the inputs look like.
        aggregation: mean or sum over a graph's segments.

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
        self.encoder = Encoder(config, sizes)
        self.layers = nn.ModuleList(SageLayer(config.width, config.dropout) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Sequential(
            nn.Linear(config.width * len(config.pooling), config.width), nn.GELU(), nn.Linear(config.width, 1)
        )

    def embed(self, segment: Segment, batch: ConfigurationBatch) -> Tensor:
        """F: the embedding of one segment under some configurations, (configurations, width * poolings)."""
        x = self.encoder(segment, batch)
        for layer in self.layers:
            x = layer(x, segment)
        x = self.norm(x)
        return torch.cat([POOLINGS[name](x) for name in self.config.pooling], dim=-1)

    def embed_rows(self, graph: GraphInputs, j: int, rows: NDArray[np.int64]) -> Tensor:
        """F for distinct configurations of a graph: each distinct local configuration is computed once.

        Args:
            graph: the graph.
            j: the segment.
            rows: (configurations,) int64, indices of distinct configurations.

        Returns:
            (configurations, width * poolings).
        """
        _, first, inverse = np.unique(graph.partition.local_codes[rows, j], return_index=True, return_inverse=True)
        segment = graph.segments[j]
        embedded = self.embed(segment, graph.configurations(rows[first], segment))
        return embedded[torch.from_numpy(inverse).to(embedded.device)]

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
