"""Distance of a graph to those of training: exact for graphs made by hand, and by family."""

import numpy as np
import pytest

from hlorank.data.graph import Graph
from hlorank.featurize.likeness import distance, pooled, training_graphs
from hlorank.hlo.node_features import OPCODES


def graph(opcodes: list[str], sizes: list[int]) -> Graph:
    node_feat = np.zeros((len(opcodes), 140), dtype=np.float32)
    node_feat[:, 21], node_feat[:, 28], node_feat[:, 13] = sizes, sizes, 1  # f32
    numbers = np.array([OPCODES[name] for name in opcodes], dtype=np.uint8)
    return Graph(node_feat, numbers, np.zeros((0, 2), dtype=np.int64), np.array([0, len(opcodes)]))


def test_values() -> None:
    found = pooled(graph(["parameter", "dot", "dot", "reduce"], [4, 8, 32, 20]))
    # 4 nodes; 64 elements of 4 bytes; the dots have 2^3 and 2^5; half of the nodes are dots, a fourth a reduction.
    np.testing.assert_allclose(found[:4], [2, np.log2(64 * 4 + 1), 4, 5])
    assert sorted(found[4:]) == [0, 0, 0, 0, 0, 0, 2.5, 5]
    np.testing.assert_allclose(pooled(graph(["add", "add"], [2, 8]))[2:4], [2, 3])


def test_the_limit_is_between_families_and_a_graph_of_training_is_at_0() -> None:
    graphs = [graph(["dot"] * count, [size] * count) for count, size in ((2, 8), (2, 8), (4, 8), (32, 8))]
    vectors = [*map(pooled, graphs)]
    known, limit = training_graphs(vectors, ["a", "a", "b", "c"])
    away = [distance(one, known) for one in graphs]
    np.testing.assert_allclose(away, 0, atol=1e-3)  # rounded
    spread = np.std([1, 1, 2, 5]), np.std([vector[1] for vector in vectors])
    steps = (np.diff(vectors[1:], axis=0)[:, :2] / spread).T  # from a to b, and from b to c, which has none nearer
    near, far = np.sqrt(np.square(steps).sum(axis=0) / len(vectors[0]))
    assert limit == pytest.approx(near + 0.85 * (far - near), rel=1e-3)
    assert distance(graph(["convolution"] * 999, [4096] * 999), known) > limit
    assert training_graphs(vectors[:2], ["a", "a"])[1] == 0
