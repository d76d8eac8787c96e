"""Analytic runtime of a graph under layout configurations, as a function of the content of its npz file.

With pad(d, l) = sqrt(ceil(d0 / 128) 128 / d0 * ceil(d1 / 8) 8 / d1) for the two minor-most dimensions d0, d1 of shape
d in layout l (the waste in registers of 8 x 128; the square root models the part that is hidden), the runtime in ns is

    runtime = sum over nodes u of cost(u) + sum over edges (u, v) of bytes(v) / COPY_BANDWIDTH * differ(have, want)
    cost(convolution, dot) = OVERHEAD + flops / FLOPS * sqrt(pad(output) * pad(input)) * miss + moved
    cost(reshape)          = OVERHEAD + moved
    cost(parameter, constant, broadcast, tuple, get-tuple-element, while) = 0
    cost(any other)        = OVERHEAD + moved
    moved = sum over the tensors of bytes * pad / BANDWIDTH: output, input and kernel of a configurable node, output of
            any other
    miss  = 1 if the contracted dimension of the input is minor-most, else MISS
    differ(have, want) = 0 for equal layouts, 0.5 if they share the minor-most dimension, else 1

`have` is the layout of v's output and `want` the layout that u requires: a configurable u requires its input layout of
the first operand and, for a convolution, its kernel layout of the last; an elementwise u requires its own layout of
operands of its shape; any other u accepts every layout. Nodes without cost produce their output in the required layout.
An elementwise node has the layout of its latest other operand of equal shape, so a configured layout propagates over
some ten edges, until a node reshapes, reduces or requires another one; only message passing can learn that. A slot of
six -1 is the default: the node's own minor_to_major, or that of its operand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import LAYOUT_DIMS, LayoutConfigurations
from hlorank.data.graph import Graph, Int64
from hlorank.fetch.synthetic.program import (
    DIMS,
    ELEMENT,
    ELEMENT_BYTES,
    ELEMENTWISE,
    INPUT_FEATURE,
    MINOR_TO_MAJOR,
    OPCODES,
    OUTPUT_FEATURE,
)

Float64 = NDArray[np.float64]
Layouts = NDArray[np.int8]

BANDWIDTH = 900.0  # bytes per ns
COPY_BANDWIDTH = 200.0  # bytes per ns
FLOPS = 20_000.0  # floating point operations per ns
OVERHEAD = 20.0  # ns
MISS = 2.0

_CONVOLUTION, _RESHAPE = OPCODES["convolution"], OPCODES["reshape"]
_ELEMENTWISE = [OPCODES[name] for name in ELEMENTWISE]
_FREE = [OPCODES[name] for name in ("parameter", "constant", "broadcast", "tuple", "get-tuple-element", "while")]
_CHUNK_VALUES = 2**21


def layout_runtime(graph: Graph, configurations: LayoutConfigurations) -> Float64:
    """Return the runtime without noise, (configurations,) float64, ns, by the formula of the module."""
    return RuntimeModel(graph, configurations.node_ids, configurations.codebook)(configurations.codes)


@dataclass(frozen=True, eq=False)
class Operands:
    """Operands of the configurable nodes.

    Attributes:
        input: (configurable nodes,) int64, the first operand, to which the input layout applies.
        weights: (configurable nodes,) int64, the last operand, to which the kernel layout of a convolution applies.
    """

    input: Int64
    weights: Int64

    @classmethod
    def of(cls, graph: Graph, node_ids: Int64) -> Operands:
        """Return the operands from the edges, whose rows are sorted."""
        users, operands = graph.edge_index.T
        first = np.searchsorted(users, node_ids, side="left")
        end = np.searchsorted(users, node_ids, side="right")
        return cls(operands[first], operands[end - 1])


def pad(dims: Int64, layouts: Layouts) -> Float64:
    """Return the padding waste, pad in the module's formula, for broadcastable (..., 6) shapes and layouts."""
    waste = np.ones(np.broadcast_shapes(dims.shape, layouts.shape)[:-1])
    dims = np.broadcast_to(dims, (*waste.shape, LAYOUT_DIMS))
    for position, lanes in enumerate((128, 8)):
        axis = np.broadcast_to(layouts[..., position], waste.shape).astype(np.int64)
        extent = np.take_along_axis(dims, np.maximum(axis, 0)[..., None], axis=-1)[..., 0]
        # Beyond the rank nothing is wasted; a table also has rows for nodes of a higher rank.
        extent = np.where((axis < 0) | (extent == 0), lanes, extent)
        waste *= -(-extent // lanes) * lanes / extent
    return np.asarray(np.sqrt(waste))


class _Facts:
    """Arrays of a graph that the formula needs, over nodes unless a comment names another axis."""

    def __init__(self, graph: Graph, node_ids: Int64) -> None:
        feat, self.opcode = graph.node_feat, graph.node_opcode
        self.node_ids, self.operands = node_ids, Operands.of(graph, node_ids)
        self.dims = feat[:, DIMS : DIMS + LAYOUT_DIMS].astype(np.int64)
        self.rank = (self.dims > 0).sum(axis=1)
        layouts = feat[:, MINOR_TO_MAJOR : MINOR_TO_MAJOR + LAYOUT_DIMS].astype(np.int8)
        self.layouts = np.where(self.dims > 0, layouts, np.int8(-1))
        self.elements = np.maximum(self.dims, 1).prod(axis=1)
        self.bytes = self.elements * ELEMENT_BYTES[feat[:, ELEMENT : ELEMENT + len(ELEMENT_BYTES)].argmax(axis=1)]
        self.slot = np.full(graph.nodes, -1)  # position among the configurable nodes
        self.slot[node_ids] = np.arange(len(node_ids))
        self.elementwise = np.isin(self.opcode, _ELEMENTWISE)
        self.input_feature = feat[node_ids, INPUT_FEATURE].astype(np.int64)  # (configurable nodes,), as the next
        self.output_feature = feat[node_ids, OUTPUT_FEATURE].astype(np.int64)
        self.edges = graph.edge_index.T
        u, v = self.edges
        handed = self.elementwise[u] & ~np.isin(self.opcode[v], _FREE)
        self.alike = handed & (self.dims[u] == self.dims[v]).all(axis=1)  # (edges,)
        self.source = self._source()

    def _source(self) -> Int64:
        """Return the node whose layout each node has: itself, or the start of its chain of elementwise nodes."""
        u, v = self.edges
        source = np.arange(len(self.dims))
        source[u[self.alike]] = v[self.alike]  # rows are sorted: the latest operand stays
        while not np.array_equal(source, further := source[source]):
            source = further
        return source


class RuntimeModel:
    """Tables from which runtimes of many configurations are gathers and sums over configurable nodes.

    Nothing has the size configurations x nodes: cost that no configuration changes is one constant; cost that one
    configurable node changes is a row of a table (configurable nodes, U); and copies between the layouts of two of
    them are weighted pairs of ports. A port is one tensor (output, input, kernel) of one configurable node.

    Args:
        graph: the graph.
        node_ids: (configurable nodes,) int64, increasing.
        codebook: (U, 18) int8, the rows that codes point to.
    """

    def __init__(self, graph: Graph, node_ids: Int64, codebook: Layouts) -> None:
        facts = _Facts(graph, node_ids)
        tensors = (node_ids, facts.operands.input, facts.operands.weights)
        ports = [_resolve(codebook[:, 6 * i : 6 * i + 6], facts.layouts[nodes]) for i, nodes in enumerate(tensors)]
        self._single = _configurable_costs(facts, ports)
        self._constant = self._add_other_costs(facts, ports[0])
        self._add_copies(facts, np.concatenate(ports))

    def _add_other_costs(self, facts: _Facts, output: Layouts) -> float:
        """Add the nodes with the layout of a configurable one to its costs; return the cost of all others."""
        paid = (facts.slot < 0) & ~np.isin(facts.opcode, _FREE)
        owner = facts.slot[facts.source]
        follows = paid & (owner >= 0)
        moved = np.bincount(owner[follows], weights=facts.bytes[follows], minlength=len(output))
        # A follower has its source's shape, so it has its source's padding too.
        self._single += moved[:, None] * pad(facts.dims[facts.node_ids, None], output) / BANDWIDTH
        fixed = paid & ~follows
        waste = pad(facts.dims[fixed], facts.layouts[facts.source[fixed]])
        return float((facts.bytes[fixed] * waste).sum() / BANDWIDTH + OVERHEAD * paid.sum())

    def _add_copies(self, facts: _Facts, ports: Layouts) -> None:
        """Assign the copy cost of every edge to the constant, the table, or the pairs."""
        count, (u, v) = len(facts.node_ids), facts.edges
        slot = facts.slot[u]
        into = (slot >= 0) & (v == facts.operands.input[slot])
        kernel = (facts.opcode[u] == _CONVOLUTION) & (v == facts.operands.weights[slot]) & ~into
        asks = (facts.alike & (facts.source[u] != facts.source[v])) | into | kernel
        slot, into, kernel, u, v = slot[asks], into[asks], kernel[asks], u[asks], v[asks]
        weight = facts.bytes[v] / COPY_BANDWIDTH

        # Numbers instead of layouts: differ() becomes a small table.
        distinct, numbers = np.unique(
            np.concatenate([facts.layouts, ports.reshape(-1, 6)]), axis=0, return_inverse=True
        )
        own, port_layout = numbers[: len(facts.layouts)], numbers[len(facts.layouts) :].reshape(ports.shape[:2])
        differ = (distinct[:, None] != distinct).any(axis=-1) * 0.5 + (distinct[:, None, 0] != distinct[:, 0]) * 0.5

        have, have_port = own[facts.source[v]], facts.slot[facts.source[v]]
        want, want_port = own[facts.source[u]], facts.slot[facts.source[u]]
        want_port = np.where(into, count + slot, np.where(kernel, 2 * count + slot, want_port))
        fixed = (have_port < 0) & (want_port < 0)
        self._constant += float((weight * differ[have, want])[fixed].sum())
        one = (have_port < 0) != (want_port < 0)
        port, other = np.where(have_port < 0, want_port, have_port)[one], np.where(have_port < 0, have, want)[one]
        np.add.at(self._single, port % count, weight[one, None] * differ[port_layout[port], other[:, None]])

        both = (have_port >= 0) & (want_port >= 0)
        pairs, index = np.unique(np.stack([have_port[both], want_port[both]]), axis=1, return_inverse=True)
        self._weight = np.bincount(index.ravel(), weights=weight[both], minlength=pairs.shape[1])
        self._pairs, self._port_layout, self._differ = pairs, port_layout, differ

    def __call__(self, codes: NDArray[np.unsignedinteger[Any]]) -> Float64:
        """Return (configurations,) float64 ns for codes (configurations, configurable nodes)."""
        count = len(self._single)
        have, want = self._pairs
        step = max(1, _CHUNK_VALUES // max(count, len(have)))
        runtime = np.empty(len(codes))
        for start in range(0, len(codes), step):
            chunk = codes[start : start + step].astype(np.int64)
            single = self._single[np.arange(count), chunk].sum(axis=1)
            left = self._port_layout[have, chunk[:, have % count]]
            right = self._port_layout[want, chunk[:, want % count]]
            runtime[start : start + step] = self._constant + single + self._differ[left, right] @ self._weight
        return runtime


def _resolve(slots: Layouts, default: Layouts) -> Layouts:
    """Return (configurable nodes, U, 6) layouts of one tensor: the codebook's, or the default where it has none."""
    return np.where(slots[None, :, :1] < 0, default[:, None], slots[None])


def _configurable_costs(facts: _Facts, ports: list[Layouts]) -> Float64:
    """Return (configurable nodes, U) ns of the configurable nodes themselves."""
    nodes, operands = facts.node_ids, facts.operands
    convolution, reshape = (facts.opcode[nodes] == opcode for opcode in (_CONVOLUTION, _RESHAPE))
    output, into, kernel = (
        pad(facts.dims[tensor, None], layouts)
        for tensor, layouts in zip((nodes, operands.input, operands.weights), ports, strict=True)
    )
    moved = facts.bytes[nodes, None] * output + facts.bytes[operands.input, None] * into
    moved += (convolution * facts.bytes[operands.weights])[:, None] * kernel
    # The weights are (contracted elements) x (output features).
    last = np.maximum(facts.rank[nodes] - 1, 0)
    features = facts.dims[nodes, np.where(convolution, facts.output_feature, last)]
    flops = 2.0 * facts.elements[nodes] * facts.elements[operands.weights] / np.maximum(features, 1)
    contracted = np.where(convolution, facts.input_feature, facts.rank[operands.input] - 1)
    miss = np.where(ports[1][..., 0] == contracted[:, None], 1.0, MISS)
    compute = np.where(reshape, 0.0, flops / FLOPS)[:, None] * np.sqrt(output * into) * miss
    return np.asarray(OVERHEAD + compute + moved / BANDWIDTH)
