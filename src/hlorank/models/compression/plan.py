"""Plans: the indices along which a model computes the embeddings of segments under some configurations.

A plan follows from the segments, the configurations and the model's recipe, never from weights. It is made of NumPy
arrays here, ahead of the step that runs it; `hlorank.models.plan_tensors` moves it to a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hlorank.data.configurations import LAYOUT_DIMS
from hlorank.models.compression.colouring import Colouring
from hlorank.models.compression.edges import EdgeForm, EdgeKind, Neighbourhood
from hlorank.models.compression.recipe import Join, Mixing, Recipe, Residual, Start, Step
from hlorank.models.compression.segment import ConfigurationBatch, LayoutBatch, Segment

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

    Those of nodes from themselves, if these are edges, are in each.

    Attributes:
        roots: (colours after, colours before), the colour that each one had before; None if that is its own number.
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
    """The rows of a table that the states after a join are sums of.

    Attributes:
        layouts: (colours after, rows of the table); the table holds the states before, the embedded codebook, a row of
            zeros, and with `override_layout` the nodes' own layouts; None in a tile collection.
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
        colour: (colours,) int64, the place of each in the states of the parts; None if no two states are equal.
    """

    nodes: int
    parts: tuple[A, ...]
    colour: A | None


class MaskIndex(NamedTuple, Generic[A]):
    """The nodes of colours.

    Attributes:
        node: (colours,) int64; None if no two states are equal.
        nodes: number of nodes.
    """

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
        filled: (2, rows) int64, rows of `states` that have an entry: both a row's own and that of its segment, or the
            one of them that has entries twice; None where `states` is None.
        configurable: (rows, colours), those of configurable nodes; None where `states` is None, or where no pooling
            reads it.
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
    """All that a model needs to embed segments under some configurations.

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
        inverse: (rows,) int64, for each row of the result the embedding that it has; None if they are the same.
        rows: the work: number of states that layers which mix states compute.
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
    rows: int


def make_plan(segment: Segment, batch: ConfigurationBatch, recipe: Recipe) -> Plan[Array]:
    """Make the plan of a segment, or of several beside each other, under some configurations.

    Args:
        segment: the nodes and edges.
        batch: the configurations.
        recipe: the steps of the model.
    """
    builder = _Builder(segment, batch, recipe)
    count = len(segment.colour_opcode)
    # As many states as initial colours are one of each.
    ordered = len(builder.initial) == count and not recipe.override_layout
    colours = builder.initial if ordered else np.arange(count)
    steps = tuple(builder.step(step) for step in recipe.steps)
    return Plan(
        numeric=segment.colour_numeric[colours],
        opcode=segment.colour_opcode[colours],
        layout=segment.colour_layout[colours],
        initial=None if ordered else builder.initial,
        codebook=batch.codebook if isinstance(batch, LayoutBatch) else None,
        sizes=batch.sizes if isinstance(batch, LayoutBatch) else None,
        moves=batch.moves if isinstance(batch, LayoutBatch) else None,
        tiles=None if isinstance(batch, LayoutBatch) else batch.feat,
        steps=steps,
        pool=builder.pool(),
        inverse=None,
        rows=builder.rows,
    )


class _Builder:
    """Walk along the steps of a recipe with the colouring of the states.

    Attributes:
        initial: (colours,) int64, as in `Plan`.
        rows: as in `Plan`, so far.
    """

    def __init__(self, segment: Segment, batch: ConfigurationBatch, recipe: Recipe) -> None:
        self._segment, self._batch, self._recipe = segment, batch, recipe
        configurations = 1 if recipe.join == "late" else len(batch)
        nodes, colour = segment.nodes, segment.initial_colour
        # A layer that mixes configurations runs node by node.
        share = recipe.share and Mixing.CONFIGURATIONS not in recipe.mixing
        keys = colour if share else np.arange(nodes)
        if recipe.override_layout:
            # Configurable nodes, the first ones, get a layout when the configuration joins.
            fixed = np.arange(nodes) >= segment.configurable
            colour = colour + len(segment.colour_opcode) * fixed
            keys = 2 * keys + fixed
        if recipe.compress:
            self._now = Colouring.of_keys(np.empty((0, configurations), dtype=np.int64), keys)
        else:
            self._now = Colouring.identity(nodes, configurations)
        self._start = self._now
        self._hops: int | None = None  # edges along which configurations have been passed on; None before they join
        self.initial = colour[self._now.node]
        self.rows = 0

    def step(self, step: Step) -> StepIndex[Array]:
        """Return the index of the next step."""
        if isinstance(step, Start):
            self._start = self._now
            return None
        if isinstance(step, Residual):
            return _roots(self._start, self._now, self._recipe.gradients)
        if isinstance(step, Join):
            return self._join()
        if step.mixing is Mixing.ROW:
            node = None if self._now.is_identity else self._now.node
            return MaskIndex(node, self._segment.nodes) if step.by_node else None
        index: StepIndex[Array]
        if step.mixing is Mixing.NEIGHBOURS and step.edges is not None:
            index = self._messages(step.edges)
        elif step.mixing is Mixing.CONFIGURATIONS:
            index = self._by_node()
        else:
            index = self._dense(step.edges)
        self.rows += len(self._now)
        return index

    def _join(self) -> JoinIndex[Array]:
        self._hops = 0 if self._hops is None else self._hops
        count = len(self._batch)
        before = self._now
        if before.colour_of.shape[1] != count:  # late
            before = Colouring.of_keys(np.empty((0, count), dtype=np.int64), before.colour_of[:, 0])
        if not isinstance(self._batch, LayoutBatch):
            states = before.colour_of if before.prefix else before.colour_of[:, :1]
            index = None if before.is_identity and len(before) == len(self._now) else states
            self._now = Colouring.identity(self._segment.nodes, count)
            return JoinIndex(None, index)
        codebook, codes = self._batch.codebook, self._batch.codes.T
        none = len(codebook)
        code_of = np.full((max(before.prefix, len(codes)), count), none)
        code_of[: len(codes)] = codes
        keys, prefix = before.colour_of * (none + 1), len(code_of)
        if self._recipe.compress:
            after = Colouring.of_keys(keys[:prefix] + code_of, keys[prefix:, 0] + none)
        else:
            after = Colouring.identity(self._segment.nodes, count)
        code = np.full(len(after), none)
        varied = after.node < prefix
        code[varied] = code_of[after.node[varied], after.configuration[varied]]
        columns = [after.roots(before), len(before) + code]
        table = len(before) + none + 1
        if self._recipe.override_layout:
            given = (codebook[:, :LAYOUT_DIMS] >= 0).any(axis=1)
            keeps = np.append(~given, False)[code] & (after.node < len(codes))
            own = self._segment.initial_colour[after.node]
            columns.append(table - 1 + np.where(keeps, 1 + own, 0))
            table += len(self._segment.colour_opcode)
        entries = np.stack(columns, axis=1)
        self._now = after
        starts = np.arange(0, entries.size + 1, entries.shape[1])
        return JoinIndex(sparse(entries.ravel(), starts, table, gradients=self._recipe.gradients), None)

    def _messages(self, kind: EdgeKind) -> Messages[Array]:
        before = self._now
        neighbourhood = self._segment.edges.neighbourhood(kind)
        self._hops = None if self._hops is None else self._hops + 1
        if not before.is_identity:  # else no state can become equal
            prefix = 0 if self._hops is None else self._segment.k_hop_prefix(self._hops)
            self._now = before.refine(neighbourhood, prefix)
        return quotient_graph(before, self._now, neighbourhood, kind, gradients=self._recipe.gradients)

    def _by_node(self) -> NodeIndex[Array]:
        colouring = self._now
        if colouring.is_identity:
            return NodeIndex(self._segment.nodes, (), None)
        colour_of, prefix = colouring.colour_of, colouring.prefix
        count, first = colour_of.shape[1], colouring.node
        place = np.where(first < prefix, first * count + colouring.configuration, prefix * (count - 1) + first)
        return NodeIndex(len(colour_of), (colour_of[:prefix], colour_of[prefix:, :1]), place)

    def _dense(self, edges: EdgeKind | None) -> DenseIndex[Array]:
        nodes, configurations = self._now.colour_of.shape
        states = None if self._now.is_identity else self._now.colour_of
        self._now = Colouring.identity(nodes, configurations)
        graph = None
        if edges is not None:
            neighbourhood = self._segment.edges.neighbourhood(edges)
            graph = quotient_graph(self._now, self._now, neighbourhood, edges, gradients=self._recipe.gradients)
        return DenseIndex(states, nodes, graph)

    def pool(self) -> PoolIndex[Array]:
        """Return the index of the pooling, after the last step."""
        colouring, segment, gradients = self._now, self._segment, self._recipe.gradients
        pooled, configurable, parts = segment.pooled, segment.configurable, segment.parts
        colour_of, part, varied = colouring.colour_of, segment.part, colouring.prefix
        count = colour_of.shape[1]
        if pooled is not None:
            colour_of, part, varied = colour_of[pooled], part[pooled], int(pooled[:varied].sum())
            configurable = int(pooled[:configurable].sum())
        nodes = np.repeat(np.bincount(part, minlength=parts), count)[:, None]
        if pooled is None and colouring.is_identity and parts == 1:
            return PoolIndex(count, nodes, None, None, None, configurable)
        first, first_counts = _by_part(colour_of[:varied], part[:varied], parts)
        others, other_counts = _by_part(colour_of[varied:, :1], part[varied:], parts)
        counts = np.append(first_counts, other_counts)
        states = sparse(np.append(first, others), np.append(0, np.cumsum(counts)), len(colouring), gradients=gradients)
        filled = np.stack([np.arange(parts * count), parts * count + np.repeat(np.arange(parts), count)])
        filled = np.where(counts[filled] > 0, filled, filled[::-1])
        of_configurable = None
        if self._recipe.pool_configurable:
            only, only_counts = _by_part(colour_of[:configurable], part[:configurable], parts)
            starts = np.append(0, np.cumsum(only_counts))
            of_configurable = sparse(only, starts, len(colouring), gradients=gradients)
        return PoolIndex(count, nodes, states, filled, of_configurable, configurable)


def _by_part(colour_of: Array, part: Array, parts: int) -> tuple[Array, Array]:
    """Return the colours of the nodes of each segment under each configuration.

    Args:
        colour_of: (nodes, configurations), colours.
        part: (nodes,), the segment of each node.
        parts: number of segments.

    Returns:
        (nodes * configurations,) the colours, by segment and then by configuration, and (segments * configurations,)
        how many each of these pairs has.
    """
    sizes = np.bincount(part, minlength=parts)
    blocks = np.split(colour_of[np.argsort(part, kind="stable")], np.cumsum(sizes)[:-1])
    return np.concatenate([block.T.ravel() for block in blocks]), np.repeat(sizes, colour_of.shape[1])


def sparse(
    column: Array, starts: Array, columns: int, weight: Array | None = None, *, gradients: bool = True
) -> Sparse[Array]:
    """Return a sparse matrix.

    Args:
        column: (entries,) the column of each entry, row by row.
        starts: (rows + 1,) index of the first entry of each row; the last is the number of entries.
        columns: number of columns.
        weight: (entries,) float64; None for ones.
        gradients: by columns, too.
    """
    # 32 bits suffice for every matrix that fits into memory.
    column, starts = column.astype(np.int32, copy=False), starts.astype(np.int32, copy=False)
    if not gradients:
        return Sparse(column, starts[:-1], weight, None, None, None)
    entry = np.arange(len(column), dtype=np.int32)
    by_column = csr_array((entry, column, starts), shape=(len(starts) - 1, columns)).tocsc()
    return Sparse(
        column=column,
        row_starts=starts[:-1],
        weight=weight,
        row=by_column.indices,
        column_starts=by_column.indptr[:-1],
        column_weight=None if weight is None else weight[by_column.data],
    )


def _roots(before: Colouring, after: Colouring, gradients: bool) -> Sparse[Array] | None:
    """Return the colour before of each colour after, in a finer colouring; None if that is its own number."""
    if len(before) == len(after):
        return None
    return sparse(after.roots(before), np.arange(len(after) + 1), len(before), gradients=gradients)


def quotient_graph(
    before: Colouring, after: Colouring, neighbourhood: Neighbourhood, kind: EdgeKind, *, gradients: bool = True
) -> Messages[Array]:
    """Return the quotient graph of a layer, in the form that the layer reads.

    Args:
        before: the colouring before the layer.
        after: the one after it, at least as fine as `before.refine` gives.
        neighbourhood: the edges of the segment.
        kind: the kind of these edges.
        gradients: matrices by columns, too.
    """
    linear = kind.form is EdgeForm.MATRIX
    copies = before.colour_of.shape[1] if linear and before.is_identity else 1
    if copies > 1:
        nodes = np.arange(len(before.colour_of))
        before = after = Colouring(nodes[:, None], len(nodes), nodes)
    degree = np.diff(neighbourhood.starts)[after.node]
    stops = np.cumsum(degree)
    target = np.repeat(np.arange(len(after)), degree)
    entry = np.arange(len(target)) + (neighbourhood.starts[after.node] - stops + degree)[target]
    edge_type = neighbourhood.edge_type[entry]
    if not kind.itself:
        kept = edge_type > 0
        target, entry, edge_type = target[kept], entry[kept], edge_type[kept] - 1
        stops = stops - np.arange(1, len(after) + 1)
    source = before.colour_of[neighbourhood.source[entry], after.configuration[target]]
    starts, columns = np.append(0, stops), source if kind.types == 1 else kind.types * source + edge_type
    if linear:
        weight = neighbourhood.weight[entry]
        matrix = sparse(columns, starts, kind.types * len(before), weight, gradients=gradients)
        return QuotientGraph(matrix, copies)
    roots = _roots(before, after, gradients)
    if kind.form is EdgeForm.PIECES:
        bounds = _pieces(starts, max(1, len(target) // max(1, len(before))))
        return QuotientPieces(roots, target, columns if kind.neighbour_types > 1 else source, bounds)
    every = [(edge_type == direction) | (edge_type < kind.itself) for direction in range(kind.itself, kind.types)]
    directions = tuple(np.stack([source[kept], target[kept]]) for kept in every)
    return QuotientEdges(roots, directions, tuple(neighbourhood.weight[entry[kept]] for kept in every))


def _pieces(starts: Array, count: int) -> tuple[tuple[int, int, int, int], ...]:
    """Divide the targets of edges into pieces; see `QuotientPieces`."""
    bounds: Sequence[int] = np.linspace(0, len(starts) - 1, count + 1).astype(int).tolist()
    return tuple((first, last, int(starts[first]), int(starts[last])) for first, last in pairwise(bounds))
