"""Where collections come from: the package, a download of TpuGraphs, a folder; and what is refused."""

import errno
import io
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from omegaconf import OmegaConf

from hlorank.config import ConfigError
from hlorank.data.collection import SPLITS
from hlorank.datasets import load
from hlorank.fetch import tpugraphs
from hlorank.fetch.download import DownloadError
from hlorank.files import DataError, one_process
from tests.data.npz_files import layout_arrays
from tests.fetch.conftest import Fault, Server, member, tar
from tests.servers import free_port
from tests.trees import contents

ROOT = Path(__file__).parents[2]
XLA = "layout/xla/default"
TRAIN = "npz_layout_xla_default_train.tar"
LOAD = """
import sys
from hlorank import datasets
from hlorank.fetch import tpugraphs
tpugraphs.BASE_URL = sys.argv[1]
data = datasets.load("layout/xla/default", cache=sys.argv[2])
print(data.train[0].runtime.tolist())
"""


def times(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


def test_the_package_has_collections_and_the_current_folder_does_not_matter(layout_tree: Path, cwd: Path) -> None:
    own = layout_tree / "layout" / "own"
    (own.parent / "cpu").mkdir()
    own.joinpath("random").rename(own.parent / "cpu" / "random")
    (cwd / "data").mkdir()
    layout_tree.rename("data/raw")
    found = load("layout.cpu.random")
    assert "a" not in found.train.names
    graphs = {path.stem for path in (ROOT / "data/sample/layout/cpu/random").glob("*.npz")}
    assert {*found.train.names, *found.valid.names, *found.test.names} == graphs
    assert min(len(found.train), len(found.valid), len(found.test)) > 0
    assert load("layout/cpu/random", "data/raw").train.names == ["a"]
    assert len(load("tile:cpu").test) > 0


@pytest.mark.parametrize(
    ("collection", "near"),
    [
        ("layout/cpu/randum", "layout/cpu/random"),
        ("layout:xla:defualt", "layout/xla/default"),
        ("cpu/random", "layout/cpu/random"),
        ("layout/own/random", "root="),
        ("", "tile/xla"),
    ],
)
def test_an_unknown_collection_gets_near_names(collection: str, near: str) -> None:
    with pytest.raises(ConfigError, match=near) as error:
        load(collection)
    assert "\n" not in str(error.value)


def test_roots_without_the_collection_or_splits_are_refused(layout_tree: Path, tile_tree: Path) -> None:
    for collection, root, named in (
        ("layout/own/random", "nowhere", "no such folder"),
        ("tile/other", layout_tree, r"tile/other.*layout/own/random"),
        ("tile/own", tile_tree, r"split\.json"),
    ):
        with pytest.raises(DataError, match=named):
            load(collection, root)
    with pytest.raises(ConfigError, match="layout/own"):
        load("layout/own", layout_tree)


def test_splits_are_those_of_the_split_file_which_is_never_written(tile_tree: Path) -> None:
    file = tile_tree / "split.json"
    file.write_text('{"folds": 3, "families": {"k0": 0, "k1": 1, "k2": 2}}')
    found = load("tile/own", tile_tree)
    assert (found.train.names, found.valid.names) == (["k2"], ["k0"])
    assert found.test.names == ["k1", "k3"], "withheld labels are in test"
    file.write_text('{"folds": 3, "collections": {"tile:own": {"k0": 2, "k1": 0, "k2": 1}}}')
    assert load("tile/own", tile_tree).test.names == ["k2", "k3"]
    file.write_text('{"folds": 3, "collections": {"tile:other": {"k0": 0}}}')
    before = contents(tile_tree)
    with pytest.raises(DataError, match="tile:own"):
        load("tile/own", tile_tree)
    assert contents(tile_tree) == before


@pytest.fixture
def tpu(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Serve layout:xla:default, whose splits have a graph each: train, valid and test."""
    monkeypatch.setattr(tpugraphs, "BASE_URL", server.base_url + "/")
    server.files["LICENSE"] = b"licence text\n"
    for split in SPLITS:
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **layout_arrays())
        archive = tar(member("notes.txt", bytes(2**18)), member(f"npz/{XLA}/{split}/{split}.npz", file.getvalue()))
        server.files[f"npz_layout_xla_default_{split}.tar"] = archive
    return server


def test_base_url_is_that_of_conf() -> None:
    assert OmegaConf.load(ROOT / "conf/data/tpugraphs.yaml").tpugraphs.base_url == tpugraphs.BASE_URL


def test_a_collection_of_tpugraphs_is_downloaded_once_after_its_size_and_place_are_said(
    tpu: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLORANK_CACHE", str(tmp_path / "cache"))
    license_text = tpu.files.pop("LICENSE")
    with pytest.raises(DownloadError, match="LICENSE"):
        load(XLA)
    said = capsys.readouterr().err
    assert f"{sum(map(len, tpu.files.values())) / 1000:.1f} kB" in said
    assert str(tmp_path / "cache") in said
    tpu.files["LICENSE"] = license_text
    found = load(XLA)
    assert (found.train.names, found.valid.names, found.test.names) == (["train"], ["valid"], ["test"])
    assert found.train[0].runtime.tolist() == [30, 10, 20]
    asked, before = len(tpu.requests), times(tmp_path / "cache")
    capsys.readouterr()
    assert load("layout:xla:default", cache=tmp_path / "cache").train.names == ["train"]
    assert len(tpu.requests) == asked
    assert times(tmp_path / "cache") == before, "as on a read-only file system"
    assert capsys.readouterr().err == ""
    (tmp_path / "cache" / XLA / "valid" / "valid.npz").unlink()
    assert load(XLA).valid[0].runtime.tolist() == [30, 10, 20]
    assert tpu.requests[asked:] == ["npz_layout_xla_default_valid.tar"]


def test_half_a_download_continues_and_is_not_taken_for_whole(tpu: Server, tmp_path: Path) -> None:
    tpu.faults += [Fault(), Fault(stop_after=2**17), *[Fault(stop_after=0)] * 9]
    with pytest.raises(DownloadError):
        load(XLA, cache=tmp_path)
    assert not [*(tmp_path / "layout").rglob("*.npz")]
    assert load(XLA, cache=tmp_path).train[0].runtime.tolist() == [30, 10, 20]
    assert tpu.ranges_asked[11] == f"bytes={2**17}-"


def test_a_second_process_waits_for_the_download_of_the_first(tpu: Server, tmp_path: Path) -> None:
    load(XLA, cache=tmp_path / "done")
    asked, cache = len(tpu.requests), tmp_path / "cache"
    call = [sys.executable, "-c", LOAD, tpu.base_url, str(cache)]
    with one_process(cache / "downloads" / "layout.xla.default" / "lock", "the download"):
        process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert "layout:xla:default" in process.stderr.readline()
        assert process.poll() is None
        (tmp_path / "done" / "layout").rename(cache / "layout")
    out, errors = process.communicate(timeout=60)
    assert (out, errors) == ("[30, 10, 20]\n", "")
    assert len(tpu.requests) == asked


def test_without_a_network_or_a_cache_that_can_be_written_one_line_says_so(
    tpu: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for number in (errno.ENOTDIR, errno.EROFS, errno.EACCES, errno.ENOENT):
        with monkeypatch.context() as patched:
            if number != errno.ENOTDIR:  # that of a cache in a file
                patched.setattr(Path, "mkdir", Mock(side_effect=OSError(number, "cannot", "a folder")))
            with pytest.raises(ConfigError, match="HLORANK_CACHE") as refused:
                load(XLA, cache=tmp_path / "file" / "cache")
        assert "\n" not in str(refused.value)
    assert tpu.requests == []
    monkeypatch.setattr(tpugraphs, "BASE_URL", f"http://127.0.0.1:{free_port()}/v0")
    began = time.monotonic()
    with pytest.raises(DownloadError, match="root=") as failed:
        load(XLA, cache=tmp_path / "cache")
    assert "\n" not in str(failed.value)
    assert time.monotonic() - began < 10, "no retries"
    assert not (tmp_path / "cache" / "layout").exists()
