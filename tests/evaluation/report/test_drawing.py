from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hlorank.evaluation.report.drawing import CELL, draw
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.hlo.opcodes import OPCODES
from hlorank.partition.segments import Partition

MakeFeatures = Callable[..., GraphFeatures]


def test_every_node_and_edge_is_drawn(make_features: MakeFeatures) -> None:
    graph = make_features(nodes=60)
    segment_of = (np.arange(60) // 20).astype(np.int32)
    partition = Partition(segment_of, np.zeros((graph.distinct, 3), dtype=np.uint8))
    drawing = draw("valid", graph, partition, range(1, 6))
    assert isinstance(graph.configurations, LayoutFeatures)
    assert [symbol.segment for symbol in drawing.symbols] == segment_of.tolist()
    chosen = [node for node, symbol in enumerate(drawing.symbols) if symbol.configurable]
    assert chosen == graph.configurations.node_ids.tolist()
    assert drawing.near.count("M") + drawing.far.count("M") == drawing.edges == len(graph.edge_index)
    assert drawing.far.count("M") == drawing.far_edges
    assert [label.segment for label in drawing.labels] == [0, 1, 2]
    assert [segment.nodes for segment in drawing.segments] == [20, 20, 20]
    assert sum(segment.configurable for segment in drawing.segments) == len(chosen)
    assert all(0 < symbol.x < drawing.width and 0 < symbol.y < drawing.height for symbol in drawing.symbols)


def test_a_node_says_what_it_is(make_features: MakeFeatures) -> None:
    graph = make_features("tile", nodes=3)
    graph.opcode[:] = [0, 1, 2]
    drawing = draw("test", graph, None, [OPCODES["dot"], 119])
    says = [symbol.says for symbol in drawing.symbols]
    assert says == ["0: unknown, segment 0", "1: dot, segment 0", "2: stochastic-convert, segment 0"]
    assert drawing.labels == [], "one segment needs no number"
    places = sorted((symbol.x, symbol.y) for symbol in drawing.symbols)
    steps = np.diff(np.array(places), axis=0)
    assert (steps % CELL == 0).all()
