"""LAYERS, the extension point: layers by the names that the configuration uses."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import nn
from torch.nn.functional import normalize

from hlorank.config import ConfigError, ExtensionPoint, ModelConfig, find
from hlorank.models.layers.attention import ConfigurationAttention, Gps, LinearAttention
from hlorank.models.layers.layer import ChannelAttention, Dropout, InstanceNorm, Layer, RowLayer, mlp
from hlorank.models.layers.message_passing import Gatv2, Gcn, GraphConv, Sage
from hlorank.models.layers.operator import Operator, is_operator, own_operator

RESIDUAL = "residual"
"""Adds the input of the block; allowed where the names of layers are."""
_LEAK = 0.2  # of the official baselines


class LayerKind(NamedTuple):
    """An entry of LAYERS."""

    # function of the settings of the model and the width of the states after the layer
    make: Callable[[ModelConfig, int], Layer]
    maps: bool = False  # the layer reads states of `model.width`, whatever the width after it; others keep the width
    widens: int = 1  # as `Layer.widens`


def _from_class(name: str, kind: Any) -> LayerKind | None:
    """Return the entry of a class of another package; None if the class is of the wrong kind."""
    if isinstance(kind, type) and issubclass(kind, Layer) and hasattr(kind, "mixing"):
        return LayerKind(lambda config, width: kind(width, **config.operators.get(name, {})), widens=kind.widens)
    if is_operator(kind):
        return LayerKind(lambda config, width: Operator(kind, width, config.directions, config.operators.get(name, {})))
    return None


class _Layers(ExtensionPoint[LayerKind]):
    """Layers by name; message passing operators of PyTorch Geometric are found, but not listed."""

    def __missing__(self, name: str) -> LayerKind:
        kind = own_operator(name)
        operator = None if kind is None else _from_class(name, kind)
        return super().__missing__(name) if operator is None else operator


LAYERS: ExtensionPoint[LayerKind] = _Layers(
    {
        "sage": LayerKind(lambda config, width: Sage(config.width, width, config.directions), maps=True),
        "graph_conv": LayerKind(lambda config, width: GraphConv(config.width, width, config.directions), maps=True),
        "gcn": LayerKind(lambda config, width: Gcn(config.width, width, config.directions), maps=True),
        "gatv2": LayerKind(lambda config, width: Gatv2(width, config.heads, config.directions)),
        "gps": LayerKind(lambda config, width: Gps(width, config.heads, config.directions)),
        "linear_attention": LayerKind(lambda config, width: LinearAttention(width, config.heads)),
        "configuration_attention": LayerKind(lambda _, width: ConfigurationAttention(width)),
        "channel_attention": LayerKind(lambda _, width: RowLayer(ChannelAttention(width))),
        "instance_norm": LayerKind(lambda _, width: InstanceNorm(width)),
        "dropout": LayerKind(lambda config, _: Dropout(config.dropout)),
        "layer_norm": LayerKind(lambda _, width: RowLayer(nn.LayerNorm(width))),
        # Hamilton et al., NeurIPS 2017, arXiv 1706.02216, algorithm 1, line 7; a state of zeros stays.
        "l2_norm": LayerKind(lambda *_: RowLayer(partial(normalize, dim=-1))),
        "mlp": LayerKind(lambda config, width: RowLayer(mlp(config.width, config.width, width)), maps=True),
        "linear": LayerKind(lambda config, width: RowLayer(nn.Linear(config.width, width)), maps=True),
        "gelu": LayerKind(lambda *_: RowLayer(nn.GELU())),
        "relu": LayerKind(lambda *_: RowLayer(nn.ReLU())),
        "leaky_relu": LayerKind(lambda *_: RowLayer(nn.LeakyReLU(_LEAK))),
    },
    "a class that derives from torch_geometric.nn.MessagePassing or from hlorank.models.layers.layer.Layer",
    _from_class,
    others=[RESIDUAL],
)
"""Layers by their names in model.stem, model.block and model.post_layers."""


def widths(names: Sequence[str], config: ModelConfig, key: str) -> list[int]:
    """Return the width of the states before each layer and after the last one, which is `model.width`.

    A layer that widens states reads narrower ones, which are the result of the nearest map before it.
    """
    width, reversed_widths = config.width, [config.width]
    for name in reversed(names):
        if name != RESIDUAL:
            kind = find(LAYERS, key, name)
            if width % kind.widens:
                raise ConfigError(f"model.width={config.width}: {name} needs a multiple of {kind.widens} after it")
            width = config.width if kind.maps else width // kind.widens
        reversed_widths.append(width)
    return reversed_widths[::-1]


def make_layer(name: str, config: ModelConfig, key: str, width: int) -> Layer:
    """Make a layer by the name that the configuration's `key` has; `width` is the width of the states after it.

    A layer that is refused is a ConfigError of its arguments in `model.operators`, or of `key` where it has none.
    """
    kind = find(LAYERS, key, name)
    try:
        return kind.make(config, width)
    except ConfigError:
        raise
    except (TypeError, ValueError, AssertionError) as error:
        place = f"model.operators.{name}" if config.operators.get(name) else f"{key}={name}"
        raise ConfigError(f"{place}: {error}") from None
