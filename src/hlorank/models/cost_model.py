"""The cost model: segment encoder F, aggregation A and head H of Graph Segment Training (arXiv 2305.12322)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from hlorank.config import ConfigError, ModelConfig
from hlorank.models.block import Block
from hlorank.models.compression.colouring import NodeStates
from hlorank.models.encoder import Encoder
from hlorank.models.inputs import ConfigurationBatch, GraphInputs, InputSizes, Segment
from hlorank.models.layers.layer import Mixing

POOLINGS: Mapping[str, Callable[[NodeStates, int], Tensor]] = MappingProxyType(
    {
        "mean": lambda state, _: state.sum() / len(state.rows.every),
        "sum": lambda state, _: state.sum(),
        "max": lambda state, _: state.max(),
        "l2_sum": lambda state, _: normalize(state.sum(), dim=-1),
        "l2_configurable_sum": lambda state, configurable: normalize(state.first(configurable).sum(), dim=-1),
    }
)
"""Of the states of nodes, of which so many are configurable, those first; to (configurations, width)."""
_HEADS: Mapping[str, Callable[[int, int], nn.Module]] = MappingProxyType(
    {
        "mlp": lambda inputs, width: nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, 1)),
        "linear": lambda inputs, _: nn.Linear(inputs, 1),
    }
)


class CostModel(nn.Module):
    """Scores configurations of a graph from embeddings of its segments; a larger score means slower.

    The score of a configuration depends on the others of a call only where a layer mixes configurations.

    Args:
        config: the encoder, the stem, the blocks, the post_layers, the pooling and the head.
        sizes: what the inputs look like.
        aggregation: mean or sum over a graph's segments.

    Attributes:
        mixing: how far its layers mix.
        config_sparse: nodes under configurations that nothing sets apart share one state, up to the first layer that
            mixes over the segment; False computes the dense form, every node under every configuration, with equal
            results.
        deduplicate: each distinct local configuration of a segment is computed once, unless a layer mixes
            configurations; False computes every row.

    Raises:
        ConfigError: there is no layer, pooling, head or aggregation of a name, or a number is out of range.
    """

    def __init__(self, config: ModelConfig, sizes: InputSizes, aggregation: str) -> None:
        super().__init__()
        self.config = config
        self.sizes = sizes
        self.aggregation = aggregation
        self.config_sparse = True
        self.deduplicate = True
        self.encoder = Encoder(config, sizes)
        self.stem = Block(config.stem, config, "model.stem")
        self.blocks = nn.ModuleList(Block(config.block, config, "model.block") for _ in range(config.blocks))
        self.post_layers = Block(config.post_layers, config, "model.post_layers")
        self.mixing = frozenset([self.encoder.mixing, *(mixing for _, mixing in self._mixing_layers)])
        self.head = _HEADS[config.head](self.embedding_width, config.width)

    @property
    def _every_block(self) -> Iterable[Block]:
        return [self.stem, *cast("Iterable[Block]", self.blocks), self.post_layers]

    @property
    def _mixing_layers(self) -> list[tuple[str, Mixing]]:
        return [layer for block in self._every_block for layer in block.mixing_layers()]

    @property
    def computed_rows(self) -> int:
        """Node states that the layers which mix states have computed so far."""
        return sum(block.computed_rows for block in self._every_block)

    @property
    def plain_layers(self) -> int:
        """How many layers mix states: the dense form computes that many states of each node and configuration."""
        return len(self._mixing_layers)

    def layers_that_mix(self, mixing: Mixing) -> str:
        """The names of the layers that mix so far, for messages."""
        return ", ".join(dict.fromkeys(name for name, how in self._mixing_layers if how is mixing))

    @property
    def deduplicates(self) -> bool:
        """Whether rows with equal local configurations share one embedding."""
        return self.deduplicate and Mixing.CONFIGURATIONS not in self.mixing

    @property
    def embedding_width(self) -> int:
        """Numbers in the embedding of a segment."""
        return self.config.width * len(self.config.pooling)

    def varied_rows(self, segment: Segment) -> list[int]:
        """How many nodes depend on the configuration after each layer that mixes states, at most."""
        rows, sparse = [], self.config_sparse
        hops = 0
        for _, mixing in self._mixing_layers:
            hops += mixing is Mixing.NEIGHBOURS
            sparse = sparse and mixing is not Mixing.SEGMENT
            rows.append(segment.reached(hops) if sparse else segment.nodes)
        return rows

    def check_halo(self, halo: bool) -> None:
        """Makes sure that the model can embed segments with a halo, if there are any.

        Raises:
            ConfigError: a layer mixes over the segment.
        """
        if halo and Mixing.SEGMENT in self.mixing:
            raise ConfigError(
                f"model.block: {self.layers_that_mix(Mixing.SEGMENT)} would mix the nodes of a halo with those of the "
                "segment; leave it out, or set partition.halo to 0"
            )

    def embed(self, segment: Segment, batch: ConfigurationBatch) -> Tensor:
        """F: the embedding of one segment under some configurations, (configurations, width * poolings).

        Raises:
            ConfigError: the segment has a halo, and a layer mixes over the segment.
        """
        self.check_halo(segment.pooled is not None)
        if self.training and self.config.drop_edge > 0:
            kept = torch.rand(len(segment.edges)).numpy() >= self.config.drop_edge
            segment = replace(segment, edges=segment.edges.only(kept))
        # A dropout mask, or the other configurations that attention compares, set nodes apart that look alike.
        apart = (self.training and self.config.dropout > 0) or Mixing.CONFIGURATIONS in self.mixing
        late = self.config.join == "late"
        state = self.encoder.nodes(segment, 1 if late else len(batch), apart)
        if not late:
            state = self.encoder.join(state, segment, batch)
        state = self.stem(state, segment, self.config_sparse)
        for place, block in enumerate(cast("Iterable[Block]", self.blocks)):
            if self.config.join == "every" and place > 0:
                state = self.encoder.join(state, segment, batch)
            state = block(state, segment, self.config_sparse)
        if late:
            state = self.encoder.join(state.repeated(len(batch)), segment, batch)
        state = self.post_layers(state, segment, self.config_sparse)
        configurable = segment.reached(0)
        if segment.pooled is not None:
            pooled = segment.pooled.cpu().numpy()
            state, configurable = state.only(pooled), int(pooled[:configurable].sum())
        return torch.cat([POOLINGS[name](state, configurable) for name in self.config.pooling], dim=-1)

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
        distinct, inverse = graph.distinct(rows, j)
        return self.embed(segment, graph.configurations(distinct, segment))[inverse]

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
