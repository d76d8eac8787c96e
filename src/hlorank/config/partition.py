"""Section `partition`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hlorank.config.extension_point import registered
from hlorank.config.section import Section


class PartitionConfig(Section):
    """Stage partition."""

    algorithm: Annotated[str, registered("partitioners")]
    """topological (contiguous blocks), metis (few cut edges) or computation (whole computations where they fit)."""
    max_nodes: int = Field(ge=1)
    """Bound of a segment's nodes, its halo not counted. The default is for the small programs of the bundled sample;
    use about 1000 for graphs of thousands of nodes."""
    halo: int = Field(ge=0)
    """Hops around a segment that are computed with it, but not pooled; 0 drops the edges between segments."""
