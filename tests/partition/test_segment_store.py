"""Partitions of a collection: reuse, kills, staleness, damage."""

import json
import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from hlorank.config import ConfigError, PartitionConfig
from hlorank.data.collection import SPLITS, Collection
from hlorank.featurize.feature_store import FeatureStore, graph_folder
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.files import DataError, write_array
from hlorank.partition.partitioners import partition_graph
from hlorank.partition.segment_store import PartitionStore, partition_collection, segment_rows
from hlorank.partition.segments import whole_graph
from tests.sections import featurize_config
from tests.trees import contents, killed

LAYOUT = Collection.parse("layout:synthetic:random")
PARTITION = PartitionConfig(algorithm="metis", max_nodes=20)


@pytest.fixture
def features(tiny_collections: Path) -> Path:
    return tiny_collections / "features" / LAYOUT.path


@pytest.fixture
def output(features: Path, tmp_path: Path) -> Path:
    """The partitions of three, two and one graphs."""
    partition_collection(features, PARTITION, tmp_path / "segments")
    return tmp_path / "segments"


def mark(root: Path) -> None:
    """Mark the folder of each graph; a folder that is written again loses its mark."""
    for folder in root.glob("graphs/*/*"):
        (folder / "mark").touch()


def marked(root: Path) -> set[Path]:
    return {path.parent for path in root.glob("graphs/*/*/mark")}


def test_a_store_returns_the_partitions_of_partition_graph(features: Path, output: Path) -> None:
    feature_store = FeatureStore(features)
    store = PartitionStore(output, feature_store)
    assert store.spec.options == PARTITION
    for split in SPLITS:
        for name in feature_store.graphs(split):
            expected, opened = partition_graph(feature_store.open(split, name), PARTITION), store.open(split, name)
            assert opened is not None
            assert isinstance(opened.local_codes, np.memmap)
            for key in ("segment_of", "local_codes"):
                np.testing.assert_array_equal(getattr(opened, key), getattr(expected, key), strict=True)


def test_metrics_summarize_the_table(features: Path, output: Path) -> None:
    metrics, table = json.loads((output / "metrics.json").read_text()), pd.read_csv(output / "segments.csv")
    store = FeatureStore(features)
    entries = {(split, name): entry for split in SPLITS for name, entry in store.entries(split).items()}
    assert {*zip(table["split"], table["graph"], strict=True)} == {*entries}
    cut = table["cut_edges"].sum() / 2
    assert metrics == {
        "graphs": 6,
        "segments_per_graph": len(table) / 6,
        "largest_segment": table["nodes"].max(),
        "mean_segment": pytest.approx(table["nodes"].mean()),
        "cut_edges": pytest.approx(cut / (cut + table["inner_edges"].sum())),
        "configurable_nodes_per_segment": sum(entry.configurable_nodes for entry in entries.values()) / len(table),
        "local_configurations": pytest.approx((table["local_configurations"] / table["configurations"]).mean()),
    }
    assert metrics["largest_segment"] <= 20


def test_a_kill_does_not_change_a_byte(features: Path, output: Path, tmp_path: Path) -> None:
    work = partial(partition_collection, features, PARTITION, tmp_path / "killed")
    assert killed(work, "hlorank.files:write_array", call=7)
    with pytest.raises(DataError, match="stage partition"):
        PartitionStore(tmp_path / "killed", FeatureStore(features))
    partition_collection(features, PARTITION, tmp_path / "killed")
    assert contents(output) == contents(tmp_path / "killed")


@pytest.mark.parametrize("change", [False, True])
def test_a_store_is_incomplete_from_its_first_change_on(
    features: Path, output: Path, monkeypatch: pytest.MonkeyPatch, change: bool
) -> None:
    monkeypatch.setattr("hlorank.files.write_text", Mock(side_effect=KeyboardInterrupt))
    options = PARTITION.model_copy(update={"max_nodes": 9}) if change else PARTITION
    with pytest.raises(KeyboardInterrupt):
        partition_collection(features, options, output)
    with pytest.raises(DataError, match="stage partition") if change else nullcontext():
        PartitionStore(output, FeatureStore(features))


def test_partitions_of_unchanged_graphs_are_kept_and_others_removed(
    tiny_collections: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, features, output = (tmp_path / name for name in ("raw", "features", "segments"))
    shutil.copytree(tiny_collections / "raw" / LAYOUT.path, raw / LAYOUT.path)
    featurize_collection(raw, LAYOUT, featurize_config(), features)
    partition_collection(features, PARTITION, output)
    mark(output)
    train, (valid, *_), (test,) = (sorted((raw / LAYOUT.path / split).glob("*.npz")) for split in SPLITS)
    valid.unlink()
    shutil.copyfile(train[0], test.rename(test.with_name("=1.npz")))
    featurize_collection(raw, LAYOUT, featurize_config(scaling="minmax"), features)
    store = FeatureStore(features)
    with pytest.raises(DataError, match=r"spec.json: features: .*stage partition"):
        PartitionStore(output, store)
    partition_collection(features, PARTITION, output)
    folders = {graph_folder(output, split, name) for split in SPLITS for name in store.graphs(split)}
    assert set(output.glob("graphs/*/*")) == folders
    assert "'=1" in {*pd.read_csv(output / "segments.csv")["graph"]}  # no formula to a spreadsheet
    assert marked(output) == {folder for folder in folders if folder.parent.name != "test"}
    fingerprint = PartitionStore(output, store).spec.fingerprint
    for options in ({"max_nodes": 9}, {"algorithm": "topological"}):
        mark(output)
        partition_collection(features, PARTITION.model_copy(update=options), output)
        assert marked(output) == set()
        assert PartitionStore(output, store).spec.fingerprint != fingerprint
    mark(output)
    monkeypatch.setattr("hlorank.files.code_digest", lambda *names: "other")
    partition_collection(features, PARTITION, output)
    assert marked(output) == set()
    assert PartitionStore(output, store).spec.fingerprint == fingerprint, "models that were trained remain of use"


def test_the_partition_of_tile_kernels_is_recorded_without_arrays(tiny_collections: Path, tmp_path: Path) -> None:
    features = tiny_collections / "features/tile/synthetic"
    (tmp_path / "graphs/train/left_over").mkdir(parents=True)
    partition_collection(features, PARTITION, tmp_path)
    store = FeatureStore(features)
    (name, *_) = store.graphs("train")
    recorded = PartitionStore(tmp_path, store)
    assert recorded.open("train", name) is None
    assert contents(tmp_path).keys() == {"metrics.json", "segments.csv", "spec.json"}
    assert not [*tmp_path.glob("graphs/*/*")]
    expected = []
    for split in SPLITS:
        opened = [store.open(split, graph) for graph in store.graphs(split)]
        expected += [segment_rows(split, graph, whole_graph(graph)) for graph in opened]
    assert (tmp_path / "segments.csv").read_text() == pd.concat(expected).to_csv(index=False)
    partition_collection(features, PARTITION.model_copy(update={"max_nodes": 7, "algorithm": "topological"}), tmp_path)
    assert PartitionStore(tmp_path, store).spec == recorded.spec, "no option matters"


def test_bad_options_leave_everything_as_it_was(features: Path, output: Path, tmp_path: Path) -> None:
    before = contents(output)
    with pytest.raises(ConfigError, match=r"partition\.algorithm=louvain"):
        partition_collection(features, PARTITION.model_copy(update={"algorithm": "louvain"}), output)
    with pytest.raises(DataError, match="stage featurize"):
        partition_collection(tmp_path / "nothing", PARTITION, output)
    assert contents(output) == before


@pytest.mark.parametrize("name", ["made_from.json", "segment_of.npy", "local_codes.npy"])
def test_a_damaged_or_foreign_partition_is_named_and_made_again(features: Path, output: Path, name: str) -> None:
    before, store = contents(output), FeatureStore(features)
    graph = store.graphs("train")[0]
    path = graph_folder(output, "train", graph) / name
    good = path.read_bytes()
    damages = [b"", b"{", b"\x00\xff", good[: len(good) // 2]]
    if name != "made_from.json":
        for rows in (np.load(path)[:-1], np.repeat(np.load(path), 2, axis=0)):
            write_array(path, rows)
            damages.append(path.read_bytes())
    for damage in damages:
        path.write_bytes(damage)
        if name != "made_from.json":
            with pytest.raises(DataError, match=rf"{graph}.*{name[:-4]}"):
                PartitionStore(output, store).open("train", graph)
        partition_collection(features, PARTITION, output)
        assert contents(output) == before
    (output / "spec.json").write_text('{"algorithm": "metis"}')
    with pytest.raises(DataError, match=r"spec.json: [\s\S]*max_nodes: "):
        PartitionStore(output, store)
