"""A block of layers, run in compressed or dense form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from torch import nn

from hlorank.config import ModelConfig
from hlorank.models.inputs import Segment
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.layers.registry import RESIDUAL, make_layer
from hlorank.models.node_states import NodeStates


class Block(nn.Module):
    """Layers one after the other; `residual` adds the input of the block.

    Args:
        names: the names of the layers.
        config: the settings of the model.
        key: the key of the configuration with the names.

    Attributes:
        names: the names of the layers.
        computed_rows: number of node states that the layers which mix states have computed so far.

    Raises:
        ConfigError: `names` holds a name that is no layer.
    """

    def __init__(self, names: Sequence[str], config: ModelConfig, key: str) -> None:
        super().__init__()
        self.names = tuple(names)
        self.layers = nn.ModuleList(make_layer(name, config, key) for name in names if name != RESIDUAL)
        self.computed_rows = 0

    def named_layers(self) -> Iterator[tuple[str, Layer]]:
        """Yield the layers with their names, without `residual`."""
        names = (name for name in self.names if name != RESIDUAL)
        yield from zip(names, (cast("Layer", layer) for layer in self.layers), strict=True)

    def forward(self, states: NodeStates, segment: Segment, compress: bool) -> NodeStates:
        """Compute the states after the block.

        Args:
            states: the states before it.
            segment: the nodes.
            compress: compute each colour once, up to the first layer that is dense only; otherwise every node under
                every configuration.
        """
        before, layers = states, self.named_layers()
        for name in self.names:
            if name == RESIDUAL:
                states = states.plus(before)
                continue
            _, layer = next(layers)
            # Where no states are equal, the dense form has less to do.
            if compress and not states.colouring.is_identity:
                states = layer.forward_compressed(states, segment)
            else:
                states = NodeStates.of_dense(layer(states.dense(), segment))
            if layer.mixing is not Mixing.ROW:
                self.computed_rows += len(states.colouring)
        return states
