"""TpuGraphs from the user's folder of archives or unpacked files."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hlorank.config import ConfigError
from hlorank.data.collection import read_graph
from hlorank.files import DataError
from tests.fetch.tpugraphs.archives import NPZ_NAMES, TRAIN, XLA, archives, config, fetch, npz, tar, tree


def test_folder_of_archives(downloads: Path, output: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for name, data in archives().items():
        (mine / name).write_bytes(data)
    before = tree(mine)
    for _ in range(2):
        fetch(XLA, config(mine), downloads, output)
        assert set(tree(output)) == NPZ_NAMES | {"LICENSE", "MANIFEST.json"}
        assert tree(mine) == before, "the user's archives stay"

    (mine / TRAIN).write_bytes(archives(seed=1)[TRAIN])
    with pytest.raises(DataError, match=f"{TRAIN}: content"):
        fetch(XLA, config(mine), downloads, output)


def test_new_archive_replaces_the_old_extraction(downloads: Path, output: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / TRAIN).write_bytes(archives()[TRAIN])
    fetch(XLA, config(mine, ("train",)), downloads, output)
    (downloads / "archives.json").unlink()
    (mine / TRAIN).write_bytes(tar({"npz/layout/xla/default/train/new.npz": npz(7)}))
    fetch(XLA, config(mine, ("train",)), downloads, output)
    assert set(tree(output)) == {"MANIFEST.json", "train/new.npz"}


@pytest.mark.parametrize("below", ["", "npz", "npz_all", "npz_all/npz"])
def test_unpacked_tree(
    downloads: Path, output: Path, tmp_path: Path, below: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "tree"
    for name in NPZ_NAMES:
        path = root / below / XLA.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(npz(len(name)))
    with caplog.at_level(logging.WARNING):
        fetch(XLA, config(root), downloads, output)
    assert "no LICENSE there" in caplog.text
    assert set(tree(output)) == NPZ_NAMES | {"MANIFEST.json"}
    unchanged = (output / "train").stat().st_ino
    changed = root / below / XLA.path / "valid" / "valid_0.npz"
    changed.write_bytes(npz(99))
    fetch(XLA, config(root), downloads, output)
    assert (output / "train").stat().st_ino == unchanged
    assert (output / "valid" / "valid_0.npz").read_bytes() == npz(99)
    assert (output / "valid" / "valid_0.npz").stat().st_ino != changed.stat().st_ino, "a copy"


def test_folder_without_a_split(downloads: Path, output: Path, tmp_path: Path) -> None:
    (tmp_path / "npz" / XLA.path / "train").mkdir(parents=True)
    with pytest.raises(DataError, match="folder: expected npz files, found none"):
        fetch(XLA, config(tmp_path, ("train",)), downloads, output)
    with pytest.raises(DataError, match=r"split test of layout:xla:default: .*_test\.tar or .*npz_all/npz/layout"):
        fetch(XLA, config(tmp_path, ("test",)), downloads, output)


def test_real_tree(shared_data: Path, downloads: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLORANK_SHARED", str(shared_data.parent))
    fetch(XLA, config("$HLORANK_SHARED/data/tpugraphs"), downloads, output)
    assert {path.name for path in output.rglob("*.npz")} >= {"unet3d.npz", "unet_3d.4x4.bf16.npz"}
    assert read_graph(output / "valid" / "unet_3d.4x4.bf16.npz", "layout").name == "unet_3d.4x4.bf16"


def test_output_as_its_own_source(downloads: Path, output: Path, tmp_path: Path) -> None:
    (output / "train").mkdir(parents=True)
    with pytest.raises(ConfigError, match="a folder other than the output"):
        fetch(XLA, config(tmp_path / "raw", ("valid",)), downloads, output)
    assert (output / "train").exists()
