"""Featurization of a collection."""

import logging
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import grimp
import numpy as np
import pytest

from hlorank.data.collection import SPLITS, Collection, graph_files, read_graph, sidecar_path, write_graph
from hlorank.data.configurations import TILE_FEATURES
from hlorank.data.splits import family
from hlorank.featurize.feature_store import FeatureStore, graph_folder, skip_reason, stored_entry, write_graph_features
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.featurize.featurize_collection import CODE, featurize_collection
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.files import DataError, read_json
from tests.featurize.small_graphs import fitted, layout_graph, tile_graph
from tests.sections import featurize_config
from tests.trees import contents, killed

LAYOUT = Collection("layout", "cpu", "random")
TILE = Collection("tile", "cpu")
CONFIG = featurize_config()


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Write a layout and a tile collection, each with three train graphs, a valid graph and a test graph."""
    root = tmp_path / "raw"
    for collection, make in ((LAYOUT, layout_graph), (TILE, tile_graph)):
        for seed, place in enumerate(["train/a.4x4", "train/b", "train/same", "valid/c", "test/..d"]):
            split, name = place.split("/")
            measured = make(name, seed=seed, configurations=1 if name == "same" else 9)
            write_graph(root / collection.path / split / f"{name}.npz", measured)
    return root


@pytest.fixture
def output(raw: Path, tmp_path: Path) -> Path:
    """The features of the layout collection."""
    featurize_collection(raw, LAYOUT, CONFIG, tmp_path / "out")
    return tmp_path / "out"


def changed_at(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.glob("graphs/*/*/*.npy")}


def assert_equal(left: GraphFeatures, right: GraphFeatures) -> None:
    parts = [{**vars(features), **vars(features.configurations)} for features in (left, right)]
    assert parts[0].keys() == parts[1].keys()
    for key, value in parts[0].items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, parts[1][key])
            assert value.dtype == parts[1][key].dtype


@pytest.mark.parametrize("collection", [LAYOUT, TILE])
def test_the_store_has_the_features_of_featurize_graph(tmp_path: Path, raw: Path, collection: Collection) -> None:
    featurize_collection(raw, collection, CONFIG, tmp_path / "out")
    store = FeatureStore(tmp_path / "out")
    assert store.graphs("train") == ["a.4x4", "b", "same"]
    assert store.graphs("test") == ["..d"]
    assert store.trainable("train") == ["a.4x4", "b"]
    assert store.skipped("train") == {"same": "a single configuration"}
    for split in ("train", "valid", "test"):
        for name in store.graphs(split):
            measured = read_graph(raw / collection.path / split / f"{name}.npz", collection.kind)
            features = store.open(split, name)
            assert features.name == name
            assert_equal(features, featurize_graph(measured, store.spec))
    parts = store.open("train", "b").configurations
    rows = parts.codes if isinstance(parts, LayoutFeatures) else parts.feat
    assert isinstance(rows, np.memmap)
    assert isinstance(parts, LayoutFeatures if collection is LAYOUT else TileFeatures)


def test_features_of_unchanged_graphs_are_kept_and_only_train_is_fitted(
    tmp_path: Path, raw: Path, output: Path
) -> None:
    before, first = changed_at(output), FeatureStore(output)
    featurize_collection(raw, LAYOUT, CONFIG, output)
    assert changed_at(output) == before
    write_graph(raw / LAYOUT.path / "valid/c.npz", layout_graph("c", seed=8))
    (raw / LAYOUT.path / "test/..d.npz").unlink()
    (output / "graphs/train/.b.partial").mkdir()
    (output / "graphs/train/b/graph.json").write_text("{")
    featurize_collection(raw, LAYOUT, CONFIG, output)
    after, second = changed_at(output), FeatureStore(output)
    kept = {key for key in after if after[key] == before[key]}
    assert kept == {key for key in before if key.startswith(("graphs/train/a", "graphs/train/same"))}
    assert first.spec.model_dump(mode="json") == second.spec.model_dump(mode="json")
    assert first.fingerprint != second.fingerprint
    assert not list((output / "graphs/test").iterdir())
    featurize_collection(raw, LAYOUT, CONFIG, tmp_path / "fresh")
    shutil.rmtree(output / "graphs/test")
    assert contents(output) == contents(tmp_path / "fresh")


@pytest.mark.parametrize("change", [False, True])
def test_a_store_is_incomplete_from_its_first_change_on(
    raw: Path, output: Path, monkeypatch: pytest.MonkeyPatch, change: bool
) -> None:
    if change:
        (raw / LAYOUT.path / "test/..d.npz").unlink()
    read = []
    monkeypatch.setattr(
        "hlorank.featurize.featurize_collection.write_json", lambda *file: read.append(FeatureStore(output))
    )
    with pytest.raises(DataError, match="stage featurize") if change else nullcontext():
        featurize_collection(raw, LAYOUT, CONFIG, output)
    assert len(read) == (0 if change else 3), "spec.json, metrics.json and graphs.json"


def test_other_code_or_options_featurize_graphs_again(raw: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, fingerprint = changed_at(output), FeatureStore(output).fingerprint
    monkeypatch.setattr("hlorank.featurize.featurize_collection.code_digest", lambda *names: "other")
    featurize_collection(raw, LAYOUT, CONFIG, output)
    after = changed_at(output)
    assert all(after[key] != before[key] for key in before)
    assert FeatureStore(output).fingerprint == fingerprint, "models that were trained remain of use"
    featurize_collection(raw, LAYOUT, CONFIG.model_copy(update={"prune_hops": 1}), output)
    assert all(changed_at(output)[key] != after[key] for key in after)
    assert FeatureStore(output).open("train", "b").nodes < 40


def test_the_key_of_features_covers_all_code_that_makes_them() -> None:
    graph = grimp.build_graph("hlorank", cache_dir=None)
    modules = {
        module for one in (featurize_graph, read_graph) for module in graph.find_upstream_modules(one.__module__)
    }
    packages = {".".join(module.split(".")[:2]) for module in modules}
    # The configuration is in the specification, and files.py only stores arrays.
    assert packages - {"hlorank.config", "hlorank.files"} == set(CODE)


def test_split_half_tau_and_family_of_a_sidecar_are_kept(raw: Path, output: Path) -> None:
    sidecar, before = sidecar_path(graph_files(raw, LAYOUT, "valid")[0]), FeatureStore(output)
    sidecar.write_text('{"split_half_tau": 0.75, "rounds": 20, "family": "net"}')
    featurize_collection(raw, LAYOUT, CONFIG, output)
    after = FeatureStore(output)
    assert [s.open("valid", sidecar.stem).split_half_tau for s in (before, after)] == [None, 0.75]
    assert [s.open("valid", sidecar.stem).family for s in (before, after)] == [family(sidecar.stem), "net"]
    assert before.fingerprint != after.fingerprint
    sidecar.write_text('{"family": "net"}')  # as the how-to says of npz files of one's own
    featurize_collection(raw, LAYOUT, CONFIG, output)
    assert (last := FeatureStore(output)).open("valid", sidecar.stem).split_half_tau is None
    for path in (sidecar, sidecar.with_suffix(".npz")):  # as another fold of the same graphs
        path.rename(raw / LAYOUT.path / "test" / path.name)
    featurize_collection(raw, LAYOUT, CONFIG, output)
    assert FeatureStore(output).fingerprint != last.fingerprint
    assert FeatureStore(output).data == last.data != after.data


def test_an_interrupted_write_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = layout_graph()
    features = featurize_graph(measured, fitted("layout:xla:random", measured))
    folder, key = tmp_path / "graph", {"source": "a"}
    entry = write_graph_features(folder, features, measured.graph, key)
    before = contents(tmp_path)
    monkeypatch.setattr("hlorank.featurize.feature_store.write_json", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_graph_features(folder, replace(features, runtime=2 * features.runtime), measured.graph, {"source": "b"})
    assert contents(tmp_path) == before
    assert (stored_entry(folder, key), stored_entry(folder, {"source": "b"})) == (entry, None)


def test_a_kill_leaves_an_incomplete_store_that_the_next_run_completes(tmp_path: Path, raw: Path) -> None:
    output = tmp_path / "out"
    work = partial(featurize_collection, raw, LAYOUT, CONFIG, output)
    assert killed(work, "hlorank.featurize.featurize_collection:featurize_graph", call=1)
    assert (output / "graphs/train/a.4x4").exists()
    with pytest.raises(DataError, match="stage featurize"):
        FeatureStore(output)
    for folder in (output, tmp_path / "whole"):
        featurize_collection(raw, LAYOUT, CONFIG, folder)
    assert contents(output) == contents(tmp_path / "whole")


def test_all_bad_files_and_an_empty_train_split_are_named(tmp_path: Path, raw: Path) -> None:
    bad = [raw / LAYOUT.path / name for name in ("valid/c.npz", "train/b.npz", "train/same.npz")]
    bad[0].write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"valid/c\.npz: file: "):
        featurize_collection(raw, LAYOUT, CONFIG, tmp_path / "out")
    for path in bad[1:]:
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ExceptionGroup) as caught:
        featurize_collection(raw, LAYOUT, CONFIG, tmp_path / "out")
    assert {error.file for error in caught.value.exceptions if isinstance(error, DataError)} == {*bad}
    shutil.rmtree(raw / LAYOUT.path / "train")
    with pytest.raises(DataError, match=r"layout/cpu/random: train: "):
        featurize_collection(raw, LAYOUT, CONFIG, tmp_path / "out")


def test_a_damaged_store_is_an_error_and_made_again(raw: Path, output: Path) -> None:
    before = contents(output)
    for path in (output / "graphs/train/b").iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        featurize_collection(raw, LAYOUT, CONFIG, output)
        assert contents(output) == before, path.name
    with pytest.raises(DataError, match=r"valid: .*\['c'\].*\bb\b"):
        FeatureStore(output).open("valid", "b")
    for file in ("spec.json", "graphs.json"):
        (output / file).write_text("{}")
        with pytest.raises(DataError, match=file):
            FeatureStore(output)


def test_metrics(output: Path) -> None:
    metrics = read_json(output / "metrics.json")
    assert metrics["train"] == {
        "graphs": 3,
        "skipped_graphs": 1,
        "raw_nodes": 120,
        "nodes": 120,
        "raw_edges": 223,
        "edges": 223,
        "configurations": 19,
        "distinct_configurations": 15,
    }
    store = FeatureStore(output)
    entries = [entry for split in SPLITS for entry in store.entries(split).values()]
    raw_bytes = sum(entry.configurations * entry.configurable_nodes * 72 for entry in entries)
    assert metrics["raw_bytes_per_configuration"] == pytest.approx(raw_bytes / 37)
    assert metrics["bytes_per_configuration"] < metrics["raw_bytes_per_configuration"]


def test_real_collections(tmp_path: Path, shared_data: Path, caplog: pytest.LogCaptureFixture) -> None:
    real = shared_data / "tpugraphs/npz"
    reasons = {
        "layout:xla:default": {},
        "layout:xla:random": {"openai_v0_rnn_optimized": "20 configurations, all identical"},
        "tile:xla": {"retinanet.2x2.fp32_-342c949e14733d96": "2 configurations, one distinct row"},
    }
    with caplog.at_level(logging.WARNING):
        for address, expected in reasons.items():
            featurize_collection(real, Collection.parse(address), CONFIG, tmp_path / address)
            assert FeatureStore(tmp_path / address).skipped("train") == expected
    assert [record.getMessage() for record in caplog.records] == [
        f"{address}: training skips the graph {name}: {reason}"
        for address, skipped in reasons.items()
        for name, reason in skipped.items()
    ]
    store = FeatureStore(tmp_path / "layout:xla:default")
    assert store.entries("train")["unet3d"].distinct == 681
    assert store.skipped("test") == {"cd708819d3f5103afd6460b15e74eaf3": "labels withheld"}


def test_bounds_of_tpus_are_registers(raw: Path, tmp_path: Path) -> None:
    """Of the same tiles, only the derived columns differ."""
    scales = []
    for source in ("cpu", "xla"):
        config, collection = featurize_config(derived=["tile_shares"]), Collection("tile", source)
        shutil.copytree(raw / TILE.path, tmp_path / "both" / collection.path)
        featurize_collection(tmp_path / "both", collection, config, tmp_path / source)
        columns = FeatureStore(tmp_path / source).spec.tile_columns
        assert columns is not None
        scales.append({*zip(columns.columns.tolist(), columns.scale.tolist(), strict=True)})
    assert min(scales[0] ^ scales[1])[0] >= TILE_FEATURES


def test_any_name_gives_a_separate_folder(tmp_path: Path) -> None:
    names = ["unet_3d.4x4.bf16", ".hidden", "..", ".", "a/../../b", "späte: 50 %", "x" * 250]
    names += [".a", "%2Ea", "a", "A", "a.b", "a%2Eb", "a/b", "a%2Fb"]
    folders = {graph_folder(tmp_path, "train", name) for name in names}
    assert len(folders) == len(names)
    for folder in folders:
        assert folder.resolve().parent == tmp_path / "graphs" / "train"
        assert not folder.name.startswith(".")
        folder.mkdir(parents=True)


def test_skip_reasons() -> None:
    tile, layout = tile_graph(), layout_graph()
    assert skip_reason(featurize_graph(tile, fitted("tile:xla", tile))) is None
    features = featurize_graph(layout, fitted("layout:xla:random", layout))
    assert skip_reason(features) is None
    assert skip_reason(replace(features, runtime=0 * features.runtime)) == "labels withheld"
    assert skip_reason(replace(features, runtime=0 * features.runtime + 7)) == "all runtimes are equal"
