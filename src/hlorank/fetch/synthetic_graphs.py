"""Layout graphs with the statistics of real ones: a backbone of convolutions or dots in a mass of elementwise work.

Properties of real graphs that the generator keeps: about 1.6 edges a node, most of them short and some as long as the
computation; a few hub nodes (tuples) with hundreds of neighbours; several computations of very different sizes; and
configurable nodes in tight clusters, so that only some tens of percent of the nodes are within three edges of one.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.random import Generator

from hlorank.config import ConfigError
from hlorank.data.graph import Graph, Int64
from hlorank.hlo.hlo_pb2 import HloInstructionProto, ShapeProto
from hlorank.hlo.node_features import CONFIGURABLE, OPCODES, node_features, opcode_ids

Shape = tuple[int, ...]

UNARY = ("exponential", "log", "negate", "rsqrt", "sqrt", "tanh")
BINARY = ("add", "divide", "maximum", "minimum", "multiply", "subtract")
ELEMENTWISE = (*UNARY, *BINARY, "select")
_ELEMENTS = {"f32": 11, "bf16": 16, "tuple": 13}  # xla.PrimitiveType

MIN_NODES = 50
_MIN_BLOCK = 24
_BIAS_NODES = 3
# Elementwise nodes after and before each cluster, which keep nodes with other users some edges away from it.
_TAIL_NODES, _HEAD_NODES = 3, 2
_WIDTHS = (32, 64, 96, 128, 192, 256, 384, 512)


def convolution_fields(window: Sequence[int], stride: int, rank: int) -> dict[str, Any]:
    """Return the fields of a batch-first, feature-last convolution with "same" padding, its kernel spatial first."""
    same = {"stride": stride, "window_dilation": 1, "base_dilation": 1}
    dimensions = [{"size": n, "padding_low": (n - 1) // 2, "padding_high": n // 2, **same} for n in window]
    return {
        "window": {"dimensions": dimensions},
        "convolution_dimension_numbers": {
            "input_feature_dimension": rank - 1,
            "input_spatial_dimensions": range(1, rank - 1),
            "kernel_input_feature_dimension": rank - 2,
            "kernel_output_feature_dimension": rank - 1,
            "kernel_spatial_dimensions": range(rank - 2),
            "output_feature_dimension": rank - 1,
            "output_spatial_dimensions": range(1, rank - 1),
        },
        "feature_group_count": 1,
        "batch_group_count": 1,
    }


class Program:
    """A list of instructions that grows in topological order."""

    def __init__(self) -> None:
        self.dims: list[Shape] = []
        self._layouts: list[Shape] = []
        self._instructions: list[HloInstructionProto] = []
        self._edges: list[tuple[int, int]] = []
        self._parameters = 0

    def __len__(self) -> int:
        return len(self.dims)

    def add(
        self,
        opcode: str,
        dims: Shape,
        operands: Iterable[int] = (),
        *,
        element: str = "f32",
        layout: Shape | None = None,
        **fields: Any,
    ) -> int:
        """Append a node with an output of `dims` and return its id; a repeated operand gives one edge.

        `layout` None is that of the latest operand of the same shape where the node is elementwise, as a compiler
        would choose it, and row-major otherwise. `fields` are other fields of the instruction.
        """
        node, sources = len(self), sorted(set(operands))
        if layout is None:
            same = [v for v in sources if self.dims[v] == dims] if opcode in ELEMENTWISE else []
            layout = self._layouts[same[-1]] if same else tuple(reversed(range(len(dims))))
        if opcode == "parameter":
            fields["parameter_number"] = self._parameters
            self._parameters += 1
        parts = [ShapeProto()] * len(sources) if opcode == "tuple" else []
        shape = ShapeProto(
            element_type=_ELEMENTS[element], dimensions=dims, layout={"minor_to_major": layout}, tuple_shapes=parts
        )
        self._instructions.append(HloInstructionProto(opcode=opcode, shape=shape, **fields))
        self.dims.append(dims)
        self._layouts.append(layout)
        self._edges.extend((node, v) for v in sources)
        return node

    def close(self, start: int) -> int:
        """End the computation that began at node `start` with a root tuple of its unused nodes; return the root."""
        used = {v for _, v in takewhile(lambda edge: edge[0] >= start, reversed(self._edges))}
        unused = [node for node in range(start, len(self)) if node not in used]
        self._parameters = 0
        return self.add("tuple", (), unused, element="tuple")

    def graph(self, starts: Sequence[int] = (0,)) -> Graph:
        """Return the nodes as a graph; a computation starts at each of `starts`, and its last node is its root."""
        edges = np.array(self._edges, dtype=np.int64).reshape(-1, 2)
        splits = np.array([*starts, len(self)], dtype=np.int64)
        features = node_features(self._instructions, np.isin(np.arange(len(self)), splits[1:] - 1))
        return Graph(features, opcode_ids(self._instructions), edges, splits)


def default_configurable_nodes(nodes: int) -> int:
    """Return the number of configurable nodes that real graphs of this size have, fewer in graphs smaller than these.

    A power law through 38 of 490, 56 of 1,096, 56 of 2,774 and 62 of 3,163 nodes, between 2 and 7.7 percent.
    """
    power_law = 0.08 * math.pow(nodes / 490, -0.74)
    return round(nodes * min(max(power_law, 0.02), 0.03 + nodes / 6_000, 0.077))


def build_graph(rng: Generator, nodes: int, configurable_nodes: int | None) -> tuple[Graph, Int64]:
    """Draw a layout graph of exactly so many nodes, at least 50; return it with the ids of its configurable nodes.

    These are at most a sixth of the nodes; None is a realistic number. With 2 to 8 percent, 5-20 / 9-34 / 12-48 percent
    of the nodes are within 1 / 2 / 3 edges of one.
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
    """Return the sizes of the clusters of configurable nodes in each block, larger where such nodes are more."""
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

    def _add(self, opcode: str, dims: Shape, operands: Sequence[int] = (), **fields: Any) -> int:
        return self._program.add(opcode, dims, operands, **{"element": self._element, **fields})

    def fill(self, clusters: list[int], callee: int | None) -> int:
        """Add the block's nodes, with clusters of configurable nodes, and a call of `callee`; return the root."""
        state = self._add("parameter", (), element="tuple")
        if callee is not None:
            call = self._add("while", (), [state, callee], element="tuple")
            self._add("get-tuple-element", (64,), [call])
        activation = self._work(self._add("parameter", self._shape), min(4, self._spare(clusters)))
        for i, cluster in enumerate(clusters):
            for _ in range(cluster):
                activation = self._configurable(activation)
            dims = self._program.dims[activation]
            bias = self._broadcast(self._add("parameter", dims[-1:]), dims)
            activation = self._add("add", dims, [activation, bias])
            rest = clusters[i + 1 :]
            share = self._rng.uniform(0.3, 0.7) / (1 + len(rest))
            activation = self._work(activation, _TAIL_NODES + math.floor(share * (self._spare(rest) - _TAIL_NODES)))
        while self._left:
            self._update(state)
        return self._program.close(self._start)

    def _spare(self, clusters: list[int]) -> int:
        return self._left - sum(2 * cluster + _BIAS_NODES + _TAIL_NODES for cluster in clusters)

    def _configurable(self, activation: int) -> int:
        """Add a reshape, or a convolution or dot with its weights, whose default layout is not always the best."""
        dims, rng = self._program.dims[activation], self._rng
        layout = tuple(rng.permutation(len(dims)).tolist()) if rng.random() < 0.3 else None
        if rng.random() < 0.3:
            columns, features = dims[-2:]
            traded = (columns // 2, features * 2) if columns % 2 == 0 and columns > 4 else (columns * 2, features // 2)
            return self._add("reshape", (*dims[:-2], *traded), [activation], layout=layout)
        width = int(rng.choice(_WIDTHS))
        if not self._convolutional:
            weights = self._add("parameter", (dims[-1], width))
            return self._add("dot", (*dims[:-1], width), [activation, weights], layout=layout)
        stride = int(rng.choice((1, 1, 1, 2))) if min(dims[1:-1]) >= 8 else 1
        window = (int(rng.choice((1, 3))),) * (len(dims) - 2)
        weights = self._add("parameter", (*window, dims[-1], width))
        out = (dims[0], *(-(-extent // stride) for extent in dims[1:-1]), width)
        fields = convolution_fields(window, stride, len(out))
        return self._add("convolution", out, [activation, weights], layout=layout, **fields)

    def _broadcast(self, source: int, dims: Shape) -> int:
        kept = range(len(dims) - len(self._program.dims[source]), len(dims))
        return self._add("broadcast", dims, [source], dimensions=kept)

    def _work(self, activation: int, nodes: int) -> int:
        """Continue the backbone by `nodes` nodes: elementwise operations, skips and normalizations."""
        add, rng = self._add, self._rng
        dims = self._program.dims[activation]
        skips = self._skips.setdefault(dims, [])
        start, end = len(self._program), len(self._program) + nodes
        while (left := end - len(self._program)) > 0:
            kind, operation = rng.random(), str(rng.choice(BINARY))
            near = left <= _HEAD_NODES or len(self._program) < start + _TAIL_NODES
            if skips and not near and kind < 0.75:
                first, second = (skips[i] for i in rng.integers(len(skips), size=2))
                many = kind < 0.2
                result = add("select" if many else operation, dims, [activation, first, *([second] if many else [])])
            elif not near and left >= 4 and kind < 0.9:
                over = range(len(dims) - 1)
                mean = add("reduce", dims[-1:], [activation, add("constant", ())], dimensions=over)
                result = add(operation, dims, [activation, self._broadcast(mean, dims)])
            elif left >= 3 and 0.6 < kind < 0.97:
                result = add(operation, dims, [activation, self._broadcast(add("constant", ()), dims)])
            else:
                result = add(str(rng.choice(UNARY)), dims, [activation])
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
