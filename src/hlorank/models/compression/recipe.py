"""Declarations of the layers of a model, from which its plans are built."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from hlorank.models.compression.edges import EdgeKind
from hlorank.models.compression.segment import Segment


class Mixing(Enum):
    """States that the new state of a node under a configuration depends on, besides its own state.

    Attributes:
        ROW: none.
        NEIGHBOURS: the states of the neighbours under the same configuration.
        SEGMENT: the states of all nodes of the segment under the same configuration.
        CONFIGURATIONS: the states of the node under the other configurations.
    """

    ROW = "row"
    NEIGHBOURS = "neighbours"
    SEGMENT = "segment"
    CONFIGURATIONS = "configurations"


@dataclass(frozen=True)
class Mix:
    """A layer.

    Attributes:
        mixing: how far it mixes.
        edges: the edges that it uses, if it uses any.
        by_node: it has a mask for each node.
    """

    mixing: Mixing
    edges: EdgeKind | None = None
    by_node: bool = False


@dataclass(frozen=True)
class Join:
    """The configurations join the states of their nodes."""


@dataclass(frozen=True)
class Start:
    """A block starts: residuals after it add the states here."""


@dataclass(frozen=True)
class Residual:
    """The states at the start of the block are added."""


Step = Mix | Join | Start | Residual


@dataclass(frozen=True)
class Recipe:
    """The steps of a model, as far as they decide which of its states are equal.

    Attributes:
        steps: in the order in which the model takes them; there is one join at least.
        join: as the setting `model.join`.
        override_layout: as the setting `model.override_layout`, for layouts.
        pool_configurable: a pooling takes the configurable nodes alone.
        share: nodes with equal features may have equal states; no two do where each has a dropout mask of its own.
        compress: each colour is computed once; False is the dense form, every node under every configuration.
        deduplicate: each distinct local configuration of a segment is computed once, unless a layer mixes
            configurations.
        gradients: plans have what only gradients need.
    """

    steps: tuple[Step, ...]
    join: Literal["early", "late", "every"]
    override_layout: bool
    pool_configurable: bool = False
    share: bool = True
    compress: bool = True
    deduplicate: bool = True
    gradients: bool = True

    @property
    def mixing(self) -> frozenset[Mixing]:
        """The kinds of mixing among the layers."""
        return frozenset(step.mixing for step in self.steps if isinstance(step, Mix))

    @property
    def deduplicates(self) -> bool:
        """True if rows with equal local configurations share one embedding."""
        return self.deduplicate and Mixing.CONFIGURATIONS not in self.mixing

    @property
    def joins_segments(self) -> bool:
        """True if several segments can be computed beside each other: states depend on others along edges only."""
        return self.mixing <= {Mixing.ROW, Mixing.NEIGHBOURS}

    def dense_rows(self, segment: Segment, configurations: int) -> int:
        """Return the number of states that layers which mix states compute in the dense form."""
        layers = sum(isinstance(step, Mix) and step.mixing is not Mixing.ROW for step in self.steps)
        return layers * segment.nodes * configurations

    def max_varied_nodes(self, segment: Segment) -> int:
        """Return an upper bound of the number of nodes that have a state for each configuration in some layer."""
        if not self.compress or Mixing.SEGMENT in self.mixing:
            return segment.nodes
        hops = sum(isinstance(step, Mix) and step.mixing is Mixing.NEIGHBOURS for step in self.steps)
        return segment.k_hop_prefix(hops)
