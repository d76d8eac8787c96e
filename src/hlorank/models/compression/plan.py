"""Plans: the indices along which a model computes the embeddings of segments under configurations.

A plan follows from the segments, the configurations and the model's recipe, never from weights. `build_plan` makes it
of NumPy arrays, ahead of the step that runs it; `hlorank.models.plan_tensors` moves it to a device.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from numpy.typing import NDArray

A = TypeVar("A")
Array = NDArray[Any]


class Sparse(NamedTuple, Generic[A]):
    """A sparse matrix, by rows and, where gradients are needed, by columns.

    Attributes:
        column: (entries,) int32, the column of each entry, row by row.
        row_starts: (rows,) int32, index of the first entry of each row.
        weight: (entries,) float64; None for ones.
        row: (entries,) int32, the row of each entry, column by column.
        column_starts: (columns,) int32, index of the first entry of each column.
        column_weight: (entries,) float64, column by column.
    """

    column: A
    row_starts: A
    weight: A | None
    row: A | None
    column_starts: A | None
    column_weight: A | None


class QuotientGraph(NamedTuple, Generic[A]):
    """The bipartite graph of one layer of message passing, from the colours before it to the colours after it.

    If no two states are equal, it is the graph of the nodes, for all configurations at once.

    Attributes:
        matrix: a row for each colour after, and a column for each pair of a colour before and an edge type; column
            `types * colour + type`.
        copies: configurations that each edge stands for.
    """

    matrix: Sparse[A]
    copies: int


class QuotientEdges(NamedTuple, Generic[A]):
    """The edges of a quotient graph by their direction: from operands and from users, or all if directions are shared.

    The edges of nodes from themselves, if there are any, are in each direction.

    Attributes:
        roots: (colours after, colours before), the colour before of each colour; None if that is its own number.
        directions: (2, edges) int64 for each, colours before and after.
        weights: (edges,) float64 for each.
    """

    roots: Sparse[A] | None
    directions: tuple[A, ...]
    weights: tuple[A, ...]


class QuotientPieces(NamedTuple, Generic[A]):
    """The edges of a quotient graph in one list, with bounds of pieces of it.

    Attributes:
        roots: as in `QuotientEdges`.
        target: (edges,) int64, the colour after, ascending.
        source: (edges,) int64, the colour before; with separate directions `types * colour + type`.
        bounds: about as many edges in each as there are colours before: the first and last colour after, and edge.
    """

    roots: Sparse[A] | None
    target: A
    source: A
    bounds: tuple[tuple[int, int, int, int], ...]


Messages = QuotientGraph[A] | QuotientEdges[A] | QuotientPieces[A]


class JoinIndex(NamedTuple, Generic[A]):
    """The rows of a table whose sums are the states after a join.

    Attributes:
        layouts: (colours after, rows of the table); the table holds the states before, the embedded codebook and a row
            of zeros; None in a tile collection.
        states: in a tile collection (nodes, configurations or 1) int64, the states before; None if they are dense.
    """

    layouts: Sparse[A] | None
    states: A | None


class DenseIndex(NamedTuple, Generic[A]):
    """The dense form: every node under every configuration.

    Attributes:
        states: (nodes, configurations) int64, the colours before; None if these are dense.
        nodes: number of nodes.
        graph: the edges, if the layer uses any.
    """

    states: A | None
    nodes: int
    graph: Messages[A] | None


class NodeIndex(NamedTuple, Generic[A]):
    """Colours by node, for a layer that mixes configurations.

    Attributes:
        nodes: number of nodes.
        parts: (prefix nodes, configurations) and (other nodes, 1) int64, their colours; () if no two states are equal.
        colour: (colours,) int64, its place in the states of the parts; None if no two states are equal.
    """

    nodes: int
    parts: tuple[A, ...]
    colour: A | None


class MaskIndex(NamedTuple, Generic[A]):
    """The node of each colour, (colours,) int64, None if no two states are equal; and the number of nodes."""

    node: A | None
    nodes: int


class PoolIndex(NamedTuple, Generic[A]):
    """The states that are pooled for each segment and configuration; a row stands for such a pair, segment by segment.

    Attributes:
        configurations: their number, the same for each segment.
        nodes: (rows, 1) int64, number of pooled nodes.
        states: (rows + segments, colours), the pooled states: first those of the nodes that have a colour for each
            configuration, row by row; then, for each segment, those of all its other nodes. None if every node that has
            states is pooled, they are dense, and there is one segment.
        filled: (2, rows) int64, the row of `states` of the pair and the row of its segment, each replaced by the other
            if it has no entry; None where `states` is None.
        configurable: (rows, colours), the states of configurable nodes; None where `states` is None, or where no
            pooling reads it.
        configurable_nodes: number of configurable nodes among the pooled ones.
    """

    configurations: int
    nodes: A
    states: Sparse[A] | None
    filled: A | None
    configurable: Sparse[A] | None
    configurable_nodes: int


StepIndex = Messages[A] | JoinIndex[A] | DenseIndex[A] | NodeIndex[A] | MaskIndex[A] | Sparse[A] | None


class Plan(NamedTuple, Generic[A]):
    """All that a model needs to embed segments under configurations.

    Attributes:
        numeric: (initial colours, columns) float32, features of one node of each initial colour.
        opcode: (initial colours,) int64.
        layout: (initial colours, 6) int64, minor_to_major, -1 padded.
        initial: (colours,) int64, the rows of the encoder's table in which the first states are; None if they are the
            same.
        codebook: (U, 18) int64, the layout values of the configurations; None for tiles.
        sizes: (U, 18) float32, the sizes of these dimensions; None for tiles.
        moves: (U, 3) float32, what copies to these layouts move; None for tiles.
        tiles: (configurations, tile columns) float32; None for layouts.
        steps: an index for each step of the recipe, None for a step that needs none.
        pool: what is pooled.
        inverse: (rows,) int64, the embedding of each row of the result; None if they are the same.
        states: the work: number of states that layers which mix states compute.
    """

    numeric: A
    opcode: A
    layout: A
    initial: A | None
    codebook: A | None
    sizes: A | None
    moves: A | None
    tiles: A | None
    steps: tuple[StepIndex[A], ...]
    pool: PoolIndex[A]
    inverse: A | None
    states: int
