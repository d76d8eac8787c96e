"""LAYERS, the extension point: layers by the names that the configuration uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from hlorank.config import ConfigError, ExtensionPoint, ModelConfig, find
from hlorank.models.layers.attention import ConfigurationAttention, ConfigurationGate, Gps, LinearAttention
from hlorank.models.layers.channel_attention import ChannelAttention
from hlorank.models.layers.configuration_heads import ConfigurationHeads
from hlorank.models.layers.edge_mlp import EdgeMlp
from hlorank.models.layers.layer import Dropout, InstanceNorm, L2Norm, Layer, RowLayer, mlp
from hlorank.models.layers.message_passing import Gatv2, Gcn, GraphConv, Sage
from hlorank.models.layers.operator import Operator, is_operator, own_operator
from hlorank.models.layers.squeeze_excite import SqueezeExcite

_LEAK = 0.2  # of the official baselines


LayerFunction = Callable[[ModelConfig, int], Layer]


def _from_class(name: str, kind: Any) -> LayerFunction | None:
    """Return the function that makes a layer of a class of another package; None if the class is of the wrong kind."""
    if isinstance(kind, type) and issubclass(kind, Layer) and hasattr(kind, "mixing"):
        return lambda config, width: _made(name, kind, width, config.operators.get(name, {}))
    if is_operator(kind):
        return lambda config, width: Operator(name, kind, width, config.directions, config.operators.get(name, {}))
    return None


def _made(name: str, kind: type[Layer], width: int, arguments: Mapping[str, Any]) -> Layer:
    try:
        return kind(width, **arguments)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"model.operators.{name}: {error}") from None


class _Layers(ExtensionPoint[LayerFunction]):
    """Layers by name; message passing operators of PyTorch Geometric are found, but not listed."""

    def __missing__(self, name: str) -> LayerFunction:
        kind = own_operator(name)
        operator = None if kind is None else _from_class(name, kind)
        return super().__missing__(name) if operator is None else operator


LAYERS: ExtensionPoint[LayerFunction] = _Layers(
    {
        "sage": lambda config, width: Sage(config.width, width, config.directions),
        "graph_conv": lambda config, width: GraphConv(config.width, width, config.directions),
        "gcn": lambda config, width: Gcn(config.width, width, config.directions),
        "channel_attention": lambda _, width: RowLayer(ChannelAttention(width)),
        "gatv2": lambda config, width: Gatv2(width, config.heads, config.directions),
        "edge_mlp": lambda config, width: EdgeMlp(width, config.directions),
        "gps": lambda config, width: Gps(width, config.heads, config.directions),
        "linear_attention": lambda config, width: LinearAttention(width, config.heads),
        "squeeze_excite": lambda _, width: SqueezeExcite(width),
        "configuration_attention": lambda _, width: ConfigurationAttention(width),
        "configuration_gate": lambda *_: ConfigurationGate(),
        "configuration_heads": lambda config, width: ConfigurationHeads(width, config.heads),
        "instance_norm": lambda _, width: InstanceNorm(width),
        "dropout": lambda config, _: Dropout(config.dropout),
        "layer_norm": lambda _, width: RowLayer(nn.LayerNorm(width)),
        "l2_norm": lambda *_: RowLayer(L2Norm()),
        "mlp": lambda config, width: RowLayer(mlp(config.width, config.width, width)),
        "linear": lambda config, width: RowLayer(nn.Linear(config.width, width)),
        "gelu": lambda *_: RowLayer(nn.GELU()),
        "relu": lambda *_: RowLayer(nn.ReLU()),
        "leaky_relu": lambda *_: RowLayer(nn.LeakyReLU(_LEAK)),
    },
    "a class that derives from torch_geometric.nn.MessagePassing or from hlorank.models.layers.layer.Layer",
    _from_class,
)
"""Functions that make a layer, by its name in model.stem, model.block and model.post_layers, from the configuration and
the width of the states after it."""

_MAPS = frozenset({"sage", "graph_conv", "gcn", "mlp", "linear"})
_GATE = "configuration_gate"
RESIDUAL = "residual"
"""Adds the input of the block; allowed where the names of layers are."""


def widths(names: Sequence[str], config: ModelConfig) -> list[int]:
    """Return the width of the states before each layer and after the last one, which is `model.width`.

    `configuration_gate` doubles the width. The nearest map before it has the half as its result, and reads the whole.

    Args:
        names: layers in their order, and `residual`.
        config: the settings of the model.

    Raises:
        ConfigError: the width has no half.
    """
    found = [config.width]
    for name in reversed(names):
        if name == _GATE and found[-1] % 2:
            raise ConfigError(f"model.width={config.width}: configuration_gate needs states of half the width")
        found.append(config.width if name in _MAPS else found[-1] // 2 if name == _GATE else found[-1])
    return found[::-1]


def make_layer(name: str, config: ModelConfig, key: str, width: int) -> Layer:
    """Make a layer.

    Args:
        name: the name of the layer.
        config: its settings.
        key: the key of the configuration with the name.
        width: of the states after it.

    Raises:
        ConfigError: neither LAYERS nor PyTorch Geometric has a layer of that name, or `config` does not fit it.
    """
    return find(LAYERS, key, name)(config, width)
