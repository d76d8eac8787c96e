"""Graphs as NumPy arrays, against values made by hand."""

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.loader import DataLoader

from hlorank.data.configurations import LayoutConfigurations
from hlorank.datasets import load
from hlorank.files import DataError
from tests.data.npz_files import assert_holds, layout_arrays, save, tile_arrays
from tests.datasets.conftest import second_layout

OWN = "layout/own/random"


def test_a_graph_has_the_official_arrays(layout_tree: Path) -> None:
    graph, raw = load(OWN, layout_tree).valid[0], second_layout()
    assert (graph.name, graph.split, graph.family, graph.num_configurations) == ("b", "valid", "b", 4)
    np.testing.assert_array_equal(graph.node_feat, raw["node_feat"], strict=True)
    np.testing.assert_array_equal(graph.opcode, raw["node_opcode"], strict=True)
    np.testing.assert_array_equal(graph.edge_index, raw["edge_index"], strict=True)
    np.testing.assert_array_equal(graph.configurable_index, raw["node_config_ids"], strict=True)
    np.testing.assert_array_equal(graph.runtime, raw["config_runtime"], strict=True)
    assert graph.node_layout.shape == (5, 6)
    assert graph.normalizer is None
    assert graph.label.tolist() == [5, 7, 6, 8]
    assert graph.row_of.tolist() == [0, 1, 2, 0]
    assert (graph.split_half_tau, graph.withheld) == (None, False)
    assert_holds(graph.measured, raw)
    graph.path.with_suffix(".json").write_text('{"split_half_tau": 0.5, "family": "net"}')
    again = load(OWN, layout_tree).valid["b"]
    assert (again.split_half_tau, again.family) == (0.5, "net")


def test_configurations_are_those_of_the_file(layout_tree: Path) -> None:
    graph, raw = load(OWN, layout_tree).valid[0], second_layout()["node_config_feat"]
    chosen: list[tuple[Any, Any]] = [
        (slice(1, None), [1, 2, 3]),
        ([3, 1], [3, 1]),
        (np.array([0, 0]), [0, 0]),
        (torch.tensor([2]), [2]),
        (np.array([True, False, False, True]), [0, 3]),
        ([], np.zeros(0, dtype=np.int64)),
    ]
    for rows, index in chosen:
        np.testing.assert_array_equal(graph.configurations(rows), raw[index], strict=True)
    np.testing.assert_array_equal(graph.configurations(), raw, strict=True)
    for wrong in ([4], [0.5]):
        with pytest.raises(IndexError):
            graph.configurations(wrong)


def test_a_kernel_has_its_tiles(tile_tree: Path) -> None:
    (tile_tree / "split.json").write_text('{"folds": 3, "families": {"k0": 0, "k1": 1, "k2": 2}}')
    graph, raw = load("tile/own", tile_tree).valid["k0"], tile_arrays()
    np.testing.assert_array_equal(graph.configurations([2, 0]), raw["config_feat"][[2, 0]], strict=True)
    assert graph.normalizer is not None
    assert graph.normalizer.tolist() == [10, 10, 40]
    assert graph.label.tolist() == [3.0, 1.0, 0.5]
    assert graph.configurable_index.tolist() == []
    assert_holds(graph.measured, raw)


def test_runtimes_of_test_are_shown_only_if_asked_for(tile_tree: Path) -> None:
    (tile_tree / "split.json").write_text('{"folds": 3, "families": {"k0": 0, "k1": 1, "k2": 2}}')
    hidden, shown = load("tile/own", tile_tree).test["k1"], load("tile/own", tile_tree, labels=True).test["k1"]
    assert shown.runtime.tolist() == [30, 10, 20]
    for name in ("runtime", "label", "withheld"):
        with pytest.raises(DataError, match="labels=True"):
            getattr(hidden, name)
    assert not hidden.measured.measurements.runtime.any()
    assert "runtime" not in hidden.to_pyg()
    assert "normalizer" in hidden.to_pyg()
    np.testing.assert_array_equal(hidden.configurations(), shown.configurations())
    assert load("tile/own", tile_tree, labels=True).test["k3"].withheld


def test_graphs_are_found_by_number_name_and_slice(tile_tree: Path) -> None:
    (tile_tree / "split.json").write_text('{"folds": 3, "families": {"k0": 2, "k1": 0, "k2": 1}}')
    graphs = load("tile/own", tile_tree).test
    assert (len(graphs), graphs.names, [graph.name for graph in graphs]) == (2, ["k2", "k3"], ["k2", "k3"])
    assert (graphs["k3"].name, graphs[-1].name, graphs[np.int64(0)].name) == ("k3", "k3", "k2")
    assert graphs[1:].names == ["k3"]
    assert "k2" in repr(graphs)
    with pytest.raises(IndexError):
        graphs[2]
    for wrong in ("k33", "nothing"):
        with pytest.raises(DataError, match=f"k3.*{wrong}" if wrong == "k33" else wrong):
            graphs[wrong]


def test_files_are_read_when_an_array_is_used(layout_tree: Path) -> None:
    (path,) = (layout_tree / OWN / "train").glob("*.npz")
    save(path, layout_arrays() | {"node_opcode": np.full(4, 121, dtype=np.uint8)})
    (layout_tree / OWN / "valid" / "b.npz").write_bytes(b"PK")
    data = load(OWN, layout_tree)
    assert data.train[0].num_configurations == 3
    with pytest.raises(DataError, match=r"a\.npz: node_opcode"):
        _ = data.train[0].edge_index
    with pytest.raises(DataError, match=r"b\.npz"):
        _ = data.valid[0].num_configurations
    assert data.test[0].configurations().shape == (3, 2, 18)


def test_many_configurations_take_a_byte_for_each_node(layout_tree: Path) -> None:
    configurations = 50_000
    feat = np.full((configurations, 2, 18), -1, dtype=np.float32)
    feat[:, :, 0] = np.random.default_rng(0).integers(0, 6, (configurations, 2))
    arrays = layout_arrays()
    arrays |= {"node_config_feat": feat, "config_runtime": np.arange(1, configurations + 1)}
    save(layout_tree / OWN / "train" / "large.npz", arrays, np.savez_compressed)
    graph = load(OWN, layout_tree).train["large"]
    layouts = graph.measured.configurations
    assert isinstance(layouts, LayoutConfigurations)
    assert layouts.codes.nbytes == configurations * 2
    tracemalloc.start()
    some = graph.configurations([49_999, 3])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(some, feat[[49_999, 3]])
    assert peak < 2**16
    assert len(pickle.dumps(graph)) < 2**20


def test_a_batch_of_pytorch_geometric_counts_nodes_and_keeps_runtimes_apart(layout_tree: Path) -> None:
    data = load(OWN, layout_tree)
    graphs = [data.train[0], data.valid[0]]
    first = graphs[0].to_pyg()
    assert (first.x.dtype, first.opcode.dtype, first.runtime.dtype) == (torch.float32, torch.int64, torch.int64)
    assert "normalizer" not in first
    first.x.zero_()
    assert graphs[0].node_feat.any(), "a copy"
    (batch,) = DataLoader([graph.to_pyg() for graph in graphs], batch_size=2, follow_batch=["runtime"])
    assert batch.edge_index.tolist() == [[1, 2, 3, 8, 8], [0, 1, 1, 4, 6]]
    assert batch.configurable_index.tolist() == [1, 3, 8]
    assert batch.batch.tolist() == [0] * 4 + [1] * 5
    assert batch.runtime.tolist() == [30, 10, 20, 5, 7, 6, 8]
    assert batch.runtime_batch.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert (batch.name, batch.split) == (["a", "b"], ["train", "valid"])
    assert batch[1].configurable_index.tolist() == [4]
