"""Section `featurize`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
    """Keep the nodes within this many edges of a configurable node; null keeps all."""
    prune_edges: bool
    """Leave out the edges that touch no configurable node."""
    protobuf: bool
    """Add the content of <graph>.extra.npz: dot, gather and scatter dimensions, operand shapes."""

    derived: list[Derived]
    """Groups of columns derived from shapes. Of tiles: tile_shares (sizes, and shares of the dimensions that they cut),
    tile_remainders (padding), tile_runs (contiguous bytes), tile_loops (the innermost loop). Of layouts: layout_moves
    (copies to other layouts than the graph's own; see model.layout_moves)."""
