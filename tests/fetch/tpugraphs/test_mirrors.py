"""TpuGraphs from a mirror: what is downloaded, kept, verified and replaced."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hlorank.config import ConfigError
from hlorank.data.collection import SPLITS, Collection, graph_files
from hlorank.fetch.download import CHUNK_BYTES, DownloadError
from hlorank.fetch.tpugraphs import COLLECTIONS
from hlorank.files import DataError
from tests.fetch.tpugraphs.archives import NPZ_NAMES, TRAIN, XLA, archives, config, fetch, npz, tree

if TYPE_CHECKING:
    from tests.fetch.conftest import Server

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize("address", COLLECTIONS)
def test_every_collection(server: Server, downloads: Path, tmp_path: Path, address: str) -> None:
    collection = Collection.parse(address)
    server.files = archives(collection)
    fetch(collection, config(server.base_url), downloads, tmp_path / "raw" / collection.path)
    for place, split in enumerate(SPLITS):
        files = graph_files(tmp_path / "raw", collection, split)
        assert [file.read_bytes() for file in files] == [npz(10 * place + name, 50_000) for name in range(2)]
    assert (tmp_path / "raw" / collection.path / "LICENSE").read_bytes() == b"licence text\n"
    assert set(tree(downloads)) == {".lock", "LICENSE", "archives.json"}, "archives are deleted"
    recorded = json.loads((downloads / "archives.json").read_text())
    assert recorded == {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in server.files.items()
    }


@pytest.mark.parametrize("keep", [False, True])
def test_second_call_asks_for_nothing(served: Server, downloads: Path, output: Path, *, keep: bool) -> None:
    fetch(XLA, config(served.base_url + "/", keep=keep), downloads, output)
    before = tree(output), tree(downloads)
    assert len(served.requests) == 4
    fetch(XLA, config(served.base_url, keep=keep), downloads, output)
    assert (tree(output), tree(downloads)) == before
    assert len(served.requests) == 4
    assert (TRAIN in before[1]) == keep


def test_complete_output_needs_no_downloads_folder(served: Server, downloads: Path, output: Path) -> None:
    fetch(XLA, config(served.base_url), downloads, output)
    shutil.rmtree(downloads)  # as after `dvc pull` in a fresh clone
    fetch(XLA, config(served.base_url), downloads, output)
    assert len(served.requests) == 4


def test_kept_archives_go_when_no_longer_wanted(served: Server, downloads: Path, output: Path) -> None:
    fetch(XLA, config(served.base_url, keep=True), downloads, output)
    fetch(XLA, config(served.base_url), downloads, output)
    assert set(tree(downloads)) == {".lock", "LICENSE", "archives.json"}
    assert len(served.requests) == 4


def test_damaged_output_is_restored_from_a_kept_archive(served: Server, downloads: Path, output: Path) -> None:
    fetch(XLA, config(served.base_url, keep=True), downloads, output)
    before = tree(output)
    (output / "train" / "train_0.npz").write_bytes(b"damaged")
    (output / "valid" / "valid_0.npz").unlink()
    (output / "test" / "stale.npz").write_bytes(npz(99))
    fetch(XLA, config(served.base_url, keep=True), downloads, output)
    assert tree(output) == before
    assert len(served.requests) == 4


def test_lost_ledger_is_written_again_from_kept_archives(served: Server, downloads: Path, output: Path) -> None:
    fetch(XLA, config(served.base_url, keep=True), downloads, output)
    recorded = json.loads((downloads / "archives.json").read_text())
    (downloads / "archives.json").unlink()
    fetch(XLA, config(served.base_url, keep=True), downloads, output)
    del recorded["LICENSE"]  # it is in the output, and is not requested again
    assert json.loads((downloads / "archives.json").read_text()) == recorded


def test_read_only_and_linked_files_are_replaced(served: Server, downloads: Path, output: Path, tmp_path: Path) -> None:
    fetch(XLA, config(served.base_url), downloads, output)
    before = tree(output)
    cache = tmp_path / "cache"
    shutil.copytree(output, cache, copy_function=os.link)  # as DVC links its cache
    for path in cache.rglob("*"):
        if path.is_file():
            path.chmod(0o444)
    (output / "MANIFEST.json").unlink()
    (output / "LICENSE").unlink()
    cached = tree(cache)
    fetch(XLA, config(served.base_url), downloads, output)
    assert tree(output) == before
    assert tree(cache) == cached
    assert (output / "train" / "train_0.npz").stat().st_nlink == 1


def test_mirror_must_give_the_same_bytes(served: Server, downloads: Path, output: Path) -> None:
    fetch(XLA, config(served.base_url, ("train",)), downloads, output)
    first, second = served.files[TRAIN], archives(seed=1)[TRAIN]
    served.files = {f"mirror/{name}": data for name, data in archives(seed=1).items()}
    shutil.rmtree(output)
    mirror = config(f"{served.base_url}/mirror", ("train",))
    with pytest.raises(DataError) as error:
        fetch(XLA, mirror, downloads, output)
    for part in (TRAIN, *(hashlib.sha256(data).hexdigest() for data in (first, second)), "archives.json"):
        assert part in str(error.value)
    assert not (output / "train").exists()

    ledger = downloads / "archives.json"
    ledger.write_text(json.dumps({key: value for key, value in json.loads(ledger.read_text()).items() if key != TRAIN}))
    fetch(XLA, mirror, downloads, output)
    assert (output / "train" / "train_0.npz").read_bytes() == npz(1, 50_000)


def test_missing_archive_fails_at_once(served: Server, downloads: Path, output: Path) -> None:
    del served.files[TRAIN]
    with pytest.raises(DownloadError, match=f"{TRAIN}: HTTP 404"):
        fetch(XLA, config(served.base_url), downloads, output)
    assert len(served.requests) == 2


def test_wrong_address_shows_at_the_licence(served: Server, downloads: Path, output: Path) -> None:
    with pytest.raises(DownloadError, match="wrong/LICENSE: HTTP 404"):
        fetch(XLA, config(f"{served.base_url}/wrong"), downloads, output)


def test_faults_on_the_way_change_nothing(served: Server, downloads: Path, output: Path, tmp_path: Path) -> None:
    fetch(XLA, config(served.base_url), downloads, output)
    for status in (503, 429):
        served.answer(status)
    served.serve()  # the licence
    served.drop(CHUNK_BYTES)
    served.answer(500)
    served.drop(0)
    fetch(XLA, config(served.base_url), tmp_path / "downloads2", tmp_path / "again")
    assert tree(tmp_path / "again") == tree(output)


def test_fewer_splits_leave_no_stale_ones(served: Server, downloads: Path, output: Path) -> None:
    fetch(XLA, config(served.base_url), downloads, output)
    fetch(XLA, config(served.base_url, ("valid",)), downloads, output)
    assert set(tree(output)) == {"LICENSE", "MANIFEST.json", "valid/valid_0.npz", "valid/valid_1.npz"}
    assert len(served.requests) == 4


def test_leftovers_of_another_origin_are_replaced(served: Server, downloads: Path, output: Path) -> None:
    (output / "train").mkdir(parents=True)
    (output / "train" / "own.npz").write_bytes(npz(5))
    (output / "MANIFEST.json").write_text("not JSON")
    (output / ".MANIFEST.json.abc.partial").write_text("killed")
    fetch(XLA, config(served.base_url), downloads, output)
    assert set(tree(output)) == NPZ_NAMES | {"LICENSE", "MANIFEST.json"}


def test_too_little_space(served: Server, downloads: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(served.files[TRAIN])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 2 * size - 1))
    with pytest.raises(OSError, match="needed"):
        fetch(XLA, config(served.base_url, ("train",)), downloads, output)
    assert not (output / "train").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 2 * size))
    fetch(XLA, config(served.base_url, ("train",)), downloads, output)


@pytest.mark.parametrize("address", ["layout:cpu:random", "tile:nlp", "tile:synthetic"])
def test_unofficial_collection(downloads: Path, output: Path, address: str) -> None:
    with pytest.raises(ConfigError, match=f"{address}: .*{', '.join(COLLECTIONS)}"):
        fetch(Collection.parse(address), config("http://127.0.0.1"), downloads, output)
    assert not downloads.exists()


@pytest.mark.parametrize("base_url", ["gs://bucket/v0", "no/such/folder"])
def test_unusable_base_url(downloads: Path, output: Path, base_url: str) -> None:
    with pytest.raises(ConfigError, match=rf"data\.tpugraphs\.base_url={base_url}: expected"):
        fetch(XLA, config(base_url), downloads, output)
