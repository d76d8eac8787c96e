from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.evaluation.report.drawing import CELL, StoredGraphs, draw, open_graphs
from hlorank.evaluation.report.groups import Group
from hlorank.evaluation.report.runs import Run
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.files import fingerprint
from hlorank.hlo.node_features import OPCODES
from hlorank.partition.partition_store import PartitionStore
from hlorank.partition.segments import Partition

MakeFeatures = Callable[..., GraphFeatures]
MakeRun = Callable[..., Run]
LAYOUT = Collection.parse("layout:synthetic:random")


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


def test_the_title_of_a_node_names_its_opcode(make_features: MakeFeatures) -> None:
    graph = make_features("tile", nodes=3)
    graph.opcode[:] = [0, 1, 2]
    drawing = draw("test", graph, None, [OPCODES["dot"], 119])
    titles = [symbol.title for symbol in drawing.symbols]
    assert titles == ["0: unknown, segment 0", "1: dot, segment 0", "2: stochastic-convert, segment 0"]
    assert drawing.labels == [], "one segment needs no number"
    places = sorted((symbol.x, symbol.y) for symbol in drawing.symbols)
    steps = np.diff(np.array(places), axis=0)
    assert (steps % CELL == 0).all()


@pytest.fixture
def opened(make_run: MakeRun, tiny_collections: Path) -> Callable[[str], StoredGraphs | str]:
    """Return a function that opens the graphs of a run that was trained on data of a fingerprint."""

    def open_it(data: str) -> StoredGraphs | str:
        group = Group("gst", 0, (make_run(collection=LAYOUT, spec={"data": data}),))
        return open_graphs([group], tiny_collections / "features", tiny_collections / "segments")

    return open_it


def test_graphs_have_the_segments_of_their_trainings(
    opened: Callable[[str], StoredGraphs | str], tiny_collections: Path
) -> None:
    features = FeatureStore(tiny_collections / "features" / LAYOUT.path)
    cut = PartitionStore(tiny_collections / "segments" / LAYOUT.path).spec.fingerprint
    segmented = opened(fingerprint([features.fingerprint, cut]))
    whole = opened(fingerprint([features.fingerprint, ""]))
    assert isinstance(segmented, StoredGraphs)
    assert isinstance(whole, StoredGraphs)
    (graph,) = segmented.largest(set())
    assert features.entries(graph[0])[graph[1]].nodes == max(
        entry.nodes for split in ("train", "valid", "test") for entry in features.entries(split).values()
    )
    assert len(segmented.draw(*graph).segments) > 1
    assert len(whole.draw(*graph).segments) == 1
    name = features.graphs("valid")[0]
    assert segmented.largest({("valid", name)}) == [("valid", name)]
    assert segmented.named([name, "none"]) == [("valid", name)]
    assert segmented.max_nodes == max(entry.nodes for entry in features.entries("train").values())


def test_a_graph_with_too_many_nodes_is_not_drawn(
    opened: Callable[[str], StoredGraphs | str], tiny_collections: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = opened(fingerprint([FeatureStore(tiny_collections / "features" / LAYOUT.path).fingerprint, ""]))
    assert isinstance(data, StoredGraphs)
    monkeypatch.setattr("hlorank.evaluation.report.drawing.MAX_NODES", 3)
    assert data.largest(set()) == []
    with pytest.raises(ConfigError, match=r"nodes is not readable; expected at most 3"):
        data.named(data.store.graphs("valid"))


def test_other_or_missing_data_is_a_reason(
    opened: Callable[[str], StoredGraphs | str], make_run: MakeRun, tmp_path: Path
) -> None:
    assert "holds other features or segments than those that these models were trained on" in str(opened("d" * 16))
    group = Group("gst", 0, (replace(make_run(), collection=LAYOUT),))
    assert "the features are not on this machine" in str(open_graphs([group], tmp_path, tmp_path))
