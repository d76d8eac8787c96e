"""Generated collections with the published sizes of TpuGraphs, in the official npz tree.

Numbers of graphs and configurations are exact, numbers of nodes have the published mean, and the largest graph has the
published maxima. What is not published is drawn: numbers of configurable nodes such that a mean configuration has
about 107 of them, which follows from the 240 GB that all layouts take as float32. Opcodes have the frequencies of real
files; structure, layouts and runtimes are those of the origin `synthetic`. Labels of test are withheld.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from hlorank.data.collection import SPLITS, Collection, Split, write_graph
from hlorank.data.configurations import (
    TILE_FEATURES,
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    TileConfigurations,
)
from hlorank.data.graph import Graph
from hlorank.fetch.synthetic import layout_graph
from hlorank.fetch.synthetic_graphs import UNARY, Program
from hlorank.files import fingerprint

MEAN_CONFIGURABLE = 107
MAX_CONFIGURATIONS = 100_040
NOISE = 1e-4
_MIN_NODES, _MIN_CONFIGURATIONS = 300, 20
_MAX_SHARE = 0.077  # of configurable nodes, as in real files
_SIGMA = 0.8  # of the logarithms of numbers


@dataclass(frozen=True)
class Published:
    """Published sizes of a collection."""

    graphs: tuple[int, int, int]  # of train, valid and test
    configurations: int  # of all graphs
    nodes: tuple[int, int]  # mean and maximum
    configurable: int = 0  # maximum of configurable nodes, 0 for tiles
    edges: int | None = None  # maximum; None where it is not published
    max_configurations: int = MAX_CONFIGURATIONS  # of a graph
    repeated: float = 0.0  # share of configurations that repeat another one, as in real files


PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        "layout:xla:default": Published((69, 7, 8), 771_496, (13_894, 43_615), 3_143, 73_881, repeated=0.37),
        "layout:xla:random": Published((69, 7, 8), 908_561, (13_894, 43_615), 3_143, 73_881),
        "layout:nlp:default": Published((198, 20, 17), 13_285_415, (5_711, 21_919), 848, repeated=0.37),
        "layout:nlp:random": Published((198, 20, 17), 16_125_781, (5_711, 21_919), 848),
        # The maxima of tiles are not published.
        "tile:xla": Published((5_709, 676, 844), 12_870_077, (40, 400), max_configurations=20_000),
    }
)

# Nodes of each opcode by the number of operands, in the five real layout files of the project's shared data (8,800
# nodes), without configurable nodes and products.
_OPERANDS = (
    {63: 670, 24: 174, 48: 34, 4: 8},
    {45: 1441, 13: 997, 25: 338, 59: 234, 94: 157, 92: 65, 81: 38, 12: 33, 98: 19, 31: 14, 60: 14, 37: 11, 19: 9,
     96: 7, 47: 5, 107: 3, 53: 2, 50: 1, 100: 1},
    {59: 1107, 2: 1040, 95: 657, 32: 253, 20: 191, 5: 111, 57: 68, 54: 35, 89: 27, 52: 23, 87: 18, 22: 15, 62: 15,
     100: 9, 58: 7, 31: 6, 35: 4, 61: 3, 66: 3, 88: 3, 42: 2, 77: 1},
    {83: 323, 70: 232, 35: 16, 102: 9, 72: 6, 17: 4, 41: 2, 36: 1},
    {100: 23, 36: 13, 70: 6, 84: 6, 22: 3, 82: 1, 41: 1, 93: 1},
)  # fmt: skip
_PRODUCTS = (26, 34)


@dataclass(frozen=True)
class GraphSize:
    """Sizes of one graph."""

    split: Split
    number: int  # of the graph in its collection
    nodes: int
    edges: int | None  # None leaves those that are generated
    configurable: int  # configurable nodes, 0 for tiles
    configurations: int


def graph_sizes(
    collection: Collection, configurations: float = 1.0, nodes: float = 1.0, graphs: float = 1.0
) -> list[GraphSize]:
    """Draw the sizes of all graphs of a collection; the same on every call.

    The largest graph is in valid, so that each stage meets it. In nlp it also has the largest number of
    configurations, the worst case; in xla another one has, as the mean configuration would have more nodes than
    published otherwise.

    Args:
        collection: one of `PUBLISHED`.
        configurations: share of the published configurations.
        nodes: share of the published nodes, configurable nodes and edges.
        graphs: share of the published graphs, and of the configurations.
    """
    published = PUBLISHED[str(collection)]
    counts = [max(1, round(count * graphs)) for count in published.graphs]
    total = sum(counts)
    rng = _generator(collection.kind, collection.source)  # collections of one source have the same graphs
    mean, largest = (max(2, round(count * nodes)) for count in published.nodes)
    fewest = 2 if collection.kind == "tile" else max(50, round(_MIN_NODES * nodes))
    sizes = draw_counts(rng, total, mean * total, min(fewest, mean), largest)
    drawn = _draw_configurations(collection, total, configurations)
    configurable = np.zeros(total, dtype=np.int64)
    if published.configurable:
        most = min(max(1, round(published.configurable * nodes)), largest // 6)
        weights = _draw_configurations(replace(collection, search="random"), total, configurations)
        configurable = _draw_configurable(rng, sizes, weights, MEAN_CONFIGURABLE * nodes, most)
    splits = [split for split, count in zip(SPLITS, counts, strict=True) for _ in range(count)]
    order = np.concatenate([[counts[0]], np.delete(np.arange(total), counts[0])])  # number 0 is the first of valid
    edges = None if published.edges is None else round(published.edges * nodes)
    return [
        GraphSize(
            split=splits[place],
            number=number,
            nodes=int(sizes[number]),
            edges=edges if number == 0 else None,
            configurable=int(configurable[number]),
            configurations=int(drawn[number]),
        )
        for number, place in enumerate(order.tolist())
    ]


def _draw_configurations(collection: Collection, graphs: int, share: float) -> NDArray[np.int64]:
    published = PUBLISHED[str(collection)]
    highest = max(2, round(published.max_configurations * share))
    lowest = max(1, min(_MIN_CONFIGURATIONS, highest // 4))
    total = round(published.configurations * share * graphs / sum(published.graphs))
    total = min(max(total, lowest * graphs), highest * graphs)
    drawn = draw_counts(_generator(str(collection)), graphs, total, lowest, highest)
    if collection.source == "xla" and collection.kind == "layout" and graphs > 1:
        middle = int(np.argsort(drawn)[graphs // 2])
        drawn[[0, middle]] = drawn[[middle, 0]]
    return drawn


def draw_counts(rng: Generator, number: int, total: int, lowest: int, highest: int) -> NDArray[np.int64]:
    """Draw log-normal counts in lowest..highest with an exact sum; the first is the highest if the sum allows it."""
    first = min(highest, total - lowest * (number - 1))
    logs = rng.normal(0.0, _SIGMA, number - 1)

    def counts(scale: float) -> NDArray[np.int64]:
        return np.clip(np.rint(np.exp(logs + scale)), lowest, highest).astype(np.int64)

    low, high = -40.0, 40.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if counts(middle).sum() + first <= total else (low, middle)
    drawn = counts(low)
    while missing := total - first - int(drawn.sum()):
        free = np.flatnonzero(drawn < highest)[: abs(missing)] if missing > 0 else np.flatnonzero(drawn > lowest)
        drawn[free[: abs(missing)]] += np.sign(missing)
    return np.append(first, drawn)


def _draw_configurable(
    rng: Generator, nodes: NDArray[np.int64], configurations: NDArray[np.int64], mean: float, highest: int
) -> NDArray[np.int64]:
    """Draw numbers of configurable nodes whose mean over configurations is about `mean`; the first is the highest."""
    logs = np.log(nodes) / 2 + rng.normal(0.0, _SIGMA / 2, len(nodes))
    bound = np.minimum(np.maximum(1, nodes * _MAX_SHARE), highest)

    def drawn(scale: float) -> NDArray[np.int64]:
        counts = np.clip(np.rint(np.exp(logs + scale)), 1, bound).astype(np.int64)
        counts[0] = highest
        return counts

    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        few = (drawn(middle) * configurations).sum() <= mean * configurations.sum()
        low, high = (middle, high) if few else (low, middle)
    return drawn(low)


def write_sized_graph(size: GraphSize, collection: Collection, root: Path) -> None:
    """Write one graph into a tree, the folder that holds layout/ or tile/, unless it is there."""
    name = f"{collection.source}_{size.number:04d}"
    path = root / collection.path / size.split / f"{name}.npz"
    if not path.exists():
        write_graph(path, draw_graph(size, collection, name))


def draw_graph(size: GraphSize, collection: Collection, name: str) -> MeasuredGraph:
    """Draw a graph of these sizes; equal arguments give equal graphs."""
    # Draws that make the graph come first, so that both collections of a source have the same.
    rng = _generator(collection.kind, collection.source, size.number)
    repeated = PUBLISHED[str(collection)].repeated
    if collection.search is None:
        measured = _tile_kernel(rng, size.nodes, size.configurations, repeated, name)
    else:
        measured = layout_graph(
            rng, size.nodes, size.configurable, size.configurations, collection.search, repeated, NOISE, name
        )
    rng = _generator(collection.kind, collection.source, size.number, "opcodes")
    graph = measured.graph if size.edges is None else _with_edges(rng, measured.graph, size.edges)
    configurations = measured.configurations
    kept = np.isin(graph.node_opcode, _PRODUCTS)
    if isinstance(configurations, LayoutConfigurations):
        kept[configurations.node_ids] = True
    graph = replace(graph, node_opcode=_real_opcodes(rng, graph, ~kept))
    labels = measured.measurements
    if size.split == "test":
        none = np.zeros_like(labels.runtime)
        labels = Measurements(none, None if labels.normalizer is None else none + 1)
    return MeasuredGraph(name, graph, configurations, labels)


def _tile_kernel(rng: Generator, nodes: int, configurations: int, repeated: float, name: str) -> MeasuredGraph:
    """Draw a chain of elementwise operations, tiles of its output, and runtimes by the number of tiles."""
    shape = tuple(rng.choice((64, 100, 128, 384, 1000), 3).tolist())
    program = Program()
    node = program.add("parameter", shape)
    for opcode in rng.choice(UNARY, nodes - 1).tolist():
        node = program.add(opcode, shape, [node])
    distinct = rng.integers(1, np.array(shape) + 1, (max(1, round((1 - repeated) * configurations)), 3))
    tiles = distinct[np.r_[: len(distinct), rng.integers(len(distinct), size=configurations - len(distinct))]]
    feat = np.zeros((configurations, TILE_FEATURES), dtype=np.float32)
    feat[:, 8:11], feat[:, 14], feat[:, 15] = tiles, tiles.sum(axis=1), tiles.prod(axis=1)
    count = np.prod(-(-np.array(shape) // tiles), axis=1)
    runtime = count * (300 + tiles.prod(axis=1) / 1000) * np.exp(rng.normal(0, NOISE, configurations))
    measured = Measurements(np.rint(runtime).astype(np.int64), np.full(configurations, round(runtime[0])))
    return MeasuredGraph(name, program.graph(), TileConfigurations(feat), measured)


def _real_opcodes(rng: Generator, graph: Graph, changed: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the opcodes, those of some nodes drawn by their number of operands."""
    opcodes = graph.node_opcode.copy()
    operands = np.minimum(np.bincount(graph.edge_index[:, 0], minlength=graph.nodes), len(_OPERANDS) - 1)
    for count, frequencies in enumerate(_OPERANDS):
        nodes = np.flatnonzero(changed & (operands == count))
        share = np.array([*frequencies.values()]) / sum(frequencies.values())
        opcodes[nodes] = rng.choice(np.array([*frequencies], dtype=np.uint8), len(nodes), p=share)
    return opcodes


def _with_edges(rng: Generator, graph: Graph, count: int) -> Graph:
    """Return the graph with edges added at random, to nodes shortly before, or left out, until there are `count`.

    The first and the last operand of a node stay, by which layouts are assigned.
    """
    edges = graph.edge_index
    while (missing := count - len(edges)) > 0:
        user = rng.integers(1, graph.nodes, missing)
        low, high = (np.searchsorted(edges[:, 0], user, side=side) for side in ("left", "right"))
        inner = high - low >= 2  # nodes with two operands get one between them
        ends = np.stack([edges[low[inner], 1], edges[high[inner] - 1, 1]])
        added = np.stack([user[inner], rng.integers(ends[0], ends[1] + 1)], axis=1)
        edges = np.unique(np.concatenate([edges, added]), axis=0)
    middle = np.flatnonzero((edges[1:-1, 0] == edges[:-2, 0]) & (edges[1:-1, 0] == edges[2:, 0])) + 1
    left_out = rng.choice(middle, min(len(middle), len(edges) - count), replace=False)
    return replace(graph, edge_index=np.delete(edges, left_out, axis=0))


def _generator(*key: object) -> Generator:
    return np.random.default_rng(int(fingerprint([*map(str, key)]), 16))
