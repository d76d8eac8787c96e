"""Layout graphs with the statistics of real ones: a backbone of convolutions or dots in a mass of elementwise work.

Properties of real graphs that this generator keeps: about 1.6 edges a node, most of them short and some as long as
the computation; a few hub nodes (tuples) with hundreds of neighbours; several computations of very different sizes;
and configurable nodes in tight clusters, so that only some tens of percent of the nodes are within three edges of one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator

from hlorank.config import ConfigError
from hlorank.data.graph import Graph, Int64
from hlorank.fetch.synthetic.program import (
    BINARY,
    CONFIGURABLE,
    DIMENSIONS,
    OPCODES,
    UNARY,
    Program,
    Shape,
    convolution_columns,
)

MIN_NODES = 50
_MIN_BLOCK = 24
_BIAS_NODES = 3
# Number of elementwise nodes after and before each cluster; they keep nodes with other users some edges away from the
# cluster.
_TAIL_NODES, _HEAD_NODES = 3, 2
_WIDTHS = (32, 64, 96, 128, 192, 256, 384, 512)


def default_configurable_nodes(nodes: int) -> int:
    """Return the number of configurable nodes that real graphs of this size have.

    A power law through 38 of 490, 56 of 1,096, 56 of 2,774 and 62 of 3,163 nodes, between 2 and 7.7 percent;
    fewer in smaller graphs than real ones, as the neighbourhood of one cluster would fill them.
    """
    power_law = 0.08 * math.pow(nodes / 490, -0.74)
    return round(nodes * min(max(power_law, 0.02), 0.03 + nodes / 6_000, 0.077))


def build_graph(rng: Generator, nodes: int, configurable_nodes: int | None) -> tuple[Graph, Int64]:
    """Draw a layout graph.

    Args:
        rng: random generator of every choice.
        nodes: the exact number of nodes, at least 50.
        configurable_nodes: their exact number, at most a sixth of the nodes; None is a realistic one. With 2 to 8
            percent, 5-20 / 9-34 / 12-48 percent of the nodes are within 1 / 2 / 3 edges of one.

    Returns:
        The graph, and the (configurable nodes,) int64 ids of its convolutions, dots and reshapes.

    Raises:
        ConfigError: more than a sixth of the nodes are to be configurable.
    """
    wanted = default_configurable_nodes(nodes) if configurable_nodes is None else configurable_nodes
    if wanted > nodes // 6:
        raise ConfigError(
            f"data.synthetic.configurable_nodes={wanted}: expected at most {nodes // 6}, a sixth of the {nodes} nodes "
            "of a graph; or raise data.synthetic.min_nodes"
        )
    sizes = _block_sizes(rng, nodes)
    program = Program()
    convolutional, element = bool(rng.random() < 0.5), str(rng.choice(("f32", "bf16")))
    starts: list[int] = []
    previous: int | None = None
    for size, clusters in zip(sizes, _assign_clusters(rng, sizes, wanted), strict=True):
        starts.append(len(program))
        previous = _Block(rng, program, int(size), convolutional, element).fill(clusters, previous)
    graph = program.graph(starts)
    return graph, np.flatnonzero(np.isin(graph.node_opcode, [OPCODES[name] for name in CONFIGURABLE]))


def _block_sizes(rng: Generator, nodes: int) -> Int64:
    blocks = min(nodes // (2 * _MIN_BLOCK), 2 + int(rng.integers(max(1, round(math.log2(nodes / MIN_NODES))))))
    shares = rng.dirichlet(np.full(blocks, 0.6))
    sizes = _MIN_BLOCK + np.floor(shares * (nodes - blocks * _MIN_BLOCK)).astype(np.int64)
    sizes[np.argmax(sizes)] += nodes - sizes.sum()
    return np.asarray(sizes)


def _assign_clusters(rng: Generator, sizes: Int64, configurable_nodes: int) -> list[list[int]]:
    """Return the sizes of the clusters of configurable nodes in each block, in proportion to the blocks.

    The more of the nodes are configurable, the larger the clusters: their neighbourhoods then overlap, as in the
    small real graphs, and the share of nodes near a configurable one stays bounded.
    """
    mean = 1 + min(configurable_nodes / sizes.sum() / 0.04, 5)
    clusters: list[list[int]] = [[] for _ in sizes]
    taken = np.full(len(sizes), 2.0)
    left = configurable_nodes
    while left:
        cluster = min(left, max(1, round(mean + rng.uniform(-0.5, 0.5))))
        block = int(np.argmax(sizes / taken))
        clusters[block].append(cluster)
        taken[block] += cluster
        left -= cluster
    return clusters


class _Block:
    """One computation under construction: exactly `size` nodes of the program."""

    def __init__(self, rng: Generator, program: Program, size: int, convolutional: bool, element: str) -> None:
        self._rng, self._program, self._convolutional, self._element = rng, program, convolutional, element
        self._start, self._end = len(program), len(program) + size
        rank = int(rng.integers(4, 6)) if convolutional else 3
        extent = int(rng.choice({3: (128, 256, 512), 4: (14, 28, 56), 5: (8, 16, 16)}[rank]))
        self._shape: Shape = (int(rng.choice((2, 4, 8, 16))), *(extent,) * (rank - 2), int(rng.choice(_WIDTHS)))
        self._skips: dict[Shape, list[int]] = {}

    @property
    def _left(self) -> int:
        return self._end - len(self._program) - 1  # the root tuple takes one

    def fill(self, clusters: list[int], callee: int | None) -> int:
        """Add the block's nodes.

        Args:
            clusters: sizes of its clusters of configurable nodes.
            callee: root of an earlier computation that this one calls.

        Returns:
            The root of this computation.
        """
        add = self._program.add
        state = add("parameter", (), element="tuple")
        if callee is not None:
            add("get-tuple-element", (64,), [add("while", (), [state, callee], element="tuple")])
        activation = self._work(add("parameter", self._shape, element=self._element), min(4, self._spare(clusters)))
        for i, cluster in enumerate(clusters):
            activation = self._bias(self._cluster(activation, cluster))
            rest = clusters[i + 1 :]
            share = self._rng.uniform(0.3, 0.7) / (1 + len(rest))
            activation = self._work(activation, _TAIL_NODES + math.floor(share * (self._spare(rest) - _TAIL_NODES)))
        while self._left:
            self._update(state)
        return self._program.close(self._start)

    def _spare(self, clusters: list[int]) -> int:
        """Return the number of nodes that remain after these clusters."""
        return self._left - sum(2 * cluster + _BIAS_NODES + _TAIL_NODES for cluster in clusters)

    def _cluster(self, activation: int, size: int) -> int:
        """Add a tight chain of `size` configurable nodes, in units of one, two or three, and return its last node."""
        while size:
            unit = min(size, 3)
            activation = self._convolution(activation, unit) if self._convolutional else self._dot(activation, unit)
            size -= unit
        return activation

    def _layout(self, rank: int) -> Shape | None:
        """Draw the compiler's default layout: row-major in most cases, and not always the best."""
        return tuple(self._rng.permutation(rank).tolist()) if self._rng.random() < 0.3 else None

    def _weights(self, dims: Shape, reshaped: bool) -> int:
        flat = (math.prod(dims[:-1]), dims[-1]) if len(dims) > 2 else (1, *dims)
        weights = self._program.add("parameter", flat if reshaped else dims, element=self._element)
        return self._program.add("reshape", dims, [weights], element=self._element) if reshaped else weights

    def _convolution(self, activation: int, unit: int) -> int:
        """Add a convolution; its weights are reshaped in unit 2 and 3, and columns traded for features in unit 3."""
        add, element = self._program.add, self._element
        dims = self._program.dims[activation]
        if unit == 3:
            columns, features = dims[-2:]
            traded = (columns // 2, features * 2) if columns % 2 == 0 and columns > 4 else (columns * 2, features // 2)
            dims = (*dims[:-2], *traded)
            activation = add("reshape", dims, [activation], element=element, layout=self._layout(len(dims)))
        features, size = int(self._rng.choice(_WIDTHS)), int(self._rng.choice((1, 3)))
        stride = int(self._rng.choice((1, 1, 1, 2))) if min(dims[1:-1]) >= 8 else 1
        window = (size,) * (len(dims) - 2)
        weights = self._weights((*window, dims[-1], features), reshaped=unit > 1)
        out = (dims[0], *(-(-extent // stride) for extent in dims[1:-1]), features)
        official, layout = convolution_columns(window, stride, len(out)), self._layout(len(out))
        return add("convolution", out, [activation, weights], element=element, layout=layout, columns=official)

    def _dot(self, activation: int, unit: int) -> int:
        """Add a dot with weights, with reshaped weights (unit 2), or between two reshapes (unit 3)."""
        add, element = self._program.add, self._element
        dims = self._program.dims[activation]
        width = int(self._rng.choice(_WIDTHS))
        if unit == 3:
            flat = (math.prod(dims[:-1]), dims[-1])
            activation = add("reshape", flat, [activation], element=element, layout=self._layout(2))
        weights = self._weights((dims[-1], width), reshaped=unit == 2)
        out = (*self._program.dims[activation][:-1], width)
        product = add("dot", out, [activation, weights], element=element, layout=self._layout(len(out)))
        if unit < 3:
            return product
        return add("reshape", (*dims[:-1], width), [product], element=element, layout=self._layout(len(dims)))

    def _broadcast(self, source: int, dims: Shape) -> int:
        kept = len(self._program.dims[source])
        columns = {DIMENSIONS + i: len(dims) - kept + i for i in range(kept)}
        return self._program.add("broadcast", dims, [source], element=self._element, columns=columns)

    def _bias(self, activation: int) -> int:
        dims = self._program.dims[activation]
        bias = self._program.add("parameter", dims[-1:], element=self._element)
        return self._program.add("add", dims, [activation, self._broadcast(bias, dims)], element=self._element)

    def _work(self, activation: int, nodes: int) -> int:
        """Continue the backbone by `nodes` nodes: elementwise operations, skips and normalizations."""
        add, element, rng = self._program.add, self._element, self._rng
        dims = self._program.dims[activation]
        skips = self._skips.setdefault(dims, [])
        start, end = len(self._program), len(self._program) + nodes
        while (left := end - len(self._program)) > 0:
            kind = rng.random()
            operation = str(rng.choice(BINARY))
            near = left <= _HEAD_NODES or len(self._program) < start + _TAIL_NODES
            if skips and not near and kind < 0.75:
                first, second = (skips[i] for i in rng.integers(len(skips), size=2))
                if kind < 0.2:
                    result = add("select", dims, [activation, first, second], element=element)
                else:
                    result = add(operation, dims, [activation, first], element=element)
            elif not near and left >= 4 and kind < 0.83:
                zero = self._broadcast(add("constant", (), element=element), dims)
                mask = add("compare", dims, [activation, zero], element="pred")
                result = add("select", dims, [activation, zero, mask], element=element)
            elif not near and left >= 4 and kind < 0.9:
                zero = add("constant", (), element=element)
                columns = {DIMENSIONS + i: i for i in range(len(dims) - 1)}
                mean = add("reduce", dims[-1:], [activation, zero], element=element, columns=columns)
                result = add(operation, dims, [activation, self._broadcast(mean, dims)], element=element)
            elif left >= 3 and 0.6 < kind < 0.97:
                other = self._broadcast(add("constant", (), element=element), dims)
                result = add(operation, dims, [activation, other], element=element)
            else:
                result = add(str(rng.choice(UNARY)), dims, [activation], element=element)
            if not near:
                skips.append(activation)
            activation = result
        return activation

    def _update(self, state: int) -> None:
        """Add an optimizer's update of one weight, as in most nodes of a training graph, within the nodes left."""
        add, rng = self._program.add, self._rng
        dims: Shape = (int(rng.choice(_WIDTHS)),) * int(rng.integers(1, 3))
        history = [add("get-tuple-element", dims, [state]) for _ in range(min(3, self._left))]
        if self._left >= 2:
            history.append(add("broadcast", dims, [add("constant", ())]))
        for _ in range(min(self._left, int(rng.integers(16, 48)))):
            kind, others = rng.random(), [history[i] for i in rng.integers(max(1, len(history) - 1), size=2)]
            if kind < 0.05 or len(history) < 2:
                history.append(add(str(rng.choice(UNARY)), dims, history[-1:]))
            elif kind < 0.3:
                history.append(add("select", dims, [history[-1], *others]))
            else:
                history.append(add(str(rng.choice(BINARY)), dims, [history[-1], others[0]]))
