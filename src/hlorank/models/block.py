"""A block of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from torch import Tensor, nn

from hlorank.config import ConfigError, ModelConfig
from hlorank.models.compression.plan import Sparse, StepIndex
from hlorank.models.compression.recipe import Residual, Start, Step
from hlorank.models.layers.layer import Layer, run
from hlorank.models.layers.registry import RESIDUAL, make_layer, widths
from hlorank.models.propagation import propagate


class Block(nn.Module):
    """Layers one after the other; `residual` adds the input of the block.

    Args:
        names: the names of the layers.
        config: the settings of the model.
        key: the key of the configuration with the names.
        width: of the states before; by default those after, `model.width`.

    Attributes:
        names: the names of the layers.

    Raises:
        ConfigError: `names` holds a name that is no layer, or the widths of the states do not fit.
    """

    def __init__(self, names: Sequence[str], config: ModelConfig, key: str, width: int | None = None) -> None:
        super().__init__()
        self.names = tuple(names)
        before, *after = widths(names, config)
        added = {size for name, size in zip(names, after, strict=True) if name == RESIDUAL}
        if {before, *added} - {width or config.width}:
            raise ConfigError(
                f"{key}: configuration_gate has states of half the width before it; a map, such as linear or sage, "
                "must come before it, with no residual between them"
            )
        self.layers = nn.ModuleList(
            make_layer(name, config, key, size) for name, size in zip(names, after, strict=True) if name != RESIDUAL
        )

    def named_layers(self) -> Iterator[tuple[str, Layer]]:
        """Yield the layers with their names, without `residual`."""
        names = (name for name in self.names if name != RESIDUAL)
        yield from zip(names, (cast("Layer", layer) for layer in self.layers), strict=True)

    @property
    def steps(self) -> list[Step]:
        """The declarations of the block, for plans: its start, then a step for each of `names`."""
        layers = self.named_layers()
        return [Start(), *(Residual() if name == RESIDUAL else next(layers)[1].declaration for name in self.names)]

    def forward(self, values: Tensor, indices: Iterator[StepIndex[Tensor]]) -> Tensor:
        """Compute the states after the block.

        Args:
            values: (states, width) before it.
            indices: the indices of the plan for `steps`, and those after them.

        Returns:
            (states after, width).
        """
        before, layers = values, self.named_layers()
        next(indices)
        for name in self.names:
            index = next(indices)
            if name == RESIDUAL:
                values = values + (before if index is None else propagate(before, cast("Sparse[Tensor]", index)))
            else:
                values = run(next(layers)[1], values, index)
        return values
