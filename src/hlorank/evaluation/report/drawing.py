"""Drawings of graphs: nodes as symbols of their segments, configurable ones with a ring."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.config import ConfigError
from hlorank.data.collection import SPLITS, Split
from hlorank.evaluation.properties import opcode_names
from hlorank.evaluation.report.graph_layout import layout
from hlorank.evaluation.report.groups import Group
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.files import DataError, fingerprint
from hlorank.partition.partition_store import PartitionStore
from hlorank.partition.segments import Partition

MAX_NODES = 5_000
"""Nodes of the largest graph whose drawing is readable."""
CELL = 14
_FAR = 12  # rows; longer edges are shown on demand, as they cover all others
_PAGE = 1_200  # pixels


class Symbol(NamedTuple):
    """Symbol of a node."""

    x: float
    y: float
    segment: int
    configurable: bool
    title: str


class Label(NamedTuple):
    """Number of a segment, in the middle of its nodes."""

    x: float
    y: float
    segment: int


class Segment(NamedTuple):
    """Line of the legend."""

    segment: int
    nodes: int
    configurable: int


class Drawing(NamedTuple):
    """Graph as an SVG.

    Attributes:
        graph: name of the graph.
        split: its split.
        width: width of the drawing in units.
        height: height in units.
        scale: pixels of a unit.
        edges: number of edges.
        far_edges: number of edges between distant rows or blocks.
        near: the other edges, as the data of a path.
        far: the distant edges, as the data of a path.
        symbols: the nodes.
        labels: numbers of the segments, empty for one segment.
        segments: the legend.
    """

    graph: str
    split: Split
    width: int
    height: int
    scale: float
    edges: int
    far_edges: int
    near: str
    far: str
    symbols: Sequence[Symbol]
    labels: Sequence[Label]
    segments: Sequence[Segment]


def draw(split: Split, graph: GraphFeatures, partition: Partition | None, opcodes: Sequence[int]) -> Drawing:
    """Draw a graph.

    Args:
        split: the graph's split.
        graph: a graph of at most `MAX_NODES` nodes.
        partition: its segments; None draws the graph as one segment.
        opcodes: the vocabulary that `graph.opcode` indexes from 1.
    """
    x, y, block = layout(graph.nodes, graph.edge_index)
    segment_of = np.zeros(graph.nodes, dtype=np.int64) if partition is None else np.asarray(partition.segment_of)
    configurable = np.zeros(graph.nodes, dtype=np.bool_)
    if isinstance(graph.configurations, LayoutFeatures):
        configurable[graph.configurations.node_ids] = True
    places = np.stack([x, y], axis=1) * CELL + CELL
    users, operands = graph.edge_index.T
    far = (block[users] != block[operands]) | (y[users] - y[operands] > _FAR)
    names = opcode_names(opcodes)
    symbols = [
        Symbol(
            place[0],
            place[1],
            segment,
            chosen,
            f"{node}: {names[opcode]}, segment {segment}{', configurable' * chosen}",
        )
        for node, (place, segment, chosen, opcode) in enumerate(
            zip(places.tolist(), segment_of.tolist(), configurable.tolist(), graph.opcode.tolist(), strict=True)
        )
    ]
    numbers = np.unique(segment_of).tolist()
    width = int(places[:, 0].max()) + CELL
    return Drawing(
        graph=graph.name,
        split=split,
        width=width,
        height=int(places[:, 1].max()) + CELL,
        scale=float(np.clip(_PAGE / width, 0.75, 1.5)),
        edges=len(far),
        far_edges=int(far.sum()),
        near=_path(places, graph.edge_index[~far]),
        far=_path(places, graph.edge_index[far]),
        symbols=symbols,
        labels=[_label(segment, places[segment_of == segment], block[segment_of == segment]) for segment in numbers]
        if len(numbers) > 1
        else [],
        segments=[
            Segment(segment, int((segment_of == segment).sum()), int(configurable[segment_of == segment].sum()))
            for segment in numbers
        ],
    )


def _path(places: NDArray[np.int64], edges: NDArray[np.int64]) -> str:
    return "".join(
        f"M{x} {y}L{u} {v}"
        for (u, v), (x, y) in zip(places[edges[:, 0]].tolist(), places[edges[:, 1]].tolist(), strict=True)
    )


def _label(segment: int, places: NDArray[np.int64], block: NDArray[np.int64]) -> Label:
    """Return the label at the median of the segment's nodes in the block that contains most of them."""
    x, y = np.median(places[block == np.bincount(block).argmax()], axis=0).tolist()
    return Label(x, y, segment)


@dataclass(frozen=True)
class StoredGraphs:
    """Features that models were trained on, and the segments if one of them was trained on segments."""

    store: FeatureStore
    partitions: PartitionStore | None

    @property
    def max_nodes(self) -> int:
        """Nodes of the largest graph of train, 0 without graphs."""
        return max((entry.nodes for entry in self.store.entries("train").values()), default=0)

    def draw(self, split: Split, name: str) -> Drawing:
        """Draw one graph."""
        partition = None if self.partitions is None else self.partitions.open(split, name)
        return draw(split, self.store.open(split, name), partition, self.store.spec.opcodes.tolist())

    def named(self, names: Sequence[str]) -> list[tuple[Split, str]]:
        """Return split and name of the graphs that have one of these names.

        Raises:
            ConfigError: one of these graphs has more than `MAX_NODES` nodes.
        """
        found = [(split, name) for split in SPLITS for name in self.store.graphs(split) if name in names]
        for split, name in found:
            if (nodes := self.store.entries(split)[name].nodes) > MAX_NODES:
                raise ConfigError(
                    f"graph {name}: a drawing of {nodes} nodes is not readable; expected at most {MAX_NODES}"
                )
        return found

    def largest(self, evaluated: Collection[tuple[Split, str]]) -> list[tuple[Split, str]]:
        """Return the largest graph with a readable drawing, if possible among the evaluated ones; empty without one."""
        nodes = {
            (split, name): entry.nodes
            for split in SPLITS
            for name, entry in self.store.entries(split).items()
            if entry.nodes <= MAX_NODES and (not evaluated or (split, name) in evaluated)
        }
        return [max(nodes, key=lambda graph: nodes[graph])] if nodes else []


def open_graphs(groups: Sequence[Group], features: Path, segments: Path) -> StoredGraphs | str:
    """Open the graphs of the runs of one collection.

    Args:
        groups: at least one group, all of one collection.
        features: folder of featurized collections.
        segments: folder of partitioned collections.

    Returns:
        The graphs, or the reason why they are unavailable.
    """
    collection = groups[0].collection
    wanted = {run.spec.get("data") for group in groups for run in group.runs}
    try:
        store = FeatureStore(features / collection.path)
    except DataError as error:
        return f"the features are not on this machine ({error})"
    try:
        partitions = PartitionStore(segments / collection.path)
    except DataError:
        partitions = None
    if partitions is not None and fingerprint([store.fingerprint, partitions.spec.fingerprint]) in wanted:
        return StoredGraphs(store, partitions)
    if fingerprint([store.fingerprint, ""]) in wanted:
        return StoredGraphs(store, None)
    return f"{store.root} holds other features or segments than those that these models were trained on"
