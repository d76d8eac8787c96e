"""Partitions of a collection: reuse, kills, staleness."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hlorank.config import ConfigError, PartitionConfig
from hlorank.data.collection import Collection, write_graph
from hlorank.data.configurations import (
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    TileConfigurations,
    pack_layouts,
    unpack_layouts,
)
from hlorank.data.graph import Graph
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.files import DataError
from hlorank.partition.partitioners import partition_graph
from hlorank.partition.segment_store import PartitionStore, partition_collection, segment_rows
from hlorank.partition.segments import whole_graph
from tests.sections import featurize_config

LAYOUT = Collection.parse("layout:synthetic:random")
TILE = Collection.parse("tile:synthetic")
FEATURIZE = featurize_config(opcode_width=2)
PARTITION = PartitionConfig(algorithm="metis", max_nodes=10, halo=0)

KILLED = """
import os, signal, sys
from pathlib import Path
from hlorank import files
from hlorank.config import PartitionConfig
from hlorank.partition.segment_store import partition_collection

write, writes = files.write_array, 0

def write_or_die(path, array):
    global writes
    writes += 1
    if writes == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, array)

files.write_array = write_or_die
config = PartitionConfig(algorithm="metis", max_nodes=10, halo=0)
partition_collection(Path(sys.argv[1]), config, Path(sys.argv[2]))
"""


def measured_graph(seed: int, collection: Collection = LAYOUT) -> MeasuredGraph:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(25, 60))
    producer = np.array([rng.integers(0, consumer) for consumer in range(1, n)])
    edges = np.stack([np.arange(1, n), producer], axis=1).astype(np.int64)
    features = rng.integers(0, 5, size=(n, 140)).astype(np.float32)
    graph = Graph(features, rng.integers(1, 90, n).astype(np.uint8), edges, np.array([0, n // 2, n]))
    runtime = rng.integers(1000, 2000, 12)
    if collection.kind == "tile":
        tiles = TileConfigurations(rng.integers(0, 9, size=(12, 24)).astype(np.float32))
        return MeasuredGraph(f"kernel_{seed}", graph, tiles, Measurements(runtime, runtime[::-1].copy()))
    codebook = unpack_layouts(np.sort(pack_layouts(np.array([[value, *[-1] * 17] for value in range(3)]))))
    layouts = LayoutConfigurations(np.array([1, 7, 20]), codebook, rng.integers(0, 3, size=(12, 3)).astype(np.uint8))
    return MeasuredGraph(f"graph_{seed}.bf16", graph, layouts, Measurements(runtime))


def featurized(folder: Path, collection: Collection = LAYOUT, seeds: range = range(4)) -> Path:
    for seed in seeds:
        measured = measured_graph(seed, collection)
        split = ("train", "valid", "test")[seed % 3]
        write_graph(folder / "raw" / collection.path / split / f"{measured.name}.npz", measured)
    featurize_collection(folder / "raw", collection, FEATURIZE, folder / "features")
    return folder / "features"


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return featurized(tmp_path_factory.mktemp("layout"))


def digests(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def mark(root: Path) -> None:
    """Mark the folder of each graph; a folder that is written again loses its mark."""
    for folder in root.glob("graphs/*/*"):
        (folder / "mark").touch()


def marked(root: Path) -> set[Path]:
    return {path.parent for path in root.glob("graphs/*/*/mark")}


@pytest.mark.parametrize("halo", [0, 2])
def test_a_store_returns_the_partitions_of_partition_graph(features: Path, tmp_path: Path, halo: int) -> None:
    config = PARTITION.model_copy(update={"halo": halo})
    partition_collection(features, config, tmp_path)
    store, feature_store = PartitionStore(tmp_path), FeatureStore(features)
    store.check(feature_store)
    assert (store.spec.algorithm, store.spec.max_nodes, store.spec.halo) == ("metis", 10, halo)
    assert feature_store.graphs("train") == ["graph_0.bf16", "graph_3.bf16"]
    for split in ("train", "valid", "test"):
        for name in feature_store.graphs(split):
            expected, opened = partition_graph(feature_store.open(split, name), config), store.open(split, name)
            assert opened is not None
            assert isinstance(opened.local_codes, np.memmap)
            assert opened.local_codes.dtype == expected.local_codes.dtype
            np.testing.assert_array_equal(opened.segment_of, expected.segment_of)
            np.testing.assert_array_equal(opened.local_codes, expected.local_codes)
            np.testing.assert_array_equal(opened.halo, expected.halo)
            assert (len(opened.halo) > 0) == (halo > 0)


def test_metrics_summarize_the_table(features: Path, tmp_path: Path) -> None:
    partition_collection(features, PARTITION, tmp_path)
    metrics, table = json.loads((tmp_path / "metrics.json").read_text()), pd.read_csv(tmp_path / "segments.csv")
    assert {*zip(table["split"], table["graph"], strict=True)} == {
        *(("train", f"graph_{number}.bf16") for number in (0, 3)),
        ("valid", "graph_1.bf16"),
        ("test", "graph_2.bf16"),
    }
    cut = table["cut_edges"].sum() / 2
    assert metrics == {
        "graphs": 4,
        "segments_per_graph": len(table) / 4,
        "largest_segment": table["nodes"].max(),
        "mean_segment": pytest.approx(table["nodes"].mean()),
        "largest_halo": 0,
        "mean_halo": 0,
        "cut_edges": pytest.approx(cut / (cut + table["inner_edges"].sum())),
        "configurable_nodes_per_segment": 4 * 3 / len(table),
        "local_configurations": pytest.approx((table["local_configurations"] / table["configurations"]).mean()),
    }
    assert metrics["largest_segment"] <= 10


@pytest.mark.parametrize("write", [1, 2, 3, 8])
def test_a_kill_does_not_change_a_byte(features: Path, tmp_path: Path, write: int) -> None:
    partition_collection(features, PARTITION, tmp_path / "whole")
    command = [sys.executable, "-c", KILLED, str(features), str(tmp_path / "killed"), str(write)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with pytest.raises(DataError, match="stage partition"):
        PartitionStore(tmp_path / "killed")
    partition_collection(features, PARTITION, tmp_path / "killed")
    assert digests(tmp_path / "whole") == digests(tmp_path / "killed")


def test_partitions_of_unchanged_graphs_are_kept_and_others_removed(tmp_path: Path) -> None:
    output = tmp_path / "segments"
    partition_collection(featurized(tmp_path), PARTITION, output)
    mark(output)
    assert len(marked(output)) == 4

    raw = tmp_path / "raw" / LAYOUT.path
    (raw / "valid" / "graph_1.bf16.npz").unlink()
    changed = replace(measured_graph(9), name="graph_2.bf16")
    write_graph(raw / "test" / "graph_2.bf16.npz", changed)
    featurize_collection(
        tmp_path / "raw", LAYOUT, FEATURIZE.model_copy(update={"scaling": "minmax"}), tmp_path / "features"
    )
    with pytest.raises(DataError, match=r"spec.json: features: .*stage partition"):
        PartitionStore(output).check(FeatureStore(tmp_path / "features"))

    partition_collection(tmp_path / "features", PARTITION, output)
    train = {output / "graphs" / "train" / "graph_0.bf16", output / "graphs" / "train" / "graph_3.bf16"}
    assert marked(output) == train
    assert set(output.glob("graphs/*/*")) == {*train, output / "graphs" / "test" / "graph_2.bf16"}
    PartitionStore(output).check(FeatureStore(tmp_path / "features"))

    for options in ({"max_nodes": 9}, {"halo": 1}):
        mark(output)
        before = PartitionStore(output).spec.fingerprint
        partition_collection(tmp_path / "features", PARTITION.model_copy(update=options), output)
        assert marked(output) == set()
        assert PartitionStore(output).spec.fingerprint != before


def test_code_that_changed_partitions_graphs_again(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition_collection(features, PARTITION, tmp_path)
    fingerprint = PartitionStore(tmp_path).spec.fingerprint
    mark(tmp_path)
    monkeypatch.setattr("hlorank.files.code_digest", lambda *names: "other")
    partition_collection(features, PARTITION, tmp_path)
    assert marked(tmp_path) == set()
    assert PartitionStore(tmp_path).spec.fingerprint == fingerprint, "models that were trained remain of use"


def test_the_partition_of_tile_kernels_is_recorded_without_arrays(tmp_path: Path) -> None:
    features, output = featurized(tmp_path, TILE), tmp_path / "segments"
    leftover = output / "graphs/train/kernel_9"
    leftover.mkdir(parents=True)
    partition_collection(features, PARTITION, output)
    store, feature_store = PartitionStore(output), FeatureStore(features)
    store.check(feature_store)
    assert store.open("train", "kernel_0") is None
    assert sorted(path.name for path in output.rglob("*") if path.is_file()) == [
        "metrics.json",
        "segments.csv",
        "spec.json",
    ]
    metrics = json.loads((output / "metrics.json").read_text())
    assert (metrics["graphs"], metrics["segments_per_graph"], metrics["cut_edges"]) == (4, 1, 0)
    with (output / "segments.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, name in zip(rows, ["kernel_0", "kernel_3"], strict=False):
        opened = feature_store.open("train", name)
        expected = segment_rows("train", opened, whole_graph(opened)).iloc[0]
        assert row == {key: str(value) for key, value in expected.items()}
    partition_collection(features, PARTITION.model_copy(update={"max_nodes": 7, "halo": 1}), output)
    assert PartitionStore(output).spec == store.spec, "no option matters"


def test_bad_options_leave_everything_as_it_was(features: Path, tmp_path: Path) -> None:
    partition_collection(features, PARTITION, tmp_path)
    before = digests(tmp_path)
    with pytest.raises(ConfigError, match=r"partition\.algorithm=louvain"):
        partition_collection(features, PARTITION.model_copy(update={"algorithm": "louvain"}), tmp_path)
    with pytest.raises(DataError, match="stage featurize"):
        partition_collection(tmp_path / "nothing", PARTITION, tmp_path)
    assert digests(tmp_path) == before


@pytest.mark.parametrize("name", ["made_from.json", "segment_of.npy", "local_codes.npy", "halo.npy"])
@pytest.mark.parametrize("content", [b"", b"{", b"\x00\xff"])
def test_a_damaged_partition_is_made_again(features: Path, tmp_path: Path, name: str, content: bytes) -> None:
    partition_collection(features, PARTITION, tmp_path)
    before = digests(tmp_path)
    (tmp_path / "graphs/train/graph_0.bf16" / name).write_bytes(content)
    partition_collection(features, PARTITION, tmp_path)
    assert digests(tmp_path) == before


def test_missing_and_damaged_files_are_named(features: Path, tmp_path: Path) -> None:
    partition_collection(features, PARTITION, tmp_path)
    store = PartitionStore(tmp_path)
    with pytest.raises(DataError, match=r"graph_7/segment_of.npy: "):
        store.open("train", "graph_7")
    folder = tmp_path / "graphs" / "train" / "graph_0.bf16"
    np.save(folder / "segment_of.npy", np.zeros(30, dtype=np.int32))
    with pytest.raises(DataError, match=r"graph_0.bf16: segment_of"):
        store.open("train", "graph_0.bf16")
    (tmp_path / "spec.json").write_text('{"algorithm": "metis"}')
    with pytest.raises(DataError, match=r"spec.json: [\s\S]*max_nodes: "):
        PartitionStore(tmp_path)
