"""Datasets: their cache is made, reused and brought up to date; graphs and batches against values made by hand."""

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import ToUndirected

from hlorank import datasets
from hlorank.config import ConfigError
from hlorank.data.collection import RAW, SPLITS, Collection
from hlorank.datasets import default_features, load, processed_store
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import LayoutFeatures
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.files import DataError
from tests.data.npz_files import Arrays, layout_arrays, save, tile_arrays

ROOT = Path(__file__).parents[2]
LAYOUT = Collection.parse("layout/own/random")


def second_layout() -> Arrays:
    """Return five nodes, one of them configurable, and four configurations, of which the last repeats the first."""
    arrays = layout_arrays()
    feat = np.full((4, 1, 18), -1, dtype=np.float32)
    feat[1, 0, :2] = [1, 0]
    feat[2, 0, :2] = [0, 1]
    return arrays | {
        "node_feat": np.full((5, 140), 7, dtype=np.float32),
        "node_opcode": np.array([1, 2, 3, 4, 5], dtype=np.uint8),
        "edge_index": np.array([[4, 0], [4, 2]]),
        "node_splits": np.array([[0, 5]]),
        "node_config_ids": np.array([4]),
        "node_config_feat": feat,
        "config_runtime": np.array([5, 7, 6, 8]),
    }


@pytest.fixture
def layout_tree(tmp_path: Path) -> Path:
    """Write layout:own:random: train/a of four nodes, valid/b of five, and test/c, whose labels are withheld."""
    folder = tmp_path / "own" / "layout" / "own" / "random"
    withheld = layout_arrays() | {"config_runtime": np.zeros(3, dtype=np.int64)}
    for place, arrays in (("train/a", layout_arrays()), ("valid/b", second_layout()), ("test/c", withheld)):
        (folder / place).parent.mkdir(parents=True)
        save(folder / f"{place}.npz", arrays)
    return tmp_path / "own"


@pytest.fixture
def tile_tree(tmp_path: Path) -> Path:
    """Write npz/tile/own, without splits: kernels k0 to k3; the labels of the last one are withheld."""
    folder = tmp_path / "own" / "npz" / "tile" / "own"
    folder.mkdir(parents=True)
    for number in range(4):
        arrays = tile_arrays()
        arrays["config_feat"] += number
        arrays["config_runtime"] *= number < 3
        save(folder / f"k{number}.npz", arrays)
    return tmp_path / "own"


# The cache


def times(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*.npy")}


def test_the_options_of_hlorank_s_columns_are_the_file_of_conf() -> None:
    path = ROOT / "conf/featurize/default.yaml"
    assert path.resolve() == ROOT / "src/hlorank/featurize/default.yaml", "a link to the file of the package"
    assert default_features().model_dump() == OmegaConf.to_container(OmegaConf.load(path))


def test_an_unchanged_tree_is_neither_read_nor_written_also_from_another_path(
    layout_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine, which mounts the tree elsewhere, or may only read it."""
    store = processed_store(LAYOUT, layout_tree)
    assert store.root == layout_tree / "processed" / LAYOUT.path / "official"
    (store.root / "lock").unlink()
    before = {path: path.stat().st_mtime_ns for path in layout_tree.rglob("*")}
    (tmp_path / "mounted").symlink_to(layout_tree)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "store_official", lambda *_: pytest.fail("processed again"))
    for tree in (layout_tree, tmp_path / "mounted", "own"):
        assert processed_store(LAYOUT, tree).fingerprint == store.fingerprint
    assert {path: path.stat().st_mtime_ns for path in layout_tree.rglob("*")} == before


def test_only_changed_graphs_are_written_again_also_behind_a_link(layout_tree: Path, tmp_path: Path) -> None:
    folder, elsewhere = layout_tree / LAYOUT.path, tmp_path / "elsewhere"
    (folder / "train").rename(elsewhere)
    (folder / "train").symlink_to(elsewhere)
    store = processed_store(LAYOUT, layout_tree)
    before = times(store.root)
    save(elsewhere / "a.npz", layout_arrays() | {"config_runtime": np.array([1, 2, 3])})
    (folder / "test/c.npz").unlink()
    again = processed_store(LAYOUT, layout_tree)
    assert again.fingerprint != store.fingerprint
    assert again.graphs("test") == []
    assert again.open("train", "a").runtime.tolist() == [1, 2, 3]
    after = times(store.root)
    assert {name for name in before if after.get(name) == before[name]} == {name for name in before if "/b/" in name}
    assert {name.split("/")[2] for name in after} == {"a", "b"}


def test_a_killed_store_or_one_of_other_code_is_made_again(layout_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = processed_store(LAYOUT, layout_tree)
    for lost in ("graphs.json", "stamp.json"):
        (store.root / lost).unlink()
        assert processed_store(LAYOUT, layout_tree).fingerprint == store.fingerprint
    (store.root / "graphs.json").write_text("{}")
    with pytest.raises(DataError, match="official"):
        processed_store(LAYOUT, layout_tree)
    monkeypatch.setattr(datasets, "code_digest", lambda *_: "other")
    assert processed_store(LAYOUT, layout_tree).fingerprint == store.fingerprint


def test_columns_have_stores_of_their_own(layout_tree: Path, tmp_path: Path) -> None:
    official = processed_store(LAYOUT, layout_tree, cache=tmp_path / "cache")
    features = processed_store(LAYOUT, layout_tree, "hlorank", tmp_path / "cache")
    assert isinstance(features, FeatureStore)
    assert official.root.parent == features.root.parent == tmp_path / "cache" / LAYOUT.path
    assert not (layout_tree / "processed").exists()
    assert official.open("train", "a").nodes == 4
    assert features.open("train", "a").node_feat.shape[1] < 140


def test_the_default_root_is_what_fetch_writes_and_what_is_not_there_is_refused(
    layout_tree: Path, tile_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"split\.json"):
        load("tile/own", tile_tree)
    with pytest.raises(ConfigError, match="columns='raw'"):
        load("layout/own/random", layout_tree, "raw")  # type: ignore[arg-type] # wrong on purpose
    with pytest.raises(ConfigError, match="layout/own"):
        load("layout/own", layout_tree)
    assert OmegaConf.load(ROOT / "conf/config.yaml").paths.raw == RAW
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"data/raw.*stages\.fetch collection=layout/own/random.*no such folder"):
        load("layout/own/random")
    layout_tree.rename("data/raw")
    assert len(load("layout/own/random")) == 3
    with pytest.raises(DataError, match=r"stages\.fetch collection=tile/other.*found layout/own/random"):
        load("tile/other")


# Graphs


def test_a_graph_has_the_official_arrays(layout_tree: Path) -> None:
    dataset = load("layout/own/random", layout_tree)
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
    data, raw = load("layout/own/random", layout_tree)[1], second_layout()["node_config_feat"]
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


def test_a_kernel_has_its_tiles_and_its_split_is_that_of_the_split_file(tile_tree: Path) -> None:
    (tile_tree / "split.json").write_text('{"folds": 3, "families": {"k0": 0, "k1": 1, "k2": 2}}')
    dataset = load("tile/own", tile_tree)
    splits = {split: index.tolist() for split, index in dataset.get_idx_split().items()}
    assert splits == {"train": [0], "valid": [1], "test": [2, 3]}, "withheld labels are in test"
    data, raw = dataset[2], tile_arrays()
    assert data.name == "k1"
    np.testing.assert_array_equal(data.configuration([2, 0]), raw["config_feat"][[2, 0]] + 1, strict=True)
    assert data.normalizer.tolist() == [10, 10, 40]
    assert len(data.configurable_index) == 0
    with pytest.raises(DataError, match="codes"):
        _ = data.codes
    (batch,) = DataLoader(dataset[:2], batch_size=2)
    assert batch.normalizer.tolist() == [10, 10, 40] * 2
    (tile_tree / "split.json").write_text('{"folds": 3, "families": {"k0": 0, "k1": 2, "k2": 1}}')
    assert load("tile/own", tile_tree).graphs[2:] == [("test", "k2"), ("test", "k3")]


def test_a_batch_counts_nodes_and_keeps_runtimes_apart(layout_tree: Path) -> None:
    dataset = pickle.loads(pickle.dumps(load("layout/own/random", layout_tree)))  # as for a worker
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

    dataset = load("layout/own/random", layout_tree, transform=draw)
    (batch,) = DataLoader(dataset[:2], batch_size=2)
    np.testing.assert_array_equal(batch.config[:2], layout_arrays()["node_config_feat"][[2, 0]].swapaxes(0, 1))
    np.testing.assert_array_equal(batch.config[2], second_layout()["node_config_feat"][[2, 0], 0])
    assert dataset[1].edge_index.tolist() == [[0, 2, 4, 4], [4, 4, 0, 2]]


@pytest.mark.parametrize("address", ["layout:synthetic:random", "tile:synthetic"])
def test_hlorank_s_columns_are_those_of_the_stage(address: str, tiny_collections: Path, tmp_path: Path) -> None:
    dataset = load(address, tiny_collections / "raw", columns="hlorank", cache=tmp_path)
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
    save(layout_tree / LAYOUT.path / "train" / "large.npz", arrays)
    dataset = load("layout/own/random", layout_tree, columns)
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
