"""Origin synthetic: the tree it writes, resuming, and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.config import ConfigError, parse
from hlorank.data.collection import SPLITS, Collection, graph_files, read_graph
from hlorank.fetch import synthetic
from hlorank.fetch.synthetic import (
    SyntheticConfig,
    draw_graph,
    fetch,
)
from tests.fetch.synthetic.drawn import (
    CONFIG,
    DEFAULT,
    RANDOM,
    TILE,
    layouts,
    tiles,
)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("collection", [RANDOM, DEFAULT, TILE], ids=str)
def test_fetch_writes_the_tree(collection: Collection, tmp_path: Path) -> None:
    fetch(collection, CONFIG, tmp_path / collection.path)
    for split, count in zip(SPLITS, (2, 1, 1), strict=True):
        files = graph_files(tmp_path, collection, split)
        assert [f.stem for f in files] == [f"synthetic_{split}_{i:03d}" for i in range(count)]
        for index, file in enumerate(files):
            measured = read_graph(file, collection.kind)
            drawn = draw_graph(collection, CONFIG, split, index)
            assert measured.name == drawn.name
            assert np.array_equal(measured.measurements.runtime, drawn.measurements.runtime)
            assert np.array_equal(measured.graph.node_feat, drawn.graph.node_feat)
            assert not measured.measurements.withheld
            if collection is TILE:
                assert len(measured.measurements) == 5
                assert np.array_equal(tiles(measured).feat, tiles(drawn).feat)
            else:
                assert len(measured.measurements) == 40
                assert 60 <= measured.graph.nodes <= 200
                assert np.array_equal(layouts(measured).codebook, layouts(drawn).codebook)
                assert np.array_equal(layouts(measured).codes, layouts(drawn).codes)


def test_fetch_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    fetch(RANDOM, CONFIG, whole)
    fetch(RANDOM, CONFIG, killed)
    (killed / "train/synthetic_train_001.npz").unlink()
    (killed / "train/.synthetic_train_001.npz.x1.partial").write_bytes(b"half")
    kept = (killed / "train/synthetic_train_000.npz").stat()
    fetch(RANDOM, CONFIG, killed)
    assert tree(killed) == tree(whole)
    assert (killed / "train/synthetic_train_000.npz").stat().st_mtime_ns == kept.st_mtime_ns


def test_number_of_graphs_does_not_change_their_bytes(tmp_path: Path) -> None:
    grown, fresh = tmp_path / "grown", tmp_path / "fresh"
    fetch(TILE, CONFIG, grown)
    before = tree(grown)
    assert len(set(before.values())) == len(before)
    (grown / "valid/other.npz").write_bytes(b"stale")
    for folder in (grown, fresh):
        fetch(TILE, CONFIG.model_copy(update={"train": 3, "valid": 0}), folder)
    after = tree(fresh)
    assert tree(grown) == after
    assert set(after) == (set(before) | {"train/synthetic_train_002.npz"}) - {"valid/synthetic_valid_000.npz"}
    assert all(after[name] == before[name] for name in set(after) & set(before))


def test_other_settings_write_other_graphs(tmp_path: Path) -> None:
    fetch(RANDOM, CONFIG, tmp_path)
    before = tree(tmp_path)
    fetch(RANDOM, CONFIG.model_copy(update={"seed": 4}), tmp_path)
    after = tree(tmp_path)
    assert set(after) == set(before)
    assert all(after[name] != before[name] for name in after)


def test_other_code_writes_other_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(RANDOM, CONFIG, tmp_path)
    file = tmp_path / "train/synthetic_train_000.npz"
    before = file.read_bytes()
    file.write_bytes(b"of older code")
    fetch(RANDOM, CONFIG, tmp_path)
    assert file.read_bytes() == b"of older code"  # complete files are kept
    monkeypatch.setattr(synthetic, "code_digest", lambda *_: "other")
    fetch(RANDOM, CONFIG, tmp_path)
    assert file.read_bytes() == before


def test_generated_data_is_labelled_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"collection=layout:xla:random: expected .*synthetic"):
        fetch(Collection.parse("layout:xla:random"), CONFIG, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train", -1),
        ("min_nodes", 49),
        ("min_nodes", 201),
        ("configurable_nodes", 0),
        ("configurations", 0),
        ("repeated", 1.5),
        ("noise", -0.1),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    named = "max_nodes=200: expected .* min_nodes=201" if value == 201 else f"{name}={value}: expected"
    with pytest.raises(ConfigError, match=rf"^data\.synthetic\.{named}"):
        parse(SyntheticConfig, CONFIG.model_dump() | {name: value}, prefix="data.synthetic")
