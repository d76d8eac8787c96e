"""Generated graphs for tests, and readers of their features."""

from __future__ import annotations

from typing import Any

import numpy as np

from hlorank.data.collection import Collection
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph, TileConfigurations
from hlorank.data.graph import Graph
from hlorank.fetch.synthetic import (
    SyntheticConfig,
    layout_graph,
)
from hlorank.fetch.synthetic.program import OPCODES

NAMES = {number: name for name, number in OPCODES.items()}
RANDOM, DEFAULT, TILE = (
    Collection.parse(a) for a in ("layout:synthetic:random", "layout:synthetic:default", "tile:synthetic")
)
CONFIG = SyntheticConfig(
    seed=3,
    train=2,
    valid=1,
    test=1,
    min_nodes=60,
    max_nodes=200,
    configurable_nodes=None,
    configurations=40,
    repeated=0.2,
    noise=0.001,
)


def small(seed: int = 0, nodes: int = 300, search: str = "random", **options: Any) -> MeasuredGraph:
    values = {"configurable_nodes": None, "configurations": 200, "repeated": 0.25, "noise": 0.001} | options
    return layout_graph(np.random.default_rng(seed), nodes, search=search, **values)


def layouts(measured: MeasuredGraph) -> LayoutConfigurations:
    assert isinstance(measured.configurations, LayoutConfigurations)
    return measured.configurations


def tiles(measured: MeasuredGraph) -> TileConfigurations:
    assert isinstance(measured.configurations, TileConfigurations)
    return measured.configurations


def shape(graph: Graph, node: int) -> tuple[int, ...]:
    return tuple(int(d) for d in graph.node_feat[node, 21:27] if d)


def minor_to_major(graph: Graph, node: int) -> tuple[int, ...]:
    return tuple(int(d) for d in graph.node_feat[node, 134:140])[: len(shape(graph, node))]
