"""The cost model: segment encoder F, aggregation A and head H of Graph Segment Training (arXiv 2305.12322)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding as gathered
from torch.nn.functional import normalize

from hlorank.config import ConfigError, ExtensionPoint, ModelConfig, find, is_function
from hlorank.models.compression.declarations import Join, Mixing, Recipe, Residual, Start, Step
from hlorank.models.compression.plan import JoinIndex, Plan, PoolIndex, Sparse, StepIndex
from hlorank.models.encoder import Encoder
from hlorank.models.graph_inputs import InputSizes
from hlorank.models.layers.layer import Layer, run
from hlorank.models.layers.registry import RESIDUAL, make_layer, widths
from hlorank.models.plan_tensors import max_nodes, propagate, sum_configurable_nodes, sum_nodes


class Block(nn.Module):
    """Layers by the names under the configuration's `key`, one after the other; `residual` adds the block's input.

    The states before have `width`, by default `model.width`.
    """

    def __init__(self, names: Sequence[str], config: ModelConfig, key: str, width: int | None = None) -> None:
        super().__init__()
        self.names = tuple(names)
        before, *after = widths(names, config, key)
        added = {size for name, size in zip(names, after, strict=True) if name == RESIDUAL}
        if {before, *added} - {width or config.width}:
            raise ConfigError(
                f"{key}: before a layer that widens states must come a map, such as linear or sage, with no residual "
                "between them"
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
        """The declarations of the block, for plans: its start, then a step for each name."""
        layers = self.named_layers()
        return [Start(), *(Residual() if name == RESIDUAL else next(layers)[1].declaration for name in self.names)]

    def forward(self, values: Tensor, indices: Iterator[StepIndex[Tensor]]) -> Tensor:
        """Compute (states before, width) to (states after, width), along the next indices of a plan."""
        before, layers = values, self.named_layers()
        next(indices)
        for name in self.names:
            index = next(indices)
            if name == RESIDUAL:
                matrix = cast("Sparse[Tensor] | None", index)
                values = values + before if matrix is None else propagate(before, matrix, values)
            else:
                values = run(next(layers)[1], values, index)
        return values


Pooling = Callable[[Tensor, PoolIndex[Tensor]], Tensor]

POOLINGS: ExtensionPoint[Pooling] = ExtensionPoint(
    {
        "mean": lambda values, index: sum_nodes(values, index) / index.nodes,
        "sum": lambda values, index: sum_nodes(values, index),
        "max": lambda values, index: max_nodes(values, index),
        "l2_configurable_sum": lambda values, index: normalize(sum_configurable_nodes(values, index), dim=-1),
    },
    "a function of states and the index of a plan",
    lambda _, found: found if is_function(found, 2) else None,
)
"""Functions of (states, width) and the index of a plan to (segments * configurations, width), segment by segment."""
_HEADS: Mapping[str, Callable[[int, int], nn.Module]] = {
    "mlp": lambda inputs, width: nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, 1)),
    "linear": lambda inputs, _: nn.Linear(inputs, 1),
}


class CostModel(nn.Module):
    """A ranker of configurations from embeddings of a graph's segments; a larger score means slower.

    The score of a configuration depends on the other configurations of a call only if a layer mixes configurations.
    Plans are built from the `recipe`. The aggregation is the mean or the sum over a graph's segments.
    """

    def __init__(self, config: ModelConfig, sizes: InputSizes, aggregation: str) -> None:
        super().__init__()
        self.config = config
        self.sizes = sizes
        self.aggregation = aggregation
        # A layer of the stem that widens states needs narrow ones before it.
        first = widths(config.stem, config, "model.stem")[0] if config.join == "early" else config.width
        self.encoder = Encoder(config, sizes, first)
        self.stem = Block(config.stem, config, "model.stem", first)
        self.blocks = nn.ModuleList(Block(config.block, config, "model.block") for _ in range(config.blocks))
        self.post_layers = Block(config.post_layers, config, "model.post_layers")
        steps = [step for part in self._parts() for step in ([Join()] if part is None else part.steps)]
        self.recipe = Recipe(tuple(steps), config.join, pool_configurable="l2_configurable_sum" in config.pooling)
        for name in config.pooling:
            find(POOLINGS, "model.pooling", name)
        self.head = _HEADS[config.head](self.embedding_width, config.width)

    def _parts(self) -> Iterator[Block | None]:
        """Yield the blocks in their order, and None where the configurations join."""
        join = self.config.join
        if join != "late":
            yield None
        yield self.stem
        for place, block in enumerate(self.blocks):
            if place > 0 and join == "every":
                yield None
            yield cast("Block", block)
        if join == "late":
            yield None
        yield self.post_layers

    def layers_that_mix(self, mixing: Mixing) -> str:
        """Return the names of the layers of this mixing, for messages."""
        layers = (layer for part in self._parts() if part is not None for layer in part.named_layers())
        return ", ".join(dict.fromkeys(name for name, layer in layers if layer.mixing is mixing))

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.encoder.numeric.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.encoder.numeric.weight.dtype

    @property
    def embedding_width(self) -> int:
        """Length of the embedding of a segment."""
        return self.config.width * len(self.config.pooling)

    def forward(self, plan: Plan[Tensor]) -> Tensor:
        """Compute F, the embeddings of segments: (segments * configurations, width * poolings), segment by segment.

        Shapes alone decide what is computed, so that nothing waits for a device.
        """
        indices = iter(plan.steps)
        values = self.encoder.nodes(plan)
        for part in self._parts():
            if part is None:
                values = self.encoder.join(values, cast("JoinIndex[Tensor]", next(indices)), plan)
            else:
                values = part(values, indices)
        embedding = torch.cat([POOLINGS[name](values, plan.pool) for name in self.config.pooling], dim=-1)
        return embedding if plan.inverse is None else gathered(plan.inverse, embedding)

    def score(self, total: Tensor, segments: int) -> Tensor:
        """Compute scores, (configurations,), by A and H from the sum of the embeddings of a graph's segments."""
        scores: Tensor = self.head(total / segments if self.aggregation == "mean" else total)
        return scores.squeeze(-1)
