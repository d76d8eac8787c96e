"""A block of layers, with the choice of the form that computes least."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from torch import nn

from hlorank.config import ModelConfig
from hlorank.models.compression.colouring import NodeStates
from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.layers.registry import RESIDUAL, make_layer


class Block(nn.Module):
    """Layers one after the other; where `residual` stands, what came into the block is added.

    Args:
        names: of the layers.
        config: of the model.
        key: where the names stand in the configuration.

    Attributes:
        names: of the layers.
        computed_rows: node states that the layers which mix states have computed so far.

    Raises:
        ConfigError: there is no such layer.
    """

    def __init__(self, names: Sequence[str], config: ModelConfig, key: str) -> None:
        super().__init__()
        self.names = tuple(names)
        self.layers = nn.ModuleList(make_layer(name, config, key) for name in names if name != RESIDUAL)
        self.computed_rows = 0

    def mixing_layers(self) -> Iterator[tuple[str, Mixing]]:
        """The names of the layers that mix states, and how far they do."""
        named = (name for name in self.names if name != RESIDUAL)
        for name, layer in zip(named, self.layers, strict=True):
            if (mixing := cast("Layer", layer).mixing) is not Mixing.ROW:
                yield name, mixing

    def forward(self, state: NodeStates, segment: Segment, config_sparse: bool) -> NodeStates:
        """The states after the block.

        Args:
            state: the states before.
            segment: whose nodes these are.
            config_sparse: nodes under configurations that nothing sets apart share one state, up to the first layer
                that mixes over the segment; False computes every node under every configuration.
        """
        before, layers = state, iter(self.layers)
        for name in self.names:
            if name == RESIDUAL:
                state = state.plus(before)
                continue
            layer = cast("Layer", next(layers))
            # Where nothing is shared the dense form has less to do.
            sparse = config_sparse and layer.mixing is not Mixing.SEGMENT and not state.is_plain
            state = layer.spread(state, segment) if sparse else NodeStates.of(layer(state.dense(), segment))
            if layer.mixing is not Mixing.ROW:
                self.computed_rows += len(state.rows)
        return state
