"""The cost model: segment encoder F, aggregation A and head H of Graph Segment Training (arXiv 2305.12322)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hlorank.config import ConfigError, ModelConfig
from hlorank.models.encoder import Encoder
from hlorank.models.inputs import ConfigurationBatch, GraphInputs, InputSizes, Segment
from hlorank.models.layers.configuration_attention import ConfigurationAttention
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.layers.sage import SageLayer
from hlorank.models.layers.squeeze_excite import SqueezeExcite
from hlorank.models.state import State

POOLINGS: Mapping[str, Callable[[State], Tensor]] = MappingProxyType(
    {"mean": lambda state: state.sum() / len(state.rows.every), "sum": State.sum, "max": State.max}
)
AGGREGATIONS = ("mean", "sum")


def _layers(config: ModelConfig) -> Iterator[Layer]:
    for _ in range(config.layers):
        yield SageLayer(config.width, config.dropout)
        if config.squeeze_excite:
            yield SqueezeExcite(config.width)
        if config.configuration_attention:
            yield ConfigurationAttention(config.width)


class CostModel(nn.Module):
    """Scores configurations of a graph from embeddings of its segments; a larger score means slower.

    The score of a configuration depends on the others of a call only where a layer mixes configurations.

    Args:
        config: widths, layers and pooling.
        sizes: what the inputs look like.
        aggregation: mean or sum over a graph's segments.

    Attributes:
        mixing: how far its layers mix.
        config_sparse: nodes under configurations that nothing sets apart share one state, up to the first layer that
            mixes over the segment; False computes the plain form, every node under every configuration, with equal
            results.
        computed_rows: node states that the layers have computed so far.
        deduplicate: each distinct local configuration of a segment is computed once, unless a layer mixes
            configurations; False computes every row.

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
        self.computed_rows = 0
        self.encoder = Encoder(config, sizes)
        self.layers = nn.ModuleList(_layers(config))
        self.mixing = frozenset([self.encoder.mixing, *(layer.mixing for layer in self._stack)])
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Sequential(nn.Linear(self.embedding_width, config.width), nn.GELU(), nn.Linear(config.width, 1))

    @property
    def _stack(self) -> Iterable[Layer]:
        return cast("Iterable[Layer]", self.layers)

    @property
    def deduplicates(self) -> bool:
        """Whether rows with equal local configurations share one embedding."""
        return self.deduplicate and Mixing.CONFIGURATIONS not in self.mixing

    @property
    def embedding_width(self) -> int:
        """Numbers in the embedding of a segment."""
        return self.config.width * len(self.config.pooling)

    def varied_rows(self, segment: Segment) -> list[int]:
        """How many nodes of a segment depend on the configuration after each layer; their states may be fewer."""
        rows, hops, sparse = [], 0, self.config_sparse
        for layer in self._stack:
            hops += layer.mixing is Mixing.NEIGHBOURS
            sparse = sparse and layer.mixing is not Mixing.SEGMENT
            rows.append(segment.reached(hops) if sparse else segment.nodes)
        return rows

    def check_halo(self, halo: bool) -> None:
        """Makes sure that the model can embed segments with a halo, if there are any.

        Raises:
            ConfigError: a layer mixes over the segment.
        """
        if halo and Mixing.SEGMENT in self.mixing:
            raise ConfigError(
                "model.squeeze_excite=true: it would mix the nodes of a halo with those of the segment; set it to "
                "false, or partition.halo to 0"
            )

    def embed(self, segment: Segment, batch: ConfigurationBatch) -> Tensor:
        """F: the embedding of one segment under some configurations, (configurations, width * poolings).

        Raises:
            ConfigError: the segment has a halo, and a layer mixes over the segment.
        """
        self.check_halo(segment.pooled is not None)
        # A dropout mask, or the other configurations that attention compares, set nodes apart that look alike.
        apart = (self.training and self.config.dropout > 0) or Mixing.CONFIGURATIONS in self.mixing
        state: State = self.encoder(segment, batch, apart)
        for layer in self._stack:
            # Where nothing is shared the plain form has less to do.
            sparse = self.config_sparse and layer.mixing is not Mixing.SEGMENT and not state.is_plain
            state = layer.spread(state, segment) if sparse else State.of(layer(state.dense(), segment))
            self.computed_rows += len(state.rows)
        state = state._replace(values=self.norm(state.values))
        if segment.pooled is not None:
            state = state.only(segment.pooled.cpu().numpy())
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
        if not self.deduplicates:
            return self.embed(segment, graph.configurations(rows, segment))
        distinct, standing_for = graph.distinct(rows, j)
        return self.embed(segment, graph.configurations(distinct, segment))[standing_for]

    def aggregate(self, total: Tensor, segments: int) -> Tensor:
        """A: the embedding of a graph from the sum over its segments; arguments as for `score`, same shape."""
        return total / segments if self.aggregation == "mean" else total

    def score(self, total: Tensor, segments: int) -> Tensor:
        """A and H: summed segment embeddings to scores.

        Args:
            total: (configurations, width * poolings), the sum over the graph's segments.
            segments: J, the number of segments of the graph.

        Returns:
            (configurations,) scores.
        """
        scores: Tensor = self.head(self.aggregate(total, segments))
        return scores.squeeze(-1)
