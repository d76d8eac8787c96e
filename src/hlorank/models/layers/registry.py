"""LAYERS, the extension point: layers by the names that the configuration uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from hlorank.config import ModelConfig, find
from hlorank.models.layers.channel_attention import ChannelAttention
from hlorank.models.layers.configuration_attention import ConfigurationAttention
from hlorank.models.layers.configuration_heads import ConfigurationHeads
from hlorank.models.layers.dropout import Dropout
from hlorank.models.layers.edge_mlp import EdgeMlp
from hlorank.models.layers.gatv2 import Gatv2
from hlorank.models.layers.gcn import Gcn
from hlorank.models.layers.gps import Gps
from hlorank.models.layers.graph_conv import GraphConv
from hlorank.models.layers.instance_norm import InstanceNorm
from hlorank.models.layers.layer import Layer, RowLayer
from hlorank.models.layers.linear_attention import LinearAttention
from hlorank.models.layers.operator import Operator, is_operator
from hlorank.models.layers.parts import L2Norm, mlp
from hlorank.models.layers.sage import Sage
from hlorank.models.layers.squeeze_excite import SqueezeExcite

_LEAK = 0.2  # of the official baselines


class _Layers(dict[str, Callable[[ModelConfig], Layer]]):
    """Layers by name; message passing operators of PyTorch Geometric are found, but not listed."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or is_operator(str(name))

    def __missing__(self, name: str) -> Callable[[ModelConfig], Layer]:
        if not is_operator(name):
            raise KeyError(name)
        return lambda config: Operator(name, config.width, config.shared_directions, config.operators.get(name, {}))


LAYERS: Mapping[str, Callable[[ModelConfig], Layer]] = _Layers(
    {
        "sage": lambda config: Sage(config.width, config.shared_directions),
        "graph_conv": lambda config: GraphConv(config.width, config.shared_directions),
        "gcn": lambda config: Gcn(config.width, config.shared_directions),
        "channel_attention": lambda config: RowLayer(ChannelAttention(config.width)),
        "gatv2": lambda config: Gatv2(config.width, config.heads, config.shared_directions),
        "edge_mlp": lambda config: EdgeMlp(config.width, config.shared_directions),
        "gps": lambda config: Gps(config.width, config.heads, config.shared_directions),
        "linear_attention": lambda config: LinearAttention(config.width, config.heads),
        "squeeze_excite": lambda config: SqueezeExcite(config.width),
        "configuration_attention": lambda config: ConfigurationAttention(config.width),
        "configuration_heads": lambda config: ConfigurationHeads(config.width, config.heads),
        "instance_norm": lambda config: InstanceNorm(config.width),
        "dropout": lambda config: Dropout(config.dropout),
        "layer_norm": lambda config: RowLayer(nn.LayerNorm(config.width)),
        "l2_norm": lambda _: RowLayer(L2Norm()),
        "mlp": lambda config: RowLayer(mlp(config.width, config.width, config.width)),
        "linear": lambda config: RowLayer(nn.Linear(config.width, config.width)),
        "gelu": lambda _: RowLayer(nn.GELU()),
        "relu": lambda _: RowLayer(nn.ReLU()),
        "leaky_relu": lambda _: RowLayer(nn.LeakyReLU(_LEAK)),
    }
)
"""Functions that make a layer, by its name in model.stem, model.block and model.post_layers."""

RESIDUAL = "residual"
"""Adds the input of the block; allowed where the names of layers are."""


def make_layer(name: str, config: ModelConfig, key: str) -> Layer:
    """Make a layer.

    Args:
        name: the name of the layer.
        config: its width and other settings.
        key: the key of the configuration with the name.

    Raises:
        ConfigError: neither LAYERS nor PyTorch Geometric has a layer of that name, or `config` does not fit it.
    """
    layer: Layer = find(LAYERS, key, name)(config)
    return layer
