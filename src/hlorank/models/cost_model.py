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
from hlorank.models.encoder import Encoder
from hlorank.models.inputs import ConfigurationBatch, GraphInputs, InputSizes, Segment
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.node_states import NodeStates

POOLINGS: Mapping[str, Callable[[NodeStates, int], Tensor]] = MappingProxyType(
    {
        "mean": lambda states, _: states.sum() / len(states.colouring.colour_of),
        "sum": lambda states, _: states.sum(),
        "max": lambda states, _: states.max(),
        "l2_sum": lambda states, _: normalize(states.sum(), dim=-1),
        "l2_configurable_sum": lambda states, configurable: normalize(states.first(configurable).sum(), dim=-1),
    }
)
"""Functions of node states and the number of configurable nodes, the first ones, to (configurations, width)."""
_HEADS: Mapping[str, Callable[[int, int], nn.Module]] = MappingProxyType(
    {
        "mlp": lambda inputs, width: nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, 1)),
        "linear": lambda inputs, _: nn.Linear(inputs, 1),
    }
)


class CostModel(nn.Module):
    """A ranker of configurations from embeddings of a graph's segments; a larger score means slower.

    The score of a configuration depends on the other configurations of a call only if a layer mixes configurations.

    Args:
        config: the settings of the encoder, the layers, the pooling and the head.
        sizes: the sizes of the inputs.
        aggregation: mean or sum over a graph's segments.

    Attributes:
        mixing: the kinds of mixing among the layers.
        compress: compute each colour once, up to the first layer that is dense only; False computes the dense form,
            every node under every configuration, with equal results.
        deduplicate: compute each distinct local configuration of a segment once, unless a layer mixes configurations;
            False computes every row.

    Raises:
        ConfigError: `config` names an unknown layer, or does not fit one of its layers.
    """

    def __init__(self, config: ModelConfig, sizes: InputSizes, aggregation: str) -> None:
        super().__init__()
        self.config = config
        self.sizes = sizes
        self.aggregation = aggregation
        self.compress = True
        self.deduplicate = True
        self.encoder = Encoder(config, sizes)
        self.stem = Block(config.stem, config, "model.stem")
        self.blocks = nn.ModuleList(Block(config.block, config, "model.block") for _ in range(config.blocks))
        self.post_layers = Block(config.post_layers, config, "model.post_layers")
        self.mixing = frozenset(layer.mixing for _, layer in self._layers)
        self.head = _HEADS[config.head](self.embedding_width, config.width)

    @property
    def _all_blocks(self) -> Iterable[Block]:
        return [self.stem, *cast("Iterable[Block]", self.blocks), self.post_layers]

    @property
    def _layers(self) -> list[tuple[str, Layer]]:
        return [layer for block in self._all_blocks for layer in block.named_layers()]

    @property
    def computed_rows(self) -> int:
        """Number of node states that the layers which mix states have computed so far."""
        return sum(block.computed_rows for block in self._all_blocks)

    def dense_rows(self, segment: Segment, configurations: int) -> int:
        """Return the number of node states that layers which mix states compute in the dense form."""
        return sum(layer.mixing is not Mixing.ROW for _, layer in self._layers) * segment.nodes * configurations

    def layers_that_mix(self, mixing: Mixing) -> str:
        """Return the names of the layers of this mixing, for messages."""
        return ", ".join(dict.fromkeys(name for name, layer in self._layers if layer.mixing is mixing))

    @property
    def deduplicates(self) -> bool:
        """True if rows with equal local configurations share one embedding."""
        return self.deduplicate and Mixing.CONFIGURATIONS not in self.mixing

    @property
    def embedding_width(self) -> int:
        """Length of the embedding of a segment."""
        return self.config.width * len(self.config.pooling)

    def max_varied_nodes(self, segment: Segment) -> int:
        """Return an upper bound of the number of nodes that have a state for each configuration in some layer."""
        layers = [layer for _, layer in self._layers]
        if not self.compress or any(layer.dense_only for layer in layers):
            return segment.nodes
        return segment.k_hop_prefix(sum(layer.mixing is Mixing.NEIGHBOURS for layer in layers))

    def check_halo(self, halo: bool) -> None:
        """Check that the model can embed segments with a halo, if there are any.

        Raises:
            ConfigError: the segments have a halo, and a layer mixes over the segment.
        """
        if halo and Mixing.SEGMENT in self.mixing:
            raise ConfigError(
                f"model.block: {self.layers_that_mix(Mixing.SEGMENT)} would mix the nodes of a halo with those of the "
                "segment; leave it out, or set partition.halo to 0"
            )

    def embed(self, segment: Segment, batch: ConfigurationBatch) -> Tensor:
        """Compute F, the embedding of one segment under some configurations: (configurations, width * poolings).

        Raises:
            ConfigError: the segment has a halo, and a layer mixes over the segment.
        """
        self.check_halo(segment.pooled is not None)
        if self.training and self.config.drop_edge > 0:
            kept = torch.rand(len(segment.edges)).numpy() >= self.config.drop_edge
            segment = replace(segment, edges=segment.edges.only(kept))
        # Nodes with equal features differ by dropout masks; layers that mix configurations run node by node.
        share = not (self.training and self.config.dropout > 0) and Mixing.CONFIGURATIONS not in self.mixing
        late = self.config.join == "late"
        states = self.encoder.nodes(segment, 1 if late else len(batch), share)
        if not late:
            states = self.encoder.join(states, segment, batch)
        states = self.stem(states, segment, self.compress)
        for place, block in enumerate(cast("Iterable[Block]", self.blocks)):
            if self.config.join == "every" and place > 0:
                states = self.encoder.join(states, segment, batch)
            states = block(states, segment, self.compress)
        if late:
            states = self.encoder.join(states.repeat(len(batch)), segment, batch)
        states = self.post_layers(states, segment, self.compress)
        configurable = segment.k_hop_prefix(0)
        if segment.pooled is not None:
            pooled = segment.pooled.cpu().numpy()
            states, configurable = states.restrict(pooled), int(pooled[:configurable].sum())
        return torch.cat([POOLINGS[name](states, configurable) for name in self.config.pooling], dim=-1)

    def embed_rows(self, graph: GraphInputs, j: int, rows: NDArray[np.int64]) -> Tensor:
        """Compute F for distinct configurations of a graph.

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
        """Compute A, the embedding of a graph, from the sum over its segments; arguments as for `score`, same shape."""
        return total / segments if self.aggregation == "mean" else total

    def score(self, total: Tensor, segments: int) -> Tensor:
        """Compute scores by A and H from summed segment embeddings.

        Args:
            total: (configurations, width * poolings), the sum over the graph's segments.
            segments: J, the number of segments of the graph.

        Returns:
            (configurations,) scores.
        """
        scores: Tensor = self.head(self.aggregate(total, segments))
        return scores.squeeze(-1)
