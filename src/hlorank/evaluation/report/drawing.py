"""A graph as it is drawn: its nodes as symbols of their segments, those that are configurable with a ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.data.collection import Split
from hlorank.evaluation.report.graph_layout import layout
from hlorank.featurize.feature_spec import VIRTUAL_OPCODE
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.hlo.opcodes import OPCODES
from hlorank.partition.segments import Partition

MOST_NODES = 5_000
"""Of a drawing that can be read."""
CELL = 14
_FAR = 12  # rows; edges beyond are shown on demand, as they lie over all others
_PAGE = 1_200  # pixels
_NAMES = {number: name for name, number in OPCODES.items()} | {VIRTUAL_OPCODE: "virtual node"}


class Symbol(NamedTuple):
    """A node."""

    x: float
    y: float
    segment: int
    configurable: bool
    says: str


class Label(NamedTuple):
    """The number of a segment, where most of it lies."""

    x: float
    y: float
    segment: int


class Segment(NamedTuple):
    """A line of the legend."""

    segment: int
    nodes: int
    configurable: int


class Drawing(NamedTuple):
    """A graph in an SVG.

    Attributes:
        graph: its name.
        split: its split.
        width: of the drawing, in its own units.
        height: in the same.
        scale: pixels of a unit.
        edges: of the graph.
        far_edges: those of them between distant rows or blocks.
        near: the other edges, as the data of a path.
        far: the distant ones.
        symbols: its nodes.
        labels: numbers of the segments, if there are several.
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
    """Places a graph's nodes and edges.

    Args:
        split: the graph's split.
        graph: at most `MOST_NODES` nodes, so that it can be read.
        partition: its segments; None draws the graph as one.
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
    names = ["unknown", *(_NAMES.get(opcode, f"opcode {opcode}") for opcode in opcodes)]
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
    """In the middle of what lies in the block that holds most of the segment."""
    most = places[block == np.bincount(block).argmax()]
    x, y = np.median(most, axis=0).tolist()
    return Label(x, y, segment)
