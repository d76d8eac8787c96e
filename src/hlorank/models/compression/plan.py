"""Plans: the indices along which a model computes the embeddings of segments under configurations.

A plan follows from the segments, the configurations and the model's recipe, never from weights. `build_plan` makes it
of NumPy arrays, ahead of the step that runs it; `hlorank.models.plan_tensors` moves it to a device.
"""

from typing import Any, Generic, NamedTuple, TypeVar

from numpy.typing import NDArray

A = TypeVar("A")
Array = NDArray[Any]


class Sparse(NamedTuple, Generic[A]):
    """A sparse matrix by rows, and, where gradients are needed, by columns."""

    column: A  # (entries,) int32, the column of each entry, row by row
    row_starts: A  # (rows,) int32, index of the first entry of each row
    weight: A | None  # (entries,) float64; None for ones
    transposed: "Sparse[A] | None"  # the transposed matrix; None without gradients


class QuotientGraph(NamedTuple, Generic[A]):
    """The bipartite graph of one layer of message passing, from the colours before it to the colours after it."""

    # a row for each colour after, and a column for each pair of a colour before and an edge type, number
    # `types * colour + type`
    matrix: Sparse[A]
    copies: int  # configurations that each edge stands for


class QuotientEdges(NamedTuple, Generic[A]):
    """Edges of a quotient graph by direction, operands and users, or all; edges from a node to itself are in both."""

    # (colours after, colours before), the colour before of each colour; None if both have the same number
    roots: Sparse[A] | None
    directions: tuple[A, ...]  # (2, edges) int64 for each, colours before and after
    weights: tuple[A, ...]  # (edges,) float64 for each


class QuotientPieces(NamedTuple, Generic[A]):
    """The edges of a quotient graph in one list, with bounds of pieces of it."""

    roots: Sparse[A] | None  # as in `QuotientEdges`
    target: A  # (edges,) int64, the colour after, ascending
    source: A  # (edges,) int64, the colour before; with separate directions `types * colour + type`
    # of each piece the first colour after, the colour behind its last, its first edge, and the edge behind its last; a
    # piece has about as many edges as there are colours before
    bounds: tuple[tuple[int, int, int, int], ...]


Messages = QuotientGraph[A] | QuotientEdges[A] | QuotientPieces[A]


class JoinIndex(NamedTuple, Generic[A]):
    """The rows of a table whose sums are the states after a join."""

    # (colours after, rows of the table); the table holds the states before, the embedded codebook and a row of zeros;
    # None in a tile collection
    layouts: Sparse[A] | None
    # in a tile collection (nodes, configurations or 1) int64, the states before; None if they are dense
    states: A | None


class DenseIndex(NamedTuple, Generic[A]):
    """The dense form: every node under every configuration."""

    states: A | None  # (nodes, configurations) int64, the colours before; None if these are dense
    nodes: int  # number of nodes
    graph: Messages[A] | None  # the edges, if the layer uses any


class NodeIndex(NamedTuple, Generic[A]):
    """Colours by node, for a layer that mixes configurations; None, None if no two states are equal."""

    configurations: int  # their number
    # (nodes, colours), the colours of each node, ascending, with the number of configurations of each as its weight
    colours: Sparse[A] | None
    node: A | None  # (colours,) int64, the node of each colour, ascending


class MaskIndex(NamedTuple, Generic[A]):
    """The node of each colour, (colours,) int64, None if no two states are equal; and the number of nodes."""

    node: A | None
    nodes: int


class PoolIndex(NamedTuple, Generic[A]):
    """The pooled states of each segment and configuration; a row stands for such a pair, segment by segment."""

    configurations: int  # their number, the same for each segment
    nodes: A  # (rows, 1) int64, number of pooled nodes
    # (rows + segments, colours), the pooled states: first of the nodes that have a colour for each configuration, row
    # by row; then, segment by segment, of all other nodes. None if the states are dense, and there is one segment
    states: Sparse[A] | None
    # (2, rows) int64, the row of `states` of the pair and the row of its segment, each replaced by the other where it
    # is empty; None where `states` is None
    filled: A | None
    # (rows, colours), the states of configurable nodes; None where `states` is None, or where no pooling reads it
    configurable: Sparse[A] | None
    configurable_nodes: int  # number of configurable nodes


StepIndex = Messages[A] | JoinIndex[A] | DenseIndex[A] | NodeIndex[A] | MaskIndex[A] | Sparse[A] | None


class Plan(NamedTuple, Generic[A]):
    """All that a model needs to embed segments under configurations."""

    numeric: A  # (initial colours, columns) float32, features of one node of each initial colour
    opcode: A  # (initial colours,) int64
    layout: A  # (initial colours, 6) int64, minor_to_major, -1 padded
    # (colours,) int64, the rows of the encoder's table in which the first states are; None if they are the same
    initial: A | None
    codebook: A | None  # (U, 18) int64, the layout values of the configurations; None for tiles
    sizes: A | None  # (U, 18) float32, the sizes of these dimensions; None for tiles
    costs: A | None  # (U, 3) float32, what these layouts cost; None for tiles
    tiles: A | None  # (configurations, tile columns) float32; None for layouts
    steps: tuple[StepIndex[A], ...]  # an index for each step of the recipe, None for a step that needs none
    pool: PoolIndex[A]  # what is pooled
    inverse: A | None  # (rows,) int64, the embedding of each row of the result; None if they are the same
    states: int  # the work: number of states that mixing layers compute
