"""Features on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hlorank.data.configurations import MeasuredGraph
from hlorank.featurize.feature_store import FeatureStore, graph_folder, skip_reason, stored_entry, write_graph_features
from hlorank.featurize.features import GraphFeatures
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.files import DataError
from tests.featurize.conftest import MakeGraph, fitted

KEY = {"source": "a", "spec": "b"}


def featurized(address: str, measured: MeasuredGraph) -> GraphFeatures:
    return featurize_graph(measured, fitted(address, measured))


def test_any_name_gives_a_separate_folder(tmp_path: Path) -> None:
    names = ["unet_3d.4x4.bf16", ".hidden", "..", ".", "a/../../b", "späte: 50 %", "x" * 250]
    names += [".a", "%2Ea", "a", "A", "a.b", "a%2Eb", "a/b", "a%2Fb"]
    folders = {graph_folder(tmp_path, "train", name) for name in names}
    assert len(folders) == len(names)
    for folder in folders:
        assert folder.resolve().parent == tmp_path / "graphs" / "train"
        assert not folder.name.startswith(".")
        folder.mkdir(parents=True)


def test_entries(tmp_path: Path, layout_graph: MakeGraph) -> None:
    measured = layout_graph(configurations=12)
    features = featurized("layout:xla:random", measured)
    folder = tmp_path / "graph"
    entry = write_graph_features(folder, features, layout_graph(seed=1, nodes=50).graph, KEY)
    assert (entry.nodes, entry.edges) == (40, len(measured.graph.edge_index))
    assert (entry.raw_nodes, entry.raw_edges) == (50, len(layout_graph(seed=1, nodes=50).graph.edge_index))
    assert (entry.configurations, entry.distinct, entry.skipped) == (12, 9, None)
    # Codes of a byte, and 16 bytes for row_of and runtime of each original row.
    rows = len(np.load(folder / "codebook.npy"))
    assert entry.configuration_bytes == 9 * entry.configurable_nodes + 12 * 16 + rows * (18 + (18 + 3) * 4)
    assert stored_entry(folder, KEY) == entry
    assert stored_entry(folder, {**KEY, "source": "c"}) is None
    assert stored_entry(tmp_path / "other", KEY) is None
    (folder / "graph.json").write_text("{")
    assert stored_entry(folder, KEY) is None


def test_an_interrupted_write_leaves_the_old_folder(
    tmp_path: Path, layout_graph: MakeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = layout_graph()
    features = featurized("layout:xla:random", measured)
    folder = tmp_path / "graph"
    entry = write_graph_features(folder, features, measured.graph, KEY)

    def fail(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hlorank.featurize.feature_store.write_json", fail)
    with pytest.raises(KeyboardInterrupt):
        write_graph_features(folder, features, measured.graph, {**KEY, "source": "c"})
    assert stored_entry(folder, KEY) == entry
    assert list(tmp_path.iterdir()) == [folder]


def test_skip_reasons(layout_graph: MakeGraph, tile_graph: MakeGraph) -> None:
    layout = featurized("layout:xla:random", layout_graph())
    tile = featurized("tile:xla", tile_graph())
    assert skip_reason(layout) is None
    assert skip_reason(tile) is None
    withheld = replace(layout, runtime=np.zeros_like(layout.runtime))
    assert skip_reason(withheld) == "labels withheld"
    level = replace(layout, runtime=np.full_like(layout.runtime, 7))
    assert skip_reason(level) == "all runtimes are equal"
    assert skip_reason(featurized("layout:xla:random", layout_graph(configurations=1))) == "a single configuration"


def test_a_missing_or_incomplete_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="stage featurize"):
        FeatureStore(tmp_path / "none")
