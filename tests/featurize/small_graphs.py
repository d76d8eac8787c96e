"""Small graphs of both kinds."""

from typing import Any

import numpy as np

from hlorank.data.collection import Collection
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph, Measurements, TileConfigurations
from hlorank.data.graph import Graph
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.featurize.fit_spec import TrainSample, fit_spec
from hlorank.hlo.node_features import OPCODES
from tests.sections import featurize_config

Node = tuple[str, list[int], list[int]]


def graph_of(*nodes: Node, columns: dict[int, dict[int, float]] | None = None) -> Graph:
    """Make a graph of float32 nodes (opcode, dimensions, operands); `columns` are further features by node."""
    feat = np.zeros((len(nodes), 140), dtype=np.float32)
    for row, (_, dims, _) in zip(feat, nodes, strict=True):
        row[21 : 21 + len(dims)], row[28], row[13] = dims, np.prod(dims), 1
    for node, values in (columns or {}).items():
        feat[node, [*values]] = [*values.values()]
    edges = sorted((user, operand) for user, (_, _, operands) in enumerate(nodes) for operand in operands)
    opcodes = np.array([OPCODES[opcode] for opcode, _, _ in nodes], dtype=np.uint8)
    return Graph(feat, opcodes, np.array(edges, dtype=np.int64).reshape(-1, 2), np.array([0, len(nodes)]))


def fitted(address: str, *graphs: MeasuredGraph, **changes: Any) -> FeatureSpec:
    """Fit a specification with the given options on graphs."""
    options = featurize_config(**changes)
    samples = [TrainSample.of(graph.name, graph, options) for graph in graphs]
    return fit_spec(Collection.parse(address), options, samples)


def _graph(rng: np.random.Generator, nodes: int) -> Graph:
    feat = rng.integers(0, 5, (nodes, 140)).astype(np.float32)
    feat[:, 1] = 0
    feat[:, 27] = rng.integers(0, 10**6, nodes)
    rank = rng.integers(0, 5, nodes)
    feat[:, 21:27] = np.where(np.arange(6) < rank[:, None], rng.integers(1, 99, (nodes, 6)), 0)
    feat[:, 28] = np.where(feat[:, 21:27] > 0, feat[:, 21:27], 1).prod(axis=1)
    feat[:, 134:] = 0
    for node in range(nodes):
        feat[node, 134 : 134 + rank[node]] = rng.permutation(rank[node])
    edges = sorted({(u, int(rng.integers(u))) for u in range(1, nodes) for _ in range(2)})
    splits = np.unique([0, nodes // 3, nodes // 2, nodes])
    opcodes = rng.choice([2, 26, 34, 75, 63], nodes).astype(np.uint8)
    return Graph(feat, opcodes, np.array(edges, dtype=np.int64).reshape(-1, 2), splits)


def layout_graph(name: str = "graph", seed: int = 0, nodes: int = 40, configurations: int = 12) -> MeasuredGraph:
    """Make a layout graph; every third configuration repeats the first."""
    rng = np.random.default_rng(seed)
    node_ids = np.unique(rng.integers(0, nodes, 1 + nodes // 8))
    values = np.full((configurations, len(node_ids), 18), -1, dtype=np.float32)
    values[..., 0] = rng.integers(-1, 6, values.shape[:2])
    values[::3] = values[0]
    runtime = rng.integers(10**6, 10**7, configurations)
    parts = LayoutConfigurations.from_chunks(node_ids, [values])
    return MeasuredGraph(name, _graph(rng, nodes), parts, Measurements(runtime))


def tile_graph(name: str = "kernel", seed: int = 0, nodes: int = 6, configurations: int = 9) -> MeasuredGraph:
    """Make a tile kernel; configurations 0 and 1 have equal features."""
    rng = np.random.default_rng(seed)
    feat = rng.integers(0, 8, (configurations, 24)).astype(np.float32)
    feat[:, 16:] = 0
    feat[:, 7] *= 1000
    feat[1:2] = feat[0]
    runtime, normalizer = rng.integers(10**3, 10**4, (2, configurations))
    return MeasuredGraph(name, _graph(rng, nodes), TileConfigurations(feat), Measurements(runtime, normalizer))
