"""Building of plans: a colouring is refined along the steps of a recipe."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_array

from hlorank.models.compression import plan as plans
from hlorank.models.compression.colouring import Colouring
from hlorank.models.compression.declarations import EdgeForm, EdgeKind, Join, Mix, Mixing, Recipe, Residual, Start, Step
from hlorank.models.compression.segment import ConfigurationBatch, LayoutBatch, Neighbourhood, Segment


def dense_states(recipe: Recipe, segment: Segment, configurations: int) -> int:
    """Return the number of states that the mixing layers of a recipe compute in the dense form."""
    layers = sum(isinstance(step, Mix) and step.mixing is not Mixing.ROW for step in recipe.steps)
    return layers * segment.nodes * configurations


def max_varied_nodes(recipe: Recipe, segment: Segment) -> int:
    """Return an upper bound of the number of nodes that have a state for each configuration in some layer."""
    if not recipe.compress or Mixing.SEGMENT in recipe.mixing:
        return segment.nodes
    hops = sum(isinstance(step, Mix) and step.mixing is Mixing.NEIGHBOURS for step in recipe.steps)
    return segment.k_hop_prefix(hops)


def build_plan(segment: Segment, batch: ConfigurationBatch, recipe: Recipe) -> plans.Plan[plans.Array]:
    """Build the plan of a segment, or of stacked ones, under configurations."""
    builder = _Builder(segment, batch, recipe)
    count = len(segment.colour_opcode)
    ordered = len(builder.initial) == count  # each initial colour has one state
    colours = builder.initial if ordered else np.arange(count)
    steps = tuple(builder.step(step) for step in recipe.steps)
    return plans.Plan(
        numeric=segment.colour_numeric[colours],
        opcode=segment.colour_opcode[colours],
        layout=segment.colour_layout[colours],
        initial=None if ordered else builder.initial,
        codebook=batch.codebook if isinstance(batch, LayoutBatch) else None,
        sizes=batch.sizes if isinstance(batch, LayoutBatch) else None,
        costs=batch.costs if isinstance(batch, LayoutBatch) else None,
        tiles=None if isinstance(batch, LayoutBatch) else batch.feat,
        steps=steps,
        pool=builder.pool(),
        inverse=None,
        states=builder.states,
    )


class _Builder:
    """Walk along the steps of a recipe with the colouring of the states; `initial` and `states` as in `Plan`."""

    def __init__(self, segment: Segment, batch: ConfigurationBatch, recipe: Recipe) -> None:
        self._segment, self._batch, self._recipe = segment, batch, recipe
        configurations = 1 if recipe.join == "late" else len(batch)
        nodes, colour = segment.nodes, segment.initial_colour
        # A layer that mixes configurations runs node by node.
        share = recipe.share and Mixing.CONFIGURATIONS not in recipe.mixing
        keys = colour if share else np.arange(nodes)
        if recipe.compress:
            self._now = Colouring.of_keys(np.empty((0, configurations), dtype=np.int64), keys)
        else:
            self._now = Colouring.identity(nodes, configurations)
        self._start = self._now
        self._hops: int | None = None  # edges along which configurations have been passed on; None before they join
        self.initial = colour[self._now.node]
        self.states = 0

    def step(self, step: Step) -> plans.StepIndex[plans.Array]:
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
            return plans.MaskIndex(node, self._segment.nodes) if step.by_node else None
        index: plans.StepIndex[plans.Array]
        if step.mixing is Mixing.NEIGHBOURS and step.edges is not None:
            index = self._messages(step.edges)
        elif step.mixing is Mixing.CONFIGURATIONS:
            index = self._by_node()
        else:
            index = self._dense(step.edges)
        self.states += len(self._now)
        return index

    def _join(self) -> plans.JoinIndex[plans.Array]:
        self._hops = 0 if self._hops is None else self._hops
        count = len(self._batch)
        before = self._now
        if before.colour_of.shape[1] != count:  # late
            before = Colouring.of_keys(np.empty((0, count), dtype=np.int64), before.colour_of[:, 0])
        if not isinstance(self._batch, LayoutBatch):
            states = before.colour_of if before.prefix else before.colour_of[:, :1]
            index = None if before.is_identity and len(before) == len(self._now) else states
            self._now = Colouring.identity(self._segment.nodes, count)
            return plans.JoinIndex(None, index)
        codes = self._batch.codes.T
        none = len(self._batch.codebook)
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
        entries = np.stack([after.roots(before), len(before) + code], axis=1)
        self._now = after
        starts, table = np.arange(0, entries.size + 1, 2), len(before) + none + 1
        return plans.JoinIndex(sparse(entries.ravel(), starts, table, gradients=self._recipe.gradients), None)

    def _messages(self, kind: EdgeKind) -> plans.Messages[plans.Array]:
        before = self._now
        neighbourhood = self._segment.edges.neighbourhood(kind)
        self._hops = None if self._hops is None else self._hops + 1
        if not before.is_identity:  # else no state can become equal
            prefix = 0 if self._hops is None else self._segment.k_hop_prefix(self._hops)
            self._now = before.refine(neighbourhood, prefix)
        return quotient_graph(before, self._now, neighbourhood, kind, gradients=self._recipe.gradients)

    def _by_node(self) -> plans.NodeIndex[plans.Array]:
        colouring = self._now
        nodes, configurations = colouring.colour_of.shape
        if colouring.is_identity:
            return plans.NodeIndex(configurations, None, None)
        # No two nodes share a colour, see above.
        counts = np.bincount(colouring.colour_of.ravel(), minlength=len(colouring)).astype(np.float64)
        starts = np.searchsorted(colouring.node, np.arange(nodes + 1))
        colours = sparse(np.arange(len(colouring)), starts, len(colouring), counts, gradients=self._recipe.gradients)
        return plans.NodeIndex(configurations, colours, colouring.node)

    def _dense(self, edges: EdgeKind | None) -> plans.DenseIndex[plans.Array]:
        nodes, configurations = self._now.colour_of.shape
        states = None if self._now.is_identity else self._now.colour_of
        self._now = Colouring.identity(nodes, configurations)
        graph = None
        if edges is not None:
            neighbourhood = self._segment.edges.neighbourhood(edges)
            graph = quotient_graph(self._now, self._now, neighbourhood, edges, gradients=self._recipe.gradients)
        return plans.DenseIndex(states, nodes, graph)

    def pool(self) -> plans.PoolIndex[plans.Array]:
        """Return the index of the pooling, after the last step."""
        colouring, segment, gradients = self._now, self._segment, self._recipe.gradients
        configurable, part, parts = segment.configurable, segment.part, segment.parts
        colour_of, varied = colouring.colour_of, colouring.prefix
        count = colour_of.shape[1]
        nodes = np.repeat(np.bincount(part, minlength=parts), count)[:, None]
        if colouring.is_identity and parts == 1:
            return plans.PoolIndex(count, nodes, None, None, None, configurable)
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
        return plans.PoolIndex(count, nodes, states, filled, of_configurable, configurable)


def _by_part(colour_of: plans.Array, part: plans.Array, parts: int) -> tuple[plans.Array, plans.Array]:
    """Return (nodes, configurations) colours by segment and then by configuration, and the length of each such list."""
    sizes = np.bincount(part, minlength=parts)
    blocks = np.split(colour_of[np.argsort(part, kind="stable")], np.cumsum(sizes)[:-1])
    return np.concatenate([block.T.ravel() for block in blocks]), np.repeat(sizes, colour_of.shape[1])


def sparse(
    column: plans.Array, starts: plans.Array, columns: int, weight: plans.Array | None = None, *, gradients: bool = True
) -> plans.Sparse[plans.Array]:
    """Return a matrix of `columns` from entries by row, (rows + 1,) `starts` as in CSR; by columns for gradients."""
    # 32 bits suffice for every matrix that fits into memory.
    column, starts = column.astype(np.int32, copy=False), starts.astype(np.int32, copy=False)
    transposed = None
    if gradients:
        entry = np.arange(len(column), dtype=np.int32)
        found = csr_array((entry, column, starts), shape=(len(starts) - 1, columns)).tocsc()
        weights = None if weight is None else weight[found.data]
        transposed = plans.Sparse[plans.Array](found.indices, found.indptr[:-1], weights, None)
    return plans.Sparse(column, starts[:-1], weight, transposed)


def _roots(before: Colouring, after: Colouring, gradients: bool) -> plans.Sparse[plans.Array] | None:
    """Return the colour before of each colour after; None if both have the same number."""
    if len(before) == len(after):
        return None
    return sparse(after.roots(before), np.arange(len(after) + 1), len(before), gradients=gradients)


def quotient_graph(
    before: Colouring, after: Colouring, neighbourhood: Neighbourhood, kind: EdgeKind, *, gradients: bool = True
) -> plans.Messages[plans.Array]:
    """Return the quotient graph of a layer, in the form that the layer reads.

    The colouring `after` is at least as fine as `before.refine` gives; `neighbourhood` has the edges of this `kind`.
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
    place = neighbourhood.source[entry] * before.colour_of.shape[1] + after.configuration[target]
    source = before.colour_of.ravel().take(place)
    starts, columns = np.append(0, stops), source if kind.types == 1 else kind.types * source + edge_type
    if linear:
        weight = neighbourhood.weight[entry]
        matrix = sparse(columns, starts, kind.types * len(before), weight, gradients=gradients)
        return plans.QuotientGraph(matrix, copies)
    roots = _roots(before, after, gradients)
    if kind.form is EdgeForm.PIECES:
        bounds = _pieces(starts, max(1, len(target) // max(1, len(before))))
        return plans.QuotientPieces(roots, target, columns if kind.neighbour_types > 1 else source, bounds)
    every = [(edge_type == direction) | (edge_type < kind.itself) for direction in range(kind.itself, kind.types)]
    directions = tuple(np.stack([source[kept], target[kept]]) for kept in every)
    return plans.QuotientEdges(roots, directions, tuple(neighbourhood.weight[entry[kept]] for kept in every))


def _pieces(starts: plans.Array, count: int) -> tuple[tuple[int, int, int, int], ...]:
    """Divide the targets of edges into pieces; see `QuotientPieces`."""
    bounds: Sequence[int] = np.linspace(0, len(starts) - 1, count + 1).astype(int).tolist()
    return tuple((first, last, int(starts[first]), int(starts[last])) for first, last in pairwise(bounds))
