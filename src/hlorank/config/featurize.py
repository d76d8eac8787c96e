"""Section `featurize`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hlorank.config.section import Section

Derived = Literal["tile_shares", "tile_remainders", "tile_runs", "tile_loops", "layout_moves"]


class FeaturizeConfig(Section):
    """Stage featurize."""

    scaling: Literal["standard", "minmax"]
    """standard (mean 0, variance 1) or minmax (0 to 1), fitted on the train split."""
    log_range: float = Field(ge=0)
    """Columns whose values on the train split span more than this are first transformed by sign(x) log(1 + |x|)."""
    opcode_width: int = Field(ge=1)
    """Width of the opcode embeddings computed from co-occurrence along edges."""
    prune_hops: int | None = Field(ge=0)
    """Keep the nodes within this many edges of a configurable node; null and no prune_paths keep all."""
    prune_paths: bool
    """Also keep the nodes on short paths that connect the configurable nodes."""
    prune_edges: bool
    """Leave out the edges that touch no configurable node."""
    virtual_nodes: bool
    """Merge the nodes that are not kept into virtual nodes, instead of leaving them out."""
    dims_128: bool
    """Add each dimension mod 128 and div 128: the registers of a TPU are 128 wide."""
    walk_steps: int = Field(ge=0, le=1000)
    """Add random-walk positional encodings of this many steps; 0 adds none."""
    protobuf: bool
    """Add the content of <graph>.extra.npz: dot, gather and scatter dimensions, operand shapes."""

    derived: list[Derived]
    """Groups of columns derived from shapes. Of tiles: tile_shares (sizes, and shares of the dimensions that they cut),
    tile_remainders (padding), tile_runs (contiguous bytes), tile_loops (the innermost loop). Of layouts: layout_moves
    (copies to other layouts than the graph's own; see model.layout_moves)."""

    @property
    def reduces(self) -> bool:
        """True where layout graphs lose nodes."""
        return self.prune_hops is not None or self.prune_paths

    @model_validator(mode="after")
    def _check_virtual_nodes(self) -> Self:
        return self.require(
            self.reduces or not self.virtual_nodes,
            "virtual_nodes",
            "false, or prune_hops or prune_paths too, which choose the nodes that are not merged",
        )
