"""Section `model`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from hlorank.config.extension_point import registered
from hlorank.config.section import Section

LayerName = Annotated[str, registered("layers", "residual")]
LayerNames = Annotated[list[LayerName], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
Rate = Annotated[float, Field(ge=0, lt=1)]
MAX_LAYERS = 1000
Directions = Literal["separate", "shared", "users"]


class ModelConfig(Section):
    """The cost model: an encoder, a stem, a block of layers that is repeated, layers after it, pooling, a head."""

    width: int = Field(ge=1)
    """Width of node states."""
    stem: LayerNames
    """Layers by name, between the encoder and the first block."""
    blocks: int = Field(ge=0)
    """Number of blocks, each with weights of its own."""
    block: LayerNames
    """Layers by name, in their order, or one name; `residual` adds the input of the block."""
    post_layers: LayerNames
    """Layers by name, between the last block and the pooling."""
    pooling: list[Annotated[str, registered("poolings")]] = Field(min_length=1)
    """Poolings over a segment's nodes, concatenated: mean, sum, max, l2_sum (the sum scaled to unit L2 norm),
    l2_configurable_sum (that of the configurable nodes)."""
    head: Literal["mlp", "linear"]
    """Map from the embedding of a graph to its score; linear with the pooling sum adds up one number for each node."""
    directions: Directions
    """Weights for the edges from operands and for those from users; users: messages pass only from users."""
    join: Literal["early", "late", "every"]
    """early: the configuration joins its nodes before the stem; late: after the blocks; every: early, and before each
    block but the first."""
    override_layout: bool
    """The output layout of a configuration replaces the node's own (early join)."""
    opcode_width: int = Field(ge=1)
    """Width of the learned opcode embedding."""
    opcode_init: bool
    """Start the opcode embedding from featurize's co-occurrence embeddings (then the widths must agree)."""
    layout_width: int = Field(ge=1)
    """Width of the embedding of one layout value, shared by nodes and configurations."""
    layout_sizes: bool
    """Configured layouts come with the sizes of the dimensions in the order of the layout."""
    layout_moves: bool
    """Configured layouts come with what copies to them move (featurize.derived)."""
    tile_bins: int = Field(ge=0)
    """Bins of the piecewise linear encoding of each column of tiles; 0 reads the columns as they are."""
    heads: int = Field(ge=1)
    """Heads of layers with multi-head attention; divides the width."""
    dropout: Rate
    """Rate of the layers `dropout`; all configurations of a step share one mask."""
    drop_edge: Rate
    """Share of the edges that a training step leaves out (DropEdge, Rong et al., arXiv 1907.10903)."""
    operators: dict[str, dict[str, bool | int | float | str | None]]
    """Arguments of operators of PyTorch Geometric and of layers of plugins, by their names, besides the widths; all
    operators take self_loops, and those with edge weights edge_weight: sum, mean or symmetric."""
    permutations: int = Field(ge=1)
    """Orders of the configurations over which a trained model averages, if it mixes configurations."""

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        layers = len(self.stem) + self.blocks * len(self.block) + len(self.post_layers)
        return self.require(
            layers <= MAX_LAYERS, "blocks", f"at most {MAX_LAYERS} layers with those of stem and post_layers"
        )

    @model_validator(mode="after")
    def _check_override_layout(self) -> Self:
        return self.require(
            self.join == "early" or not self.override_layout, "override_layout", f"false with join={self.join}"
        )
