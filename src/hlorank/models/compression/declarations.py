"""Declarations of the layers of a model, from which its plans are built."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from hlorank.config import Directions


class Norm(Enum):
    """The weight of what a node v receives from a neighbour u."""

    MEAN = "mean"  # 1 / the number of neighbours of v; v itself weighs 1
    SYMMETRIC = "symmetric"  # 1 / sqrt(d_v d_u), d = 1 + the number of neighbours; v itself weighs 1 / d_v
    SUM = "sum"  # 1, and so does v itself


class EdgeForm(Enum):
    """The form in which a layer of message passing reads its edges."""

    MATRIX = "matrix"  # what is received is a weighted sum of states, for all configurations of a node at once
    DIRECTIONS = "directions"  # a list of edges for each direction, as operators of PyTorch Geometric take them
    PIECES = "pieces"  # one list of all edges, which is computed in pieces


@dataclass(frozen=True)
class EdgeKind:
    """The edges that a layer of message passing uses."""

    norm: Norm  # the normalization of their weights
    # as the setting `model.directions`. separate: edges from operands and from users have two types; shared: they have
    # one type, and count together; users: only edges from users are used
    directions: Directions
    # every node receives from itself along an edge, type 0; else the layer itself adds the state of the node
    itself: bool = True
    # these edges have another type than edges between nodes; else, unless directions are separate, all have one type
    own_type: bool = True
    to_configurable: bool = False  # only edges to configurable nodes, and of nodes to themselves
    form: EdgeForm = EdgeForm.MATRIX  # how the layer reads them

    @property
    def types(self) -> int:
        """The number of edge types."""
        return (self.itself and self.own_type) + self.neighbour_types

    @property
    def neighbour_types(self) -> int:
        """The number of edge types between different nodes."""
        return 2 if self.directions == "separate" else 1


class Mixing(Enum):
    """States that the new state of a node under a configuration depends on, besides its state before."""

    ROW = "row"  # none
    NEIGHBOURS = "neighbours"  # the states of the neighbours under the same configuration
    SEGMENT = "segment"  # the states of all nodes of the segment under the same configuration
    CONFIGURATIONS = "configurations"  # the states of the node under the other configurations


@dataclass(frozen=True)
class Mix:
    """A layer."""

    mixing: Mixing  # how far it mixes
    edges: EdgeKind | None = None  # the edges that it uses, if it uses any
    by_node: bool = False  # it has a mask for each node


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
    """The steps of a model, as far as they decide which of its states are equal."""

    steps: tuple[Step, ...]  # in the order in which the model takes them; there is at least one join
    join: Literal["early", "late", "every"]  # as the setting `model.join`
    pool_configurable: bool = False  # a pooling takes the configurable nodes alone
    # nodes with equal features may have equal states; false where each node has another dropout mask
    share: bool = True
    # each colour, and each distinct local configuration of a segment, is computed once; False is the dense form, every
    # node under every configuration
    compress: bool = True
    gradients: bool = True  # plans have what only gradients need

    @property
    def mixing(self) -> frozenset[Mixing]:
        """The kinds of mixing among the layers."""
        return frozenset(step.mixing for step in self.steps if isinstance(step, Mix))

    @property
    def stacks_segments(self) -> bool:
        """True if several segments can be computed as one: states depend on others along edges only."""
        return self.mixing <= {Mixing.ROW, Mixing.NEIGHBOURS}
