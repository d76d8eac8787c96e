"""Graphs and batches of a dataset, against values made by hand."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import ToUndirected

import hlorank.datasets
from hlorank.data.collection import SPLITS, Collection
from hlorank.datasets import default_features
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import LayoutFeatures
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.fetch.local import LocalConfig, fetch
from hlorank.files import DataError
from tests.data.npz_files import layout_arrays, save, tile_arrays
from tests.datasets.conftest import second_layout

ROOT = Path(__file__).parents[2]
LAYOUT, TILE = "layout/own/random", "tile/own"


def test_a_graph_has_the_official_arrays(layout_tree: Path) -> None:
    dataset = hlorank.datasets.load(LAYOUT, layout_tree)
    assert len(dataset) == 3
    assert dataset.num_node_features == 140
    assert dataset.num_opcodes == 121
    data, raw = dataset[1], second_layout()
    assert (data.name, data.split, data.num_nodes) == ("b", "valid", 5)
    assert data.x.dtype == torch.float32
    np.testing.assert_array_equal(data.x, raw["node_feat"])
    assert data.opcode.tolist() == [1, 2, 3, 4, 5]
    assert data.edge_index.tolist() == [[4, 4], [0, 2]]
    assert data.configurable_index.tolist() == [4]
    assert data.runtime.tolist() == [5, 7, 6, 8]
    assert "normalizer" not in data
    assert dataset[2].runtime.tolist() == [0, 0, 0], "withheld"


def test_configurations_are_those_of_the_file(layout_tree: Path) -> None:
    data, raw = hlorank.datasets.load(LAYOUT, layout_tree)[1], second_layout()["node_config_feat"]
    mask = np.array([True, False, False, True])
    for rows, index in (
        (slice(1, None), [1, 2, 3]),
        ([3, 1], [3, 1]),
        (np.array([0, 0]), [0, 0]),
        (torch.tensor([2]), [2]),
        (mask, [0, 3]),
        ([], np.zeros(0, dtype=np.int64)),
    ):
        np.testing.assert_array_equal(data.configuration(rows), raw[index], strict=True)
    np.testing.assert_array_equal(data.codebook[data.codes[data.row_of]], raw)
    assert (len(data.codes), data.row_of.tolist()) == (3, [0, 1, 2, 0])
    assert data.sizes.shape == data.codebook.shape
    with pytest.raises(IndexError):
        data.configuration([4])


def test_a_kernel_has_its_tiles(tile_tree: Path) -> None:
    (tile_tree / "split.json").write_text('{"folds": 3, "families": {"k0": 0, "k1": 1, "k2": 2, "k3": 2}}')
    dataset = hlorank.datasets.load(TILE, tile_tree)
    assert {split: index.tolist() for split, index in dataset.get_idx_split().items()} == {
        "train": [0, 1],
        "valid": [2],
        "test": [3],
    }
    data, raw = dataset[3], tile_arrays()
    assert data.name == "k1"
    np.testing.assert_array_equal(data.configuration([2, 0]), raw["config_feat"][[2, 0]] + 1, strict=True)
    assert data.normalizer.tolist() == [10, 10, 40]
    assert len(data.configurable_index) == 0
    with pytest.raises(DataError, match="codes"):
        _ = data.codes
    (batch,) = DataLoader(dataset[:2], batch_size=2)
    assert batch.normalizer.tolist() == [10, 10, 40] * 2


def test_a_batch_counts_nodes_and_keeps_runtimes_apart(layout_tree: Path) -> None:
    dataset = pickle.loads(pickle.dumps(hlorank.datasets.load(LAYOUT, layout_tree)))  # as for a worker
    (batch,) = DataLoader(dataset[:2], batch_size=2, follow_batch=["runtime"])
    batch = pickle.loads(pickle.dumps(batch))
    assert batch.edge_index.tolist() == [[1, 2, 3, 8, 8], [0, 1, 1, 4, 6]]
    assert batch.configurable_index.tolist() == [1, 3, 8]
    assert batch.batch.tolist() == [0] * 4 + [1] * 5
    assert batch.runtime.tolist() == [30, 10, 20, 5, 7, 6, 8]
    assert batch.runtime_batch.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert (batch.name, batch.split) == (["a", "b"], ["train", "valid"])
    for one, raw in enumerate((layout_arrays(), second_layout())):
        np.testing.assert_array_equal(batch[one].configuration([1]), raw["node_config_feat"][[1]])
        assert batch[one].configurable_index.tolist() == raw["node_config_ids"].tolist()


def test_transforms_see_each_graph(layout_tree: Path) -> None:
    def draw(data: Any) -> Any:
        data.config = data.configuration([2, 0]).transpose(0, 1)
        return ToUndirected()(data)

    dataset = hlorank.datasets.load(LAYOUT, layout_tree, transform=draw)
    (batch,) = DataLoader(dataset[:2], batch_size=2)
    np.testing.assert_array_equal(batch.config[:2], layout_arrays()["node_config_feat"][[2, 0]].swapaxes(0, 1))
    np.testing.assert_array_equal(batch.config[2], second_layout()["node_config_feat"][[2, 0], 0])
    assert dataset[1].edge_index.tolist() == [[0, 2, 4, 4], [4, 4, 0, 2]]


@pytest.mark.parametrize("address", ["layout:synthetic:random", "tile:synthetic"])
def test_hlorank_s_columns_are_those_of_the_stage(address: str, tiny_collections: Path, tmp_path: Path) -> None:
    dataset = hlorank.datasets.load(address, tiny_collections / "raw", columns="hlorank", cache=tmp_path)
    featurize_collection(tiny_collections / "raw", Collection.parse(address), default_features(), tmp_path / "stage")
    stage = FeatureStore(tmp_path / "stage")
    assert dataset.num_opcodes == len(stage.spec.opcodes) + 1
    assert dataset.graphs == [(split, name) for split in SPLITS for name in stage.graphs(split)]
    for index, (split, name) in enumerate(dataset.graphs):
        graph, data = stage.open(split, name), dataset[index]
        np.testing.assert_array_equal(data.x, graph.node_feat, strict=True)
        np.testing.assert_array_equal(data.opcode, graph.opcode)
        np.testing.assert_array_equal(data.node_layout, graph.node_layout, strict=True)
        np.testing.assert_array_equal(data.edge_index.T, graph.edge_index)
        np.testing.assert_array_equal(data.runtime, graph.runtime)
        parts, row_of = graph.configurations, graph.row_of[:5]
        if isinstance(parts, LayoutFeatures):
            np.testing.assert_array_equal(data.configurable_index, parts.node_ids)
            np.testing.assert_array_equal(data.configuration(slice(5)), parts.codebook[parts.codes[row_of]])
        else:
            np.testing.assert_array_equal(data.configuration(slice(5)), parts.feat[row_of])
    (batch,) = DataLoader(dataset, batch_size=len(dataset))
    assert batch.num_nodes == sum(data.num_nodes for data in dataset)


@pytest.mark.parametrize("columns", ["official", "hlorank"])
def test_configurations_stay_on_disk(layout_tree: Path, columns: Any) -> None:
    nodes, configurations = 40, 100_000
    rng = np.random.default_rng(0)
    feat = np.full((configurations, 20, 18), -1, dtype=np.float32)
    feat[:, :, 0] = rng.integers(0, 6, (configurations, 20))
    arrays = layout_arrays() | {
        "node_feat": rng.integers(0, 9, (nodes, 140)).astype(np.float32),
        "node_opcode": np.full(nodes, 2, dtype=np.uint8),
        "node_splits": np.array([[0, nodes]]),
        "node_config_ids": np.arange(20, 40),
        "node_config_feat": feat,
        "config_runtime": rng.integers(1, 10**6, configurations),
    }
    save(layout_tree / LAYOUT / "train" / "large.npz", arrays)
    dataset = hlorank.datasets.load(LAYOUT, layout_tree, columns)
    index = [name for _, name in dataset.graphs].index("large")
    tracemalloc.start()
    data = dataset[index]
    some = data.configuration([99_999, 3])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(some, feat[[99_999, 3]])
    assert peak < 4 * 2**20  # the runtimes take 0.8 MB, the dense configurations 144 MB
    assert isinstance(data.codes, np.memmap)
    assert data.codes.nbytes == len(data.codes) * 20
    assert len(pickle.dumps(data)) < 2**20, "of the configurations only their place"


def test_the_bundled_sample_is_split_as_by_the_stage(tmp_path: Path) -> None:
    collection, sample = Collection.parse("layout/cpu/default"), ROOT / "data" / "sample"
    config = LocalConfig(root=str(sample), split_file=str(sample / "split.json"), folds=5, fold=0, collections=[])
    fetch(collection, config, tmp_path / "raw")
    dataset = hlorank.datasets.load("layout/cpu/default", sample, cache=tmp_path / "cache")
    files = {path.stem: split for split in SPLITS for path in (tmp_path / "raw" / split).glob("*.npz")}
    assert {name: split for split, name in dataset.graphs} == files
    assert len(dataset) == len(files) > 20
