"""The cache of a dataset: made, reused, brought up to date."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

import hlorank.datasets
from hlorank import datasets
from hlorank.config import ConfigError
from hlorank.data.collection import RAW, Collection
from hlorank.datasets import default_features, processed_store
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import DataError
from tests.data.npz_files import layout_arrays, save

ROOT = Path(__file__).parents[2]
LAYOUT, TILE = Collection.parse("layout/own/random"), Collection.parse("tile/own")


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


def test_a_store_that_a_kill_left_incomplete_or_of_other_code_is_made_again(
    layout_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_withheld_graphs_without_splits_are_test(tile_tree: Path) -> None:
    folds = '{"folds": 3, "families": {"k0": 0, "k1": 1, "k2": 2}}'
    (tile_tree / "split.json").write_text(folds)
    with np.load(tile_tree / "npz/tile/own/k3.npz") as file:
        arrays = {key: file[key] for key in file.files} | {"config_runtime": np.zeros(3, dtype=np.int64)}
    save(tile_tree / "npz/tile/own/k3.npz", arrays)
    store = processed_store(TILE, tile_tree)
    assert store.graphs("test") == ["k1", "k3"]
    (tile_tree / "split.json").write_text(folds.replace('"k2": 2', '"k2": 1').replace('"k1": 1', '"k1": 2'))
    assert processed_store(TILE, tile_tree).graphs("test") == ["k2", "k3"]


def test_wrong_names_and_missing_splits_are_refused(layout_tree: Path, tile_tree: Path) -> None:
    with pytest.raises(DataError, match=r"split\.json"):
        processed_store(TILE, tile_tree)
    with pytest.raises(ConfigError, match="columns='raw'"):
        hlorank.datasets.load("layout/own/random", layout_tree, "raw")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="layout/own"):
        hlorank.datasets.load("layout/own", layout_tree)


def test_the_default_root_is_what_fetch_writes(
    layout_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert OmegaConf.load(ROOT / "conf/config.yaml").paths.raw == RAW
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"data/raw.*stages\.fetch collection=layout/own/random.*no such folder"):
        hlorank.datasets.load("layout/own/random")
    layout_tree.rename("data/raw")
    assert len(hlorank.datasets.load("layout/own/random")) == 3
    with pytest.raises(DataError, match=r"stages\.fetch collection=tile/own.*found layout/own/random"):
        hlorank.datasets.load("tile/own")
