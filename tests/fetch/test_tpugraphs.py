"""TpuGraphs from a mirror or a folder: what is downloaded, kept, verified and replaced, also after a kill."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections import namedtuple
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hlorank
from hlorank.config import ConfigError
from hlorank.data.collection import SPLITS, Collection, Split, graph_files
from hlorank.fetch import tpugraphs
from hlorank.fetch.download import CHUNK_BYTES, DownloadError
from hlorank.fetch.tpugraphs import COLLECTIONS, TpuGraphsConfig
from hlorank.files import DataError

if TYPE_CHECKING:
    from tests.fetch.conftest import Server

Usage = namedtuple("Usage", "total used free")
XLA = Collection.parse("layout:xla:default")
TRAIN = "npz_layout_xla_default_train.tar"
NPZ_NAMES = {f"{split}/{split}_{name}.npz" for split in SPLITS for name in range(2)}


def npz(seed: int, size: int = 100) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        data = io.BytesIO()
        np.save(data, np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8))
        archive.writestr(zipfile.ZipInfo("array.npy"), data.getvalue())
    return file.getvalue()


def tar(files: dict[str, bytes]) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return output.getvalue()


def archives(collection: Collection = XLA, seed: int = 0) -> dict[str, bytes]:
    """Return a server's files: the licence, and an archive of two graphs per split."""
    files = {"LICENSE": b"licence text\n"}
    for place, split in enumerate(SPLITS):
        folder = f"npz/{collection.path.as_posix()}/{split}"
        graphs = {f"{folder}/{split}_{name}.npz": npz(seed + 10 * place + name, 50_000) for name in range(2)}
        files[f"npz_{'_'.join(collection.parts)}_{split}.tar"] = tar({**graphs, f"{folder}/notes.txt": b"unwanted"})
    return files


def tree(root: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in a folder, hidden ones included."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def config(base_url: str | Path, splits: tuple[Split, ...] = SPLITS, *, keep: bool = False) -> TpuGraphsConfig:
    return TpuGraphsConfig(
        base_url=str(base_url), splits=list(splits), downloads="", keep_archives=keep, retries=3, timeout_seconds=10
    )


def fetch(collection: Collection, config: TpuGraphsConfig, downloads: Path, output: Path) -> None:
    """Fetch with another folder for downloads."""
    tpugraphs.fetch(collection, config.model_copy(update={"downloads": str(downloads)}), output)


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    return tmp_path / "downloads"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "raw" / XLA.path


@pytest.fixture
def served(server: Server) -> Server:
    server.files = archives()
    return server


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
    shutil.rmtree(downloads)  # as after `dvc pull` in a fresh clone
    if not keep:
        fetch(XLA, config(served.base_url), downloads, output)
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


def test_lost_digests_are_written_again_from_kept_archives(served: Server, downloads: Path, output: Path) -> None:
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

    recorded = json.loads((downloads / "archives.json").read_text())
    del recorded[TRAIN]
    (downloads / "archives.json").write_text(json.dumps(recorded))
    fetch(XLA, mirror, downloads, output)
    assert (output / "train" / "train_0.npz").read_bytes() == npz(1, 50_000)


def test_missing_archive_fails_at_once(served: Server, downloads: Path, output: Path) -> None:
    del served.files[TRAIN]
    with pytest.raises(DownloadError, match=f"{TRAIN}: HTTP 404"):
        fetch(XLA, config(served.base_url), downloads, output)
    assert len(served.requests) == 2
    with pytest.raises(DownloadError, match="wrong/LICENSE: HTTP 404"):
        fetch(XLA, config(f"{served.base_url}/wrong"), downloads / "other", output / "other")


def test_too_little_space(served: Server, downloads: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(served.files[TRAIN])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 2 * size - 1))
    with pytest.raises(OSError, match="needed"):
        fetch(XLA, config(served.base_url, ("train",)), downloads, output)
    assert not (output / "train").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 2 * size))
    fetch(XLA, config(served.base_url, ("train",)), downloads, output)


def test_settings_that_cannot_be_fetched_are_refused_before_anything_is_written(downloads: Path, output: Path) -> None:
    with pytest.raises(ConfigError, match=f"layout:cpu:random: .*{', '.join(COLLECTIONS)}"):
        fetch(Collection.parse("layout:cpu:random"), config("http://127.0.0.1"), downloads, output)
    for base_url in ("gs://bucket/v0", "no/such/folder"):
        with pytest.raises(ConfigError, match=rf"data\.tpugraphs\.base_url={base_url}: expected"):
            fetch(XLA, config(base_url), downloads, output)
    (output / "train").mkdir(parents=True)
    with pytest.raises(ConfigError, match="a folder other than the output"):
        fetch(XLA, config(output.parents[2], ("valid",)), downloads, output)
    assert (output / "train").exists()
    assert not downloads.exists()


@pytest.mark.parametrize("text", ["[]", "{", f'{{"{TRAIN}": 3}}', f'{{"{TRAIN}": {{"size": "x", "sha256": "00"}}}}'])
def test_damaged_digests_are_refused(served: Server, downloads: Path, output: Path, text: str) -> None:
    downloads.mkdir()
    (downloads / "archives.json").write_text(text)
    with pytest.raises(DataError, match=r"archives\.json"):
        fetch(XLA, config(served.base_url), downloads, output)


# Damaged archives


def test_damaged_kept_archive_is_reported_and_downloaded_again(
    served: Server, downloads: Path, output: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fetch(XLA, config(served.base_url, keep=True), downloads, output)
    before = tree(output), tree(downloads)
    data = bytearray((downloads / TRAIN).read_bytes())
    data[2000] ^= 1
    (downloads / TRAIN).write_bytes(data)
    with caplog.at_level(logging.WARNING):
        fetch(XLA, config(served.base_url, keep=True), downloads, output)
    assert (tree(output), tree(downloads)) == before
    assert [name for name, _ in served.requests[4:]] == [TRAIN]
    (message,) = caplog.messages
    assert hashlib.sha256(data).hexdigest() in message
    assert hashlib.sha256(served.files[TRAIN]).hexdigest() in message


def corrupt(what: str) -> bytes:
    data = archives()[TRAIN]
    match what:
        case "truncated":
            return data[:30_000]
        case "not a tar":
            return b"<html>" * 1000
        case "data":
            return data[:20_000] + bytes([data[20_000] ^ 1]) + data[20_001:]
        case "unsafe":
            return tar({"npz/layout/xla/default/train/a.npz": npz(0), "../escape": b""})
        case "damaged LZMA":
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as file:
                file.writestr("a.npy", bytes(range(256)) * 9)
            broken = packed.getvalue()
            return tar({"npz/layout/xla/default/train/a.npz": broken[:60] + b"\xff" * 9 + broken[69:]})
        case "not an npz":
            return tar({"npz/layout/xla/default/train/a.npz": b"text"})
        case _:
            return archives(Collection.parse("layout:xla:random"))["npz_layout_xla_random_train.tar"]


@pytest.mark.parametrize(
    "what", ["truncated", "not a tar", "data", "unsafe", "not an npz", "damaged LZMA", "another collection"]
)
def test_corrupted_archive(served: Server, downloads: Path, output: Path, what: str) -> None:
    good = served.files[TRAIN]
    served.files[TRAIN] = corrupt(what)
    with pytest.raises(DataError, match=TRAIN):
        fetch(XLA, config(served.base_url, ("train",)), downloads, output)
    assert set(tree(output.parent)) == {"default/LICENSE"}, "neither half a split nor a staging folder"
    assert set(tree(downloads)) == {".lock", "LICENSE", "archives.json"}
    assert TRAIN not in json.loads((downloads / "archives.json").read_text()), "only sound archives are recorded"
    served.files[TRAIN] = good
    fetch(XLA, config(served.base_url, ("train",)), downloads, output)
    assert {path.name for path in (output / "train").iterdir()} == {"train_0.npz", "train_1.npz"}


# Folders of the user


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

    (output / ".MANIFEST.json.abc.partial").write_text("killed")
    fetch(XLA, config(mine, ("valid",)), downloads, output)
    assert set(tree(output)) == {"LICENSE", "MANIFEST.json", "valid/valid_0.npz", "valid/valid_1.npz"}
    (mine / TRAIN).write_bytes(archives(seed=1)[TRAIN])
    with pytest.raises(DataError, match=f"{TRAIN}: content"):
        fetch(XLA, config(mine), downloads, output)
    (downloads / "archives.json").unlink()
    (mine / TRAIN).write_bytes(corrupt("data"))
    with pytest.raises(DataError, match=r"train_0\.npz: array: .*damaged"):
        fetch(XLA, config(mine), downloads, output)
    assert (mine / TRAIN).exists()


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


# Kills

CHILD = """
import os, shutil, signal, sys
from pathlib import Path
from hlorank.data.collection import Collection
from hlorank.fetch.tpugraphs import TpuGraphsConfig, fetch

base_url, root = sys.argv[1], Path(sys.argv[2])
XLA = Collection.parse("layout:xla:default")

def run(downloads, output):
    settings = {"downloads": str(downloads), "keep_archives": False, "retries": 3, "timeout_seconds": 10}
    fetch(XLA, TpuGraphsConfig(base_url=base_url, splits=["train"], **settings), output)
"""

KILL_EVERYWHERE = (
    CHILD
    + """
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}

def state(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}

def killed(folder, step):
    left = step
    def count(event, arguments):
        nonlocal left
        if event in WRITES or event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    child = os.fork()
    if child == 0:
        sys.addaudithook(count)
        run(folder / "downloads", folder / "raw" / "out")
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])

shutil.copytree(root / "start", root / "expected")
run(root / "expected/downloads", root / "expected/raw/out")
step = 0
while True:
    folder = root / "folder"
    shutil.copytree(root / "start", folder)
    was_killed = killed(folder, step)
    run(folder / "downloads", folder / "raw/out")
    assert state(folder) == state(root / "expected"), step
    shutil.rmtree(folder)
    if not was_killed:
        break
    step += 1
print(step)
"""
)


def child_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(hlorank.__file__).parents[1])}


def test_killed_before_any_write(served: Server, tmp_path: Path) -> None:
    """A call that is killed before any of its writes, then repeated, ends in the files of a call without the kill."""
    start = tmp_path / "start"
    (tmp_path / "mine").mkdir()
    for name, data in archives(seed=100).items():
        (tmp_path / "mine" / name).write_bytes(data)
    (start / "raw").mkdir(parents=True)
    fetch(XLA, config(tmp_path / "mine"), tmp_path / "other", start / "raw" / "out")
    (start / "downloads").mkdir()
    digest = {"size": len(served.files[TRAIN]), "sha256": hashlib.sha256(served.files[TRAIN]).hexdigest()}
    (start / "downloads" / "archives.json").write_text(json.dumps({TRAIN: digest}))
    (start / "raw" / "out" / "LICENSE").unlink()
    (start / "raw" / "out" / "train" / "stale.npz").write_bytes(npz(0))
    command = [sys.executable, "-c", KILL_EVERYWHERE, served.base_url, str(tmp_path)]
    result = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 30


def test_killed_while_downloading(served: Server, tmp_path: Path) -> None:
    """After SIGKILL between two bytes, the same call downloads only the rest and ends in the same files."""
    clean, again = tmp_path / "clean", tmp_path / "again"
    fetch(XLA, config(served.base_url, ("train",)), clean / "downloads", clean / "out")
    served.serve()  # the licence
    served.hold(CHUNK_BYTES)
    script = CHILD + 'run(root / "downloads", root / "out")\n'
    command = [sys.executable, "-c", script, served.base_url, str(again)]
    with subprocess.Popen(command, env=child_environment(), start_new_session=True) as child:
        deadline = time.monotonic() + 30
        while not any(path.stat().st_size == CHUNK_BYTES for path in (again / "downloads").glob(f"{TRAIN}.*.partial")):
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.01)
        os.killpg(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    served.release.set()
    served.requests.clear()
    fetch(XLA, config(served.base_url, ("train",)), again / "downloads", again / "out")
    assert tree(again) == tree(clean)
    assert served.ranges_asked == [f"bytes={CHUNK_BYTES}-"]
