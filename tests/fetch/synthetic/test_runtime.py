"""The analytic runtime of layouts against plain loops."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path

from hlorank.data.configurations import LayoutConfigurations
from hlorank.data.graph import Graph
from hlorank.fetch.synthetic import (
    layout_runtime,
)
from hlorank.fetch.synthetic import runtime as formula
from hlorank.fetch.synthetic.program import ELEMENT_BYTES, ELEMENTWISE, Program
from tests.fetch.synthetic.drawn import (
    NAMES,
    layouts,
    minor_to_major,
    shape,
    small,
)

FREE = ("parameter", "constant", "broadcast", "tuple", "get-tuple-element", "while")


def plain_runtime(graph: Graph, node_ids: list[int], configuration: NDArray[np.int8]) -> float:
    """Return the runtime by the module's formula, node by node and edge by edge, for one configuration."""
    slots = dict(zip(node_ids, configuration.tolist(), strict=True))
    operands: dict[int, list[int]] = {node: [] for node in range(graph.nodes)}
    for u, v in graph.edge_index.tolist():
        operands[u].append(v)
    names = [NAMES[int(o)] for o in graph.node_opcode]
    size = [
        math.prod(shape(graph, n)) * ELEMENT_BYTES[int(np.argmax(graph.node_feat[n, 2:21]))] for n in range(graph.nodes)
    ]

    def chosen(node: int, tensor: int, of: int) -> tuple[int, ...]:
        values = tuple(d for d in slots[node][6 * tensor : 6 * tensor + 6] if d >= 0)
        return values or minor_to_major(graph, of)

    def waste(node: int, layout: tuple[int, ...]) -> float:
        dims = shape(graph, node)
        return math.sqrt(
            math.prod(math.ceil(dims[d] / r) * r / dims[d] for d, r in zip(layout, (128, 8), strict=False))
        )

    def differ(have: tuple[int, ...], want: tuple[int, ...]) -> float:
        return 0.0 if have == want else 0.5 if have[:1] == want[:1] else 1.0

    out: list[tuple[int, ...]] = []
    total = 0.0
    for u in range(graph.nodes):
        alike = [
            v
            for v in operands[u]
            if names[u] in ELEMENTWISE and names[v] not in FREE and shape(graph, v) == shape(graph, u)
        ]
        if u in slots:
            first, last = operands[u][0], operands[u][-1]
            out.append(chosen(u, 0, u))
            wants = [(first, chosen(u, 1, first))]
            if names[u] == "convolution":
                wants.append((last, chosen(u, 2, last)))
            moved = size[u] * waste(u, out[u]) + sum(size[v] * waste(v, want) for v, want in wants)
            total += formula.OVERHEAD + moved / formula.BANDWIDTH
            if names[u] != "reshape":
                # Both put the output features last, and contract the last dimension of the input.
                flops = 2 * math.prod(shape(graph, u)) * math.prod(shape(graph, last)) / shape(graph, u)[-1]
                miss = 1.0 if wants[0][1][0] == len(shape(graph, first)) - 1 else formula.MISS
                total += flops / formula.FLOPS * math.sqrt(waste(u, out[u]) * waste(first, wants[0][1])) * miss
        else:
            out.append(out[alike[-1]] if alike else minor_to_major(graph, u))
            wants = [(v, out[u]) for v in alike]
            if names[u] not in FREE:
                total += formula.OVERHEAD + size[u] * waste(u, out[u]) / formula.BANDWIDTH
        total += sum(size[v] / formula.COPY_BANDWIDTH * differ(out[v], want) for v, want in wants)
    return total


@pytest.mark.parametrize("seed", range(8))
def test_runtime_equals_plain_loops(seed: int) -> None:
    measured = small(seed, nodes=150, configurable_nodes=12, configurations=12)
    configurations = layouts(measured)
    ids = configurations.node_ids.tolist()
    expected = [plain_runtime(measured.graph, ids, row) for row in configurations.values()]
    assert layout_runtime(measured.graph, configurations) == pytest.approx(expected, rel=1e-12)
    assert np.std(expected) > 0


def test_distant_configurable_nodes_depend_on_each_other() -> None:
    measured = small(nodes=2000)
    graph, configurations = measured.graph, layouts(measured)
    codes, nodes = np.asarray(configurations.codes), configurations.node_ids
    other = codes[np.argmax(codes != codes[0], axis=0), np.arange(len(nodes))]  # the first other layouts of each node
    ends = np.concatenate([graph.edge_index, graph.edge_index[:, ::-1]]).T
    edges = csr_matrix((np.ones(len(ends[0])), tuple(ends)), shape=(graph.nodes, graph.nodes))
    hops = shortest_path(edges, unweighted=True, indices=nodes)[:, nodes]
    first, second = np.nonzero(np.triu(hops > 3))

    def runtime(*changed: NDArray[np.int64]) -> NDArray[np.float64]:
        rows = np.tile(codes[0], (len(changed[0]), 1))
        for columns in changed:
            rows[np.arange(len(rows)), columns] = other[columns]
        return layout_runtime(graph, dataclasses.replace(configurations, codes=rows))

    base = layout_runtime(graph, configurations)[0]
    together = runtime(first, second) - runtime(first) - runtime(second) + base
    assert (np.abs(together) > 1e-6 * base).sum() >= 10


def test_layouts_travel_through_elementwise_nodes() -> None:
    """dot -> tanh -> exponential -> dot: the copy has a cost where the second dot requires another layout."""
    program = Program()
    x, w = (program.add("parameter", (128, 128)) for _ in range(2))
    first = program.add("dot", (128, 128), [x, w])
    middle = program.add("exponential", (128, 128), [program.add("tanh", (128, 128), [first])])
    weights = program.add("parameter", (128, 128))
    second = program.add("dot", (128, 128), [middle, weights])
    rows = np.full((4, 18), -1, dtype=np.int8)
    rows[1, [0, 1, 6, 7]] = [0, 1, 1, 0]  # output column-major, input row-major as it comes
    rows[2, [0, 1, 6, 7]] = [1, 0, 0, 1]  # input column-major
    rows[3, [0, 1, 6, 7]] = [1, 0, 1, 0]
    ids = np.array([first, second])
    codes = np.array([[3, 3], [1, 3], [1, 2], [3, 2], [0, 0]], dtype=np.uint8)
    same, out, both, into, default = layout_runtime(program.graph(), LayoutConfigurations(ids, rows, codes))
    copy = 128 * 128 * 4 / formula.COPY_BANDWIDTH
    assert default == same
    assert out - same == pytest.approx(copy)  # 128 fills the lanes either way, so only the copy differs
    miss = into - same - copy
    assert miss == pytest.approx(2 * 128**3 / formula.FLOPS * (formula.MISS - 1))
    assert both - same == pytest.approx(miss)
