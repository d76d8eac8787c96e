"""TpuGraphs from a mirror or a folder: what is downloaded, kept, verified and replaced, also after a kill."""

import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.config import ConfigError
from hlorank.data.collection import SPLITS, Collection, Split, graph_files
from hlorank.fetch import tpugraphs
from hlorank.fetch.tpugraphs import COLLECTIONS, TpuGraphsConfig
from hlorank.files import DataError, read_json
from tests.fetch.conftest import Server, member, tar
from tests.trees import contents

XLA = Collection.parse("layout:xla:default")
TRAIN = "npz_layout_xla_default_train.tar"
NPZ_NAMES = {f"{split}/{split}_{name}.npz" for split in SPLITS for name in range(2)}


def npz(seed: int, size: int = 100) -> bytes:
    file = io.BytesIO()
    np.savez(file, config_feat=np.random.default_rng(seed).integers(0, 256, (size, 1), dtype=np.uint8))
    return file.getvalue()


def archives(collection: Collection = XLA, seed: int = 0) -> dict[str, bytes]:
    """Return a server's files: the licence, and an archive of two graphs per split."""
    files = {"LICENSE": b"licence text\n"}
    for place, split in enumerate(SPLITS):
        folder = f"npz/{collection.path.as_posix()}/{split}"
        graphs = [member(f"{folder}/{split}_{name}.npz", npz(seed + 10 * place + name, 50_000)) for name in range(2)]
        archive = tar(*graphs, member(f"{folder}/notes.txt", b"unwanted"))
        files[f"npz_{'_'.join(collection.parts)}_{split}.tar"] = archive
    return files


def stored(folder: Path, seed: int = 0) -> Path:
    folder.mkdir()
    for name, data in archives(seed=seed).items():
        (folder / name).write_bytes(data)
    return folder


def fetch(base_url: str | Path, root: Path, *splits: Split, keep: bool = False, collection: Collection = XLA) -> Path:
    """Fetch into `root`/raw/<collection>, with downloads in `root`/downloads; return the folder of the output."""
    config = TpuGraphsConfig(
        base_url=str(base_url),
        splits=list(splits or SPLITS),
        downloads=str(root / "downloads"),
        keep_archives=keep,
        retries=3,
        timeout_seconds=10,
    )
    tpugraphs.fetch(collection, config, root / "raw" / collection.path)
    return root / "raw" / collection.path


def digest(data: bytes | bytearray) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def recorded(root: Path) -> dict[str, Any]:
    return dict(read_json(root / "downloads" / "archives.json"))


@pytest.fixture
def served(server: Server) -> Server:
    server.files = archives()
    return server


@pytest.mark.parametrize(("address", "keep"), [*((address, False) for address in COLLECTIONS), (COLLECTIONS[0], True)])
def test_every_collection_is_fetched_once(server: Server, tmp_path: Path, address: str, keep: bool) -> None:
    collection = Collection.parse(address)
    server.files = archives(collection)
    output = fetch(server.base_url + "/", tmp_path, keep=keep, collection=collection)
    for place, split in enumerate(SPLITS):
        files = graph_files(tmp_path / "raw", collection, split)
        assert [file.read_bytes() for file in files] == [npz(10 * place + name, 50_000) for name in range(2)]
    assert (output / "LICENSE").read_bytes() == b"licence text\n"
    kept = {*server.files} if keep else {"LICENSE"}
    assert contents(tmp_path / "downloads").keys() == kept | {".lock", "archives.json"}
    assert recorded(tmp_path) == {name: digest(data) for name, data in server.files.items()}
    before = contents(tmp_path)
    fetch(server.base_url, tmp_path, keep=keep, collection=collection)
    assert contents(tmp_path) == before
    shutil.rmtree(tmp_path / "downloads")  # as after `dvc pull` in a fresh clone
    fetch(server.base_url, tmp_path, keep=keep, collection=collection)
    assert len(server.requests) == 4


def test_a_mirror_must_give_the_same_bytes(served: Server, tmp_path: Path) -> None:
    output = fetch(served.base_url, tmp_path, "train")
    first, second = served.files[TRAIN], archives(seed=1)[TRAIN]
    served.files = {f"mirror/{name}": data for name, data in archives(seed=1).items()}
    shutil.rmtree(output)
    with pytest.raises(DataError) as error:
        fetch(f"{served.base_url}/mirror", tmp_path, "train")
    for part in (TRAIN, digest(first)["sha256"], digest(second)["sha256"], "archives.json"):
        assert part in str(error.value)
    assert not (output / "train").exists()
    kept = {other: digest for other, digest in recorded(tmp_path).items() if other != TRAIN}  # as the message advises
    (tmp_path / "downloads" / "archives.json").write_text(json.dumps(kept))
    fetch(f"{served.base_url}/mirror", tmp_path, "train")
    assert (output / "train" / "train_0.npz").read_bytes() == npz(1, 50_000)


def test_settings_that_cannot_be_fetched_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    output = tmp_path / "raw" / XLA.path
    (output / "train").mkdir(parents=True)
    other = Collection.parse("layout:cpu:random")
    for base_url, collection, message in (
        ("http://127.0.0.1", other, f"layout:cpu:random: .*{', '.join(COLLECTIONS)}"),
        ("gs://bucket/v0", XLA, r"data\.tpugraphs\.base_url=gs://bucket/v0: expected"),
        ("no/such/folder", XLA, r"data\.tpugraphs\.base_url=no/such/folder: expected"),
        (tmp_path / "raw", XLA, "a folder other than the output"),
    ):
        with pytest.raises(ConfigError, match=message):
            fetch(base_url, tmp_path, "valid", collection=collection)
    assert [*tmp_path.rglob("*")] == [tmp_path / "raw", *reversed(output.parents[:2]), output, output / "train"]


def test_the_manifest_has_number_order_and_release_of_graphs(server: Server, tmp_path: Path, shared_data: Path) -> None:
    layouts = np.random.default_rng(0).integers(-1, 6, (5, 2, 18))
    (real,) = graph_files(shared_data / "tpugraphs" / "npz", XLA, "valid")
    graphs = {"train": dict[str, bytes](), "valid": {"real": real.read_bytes()}}
    parts: list[Any] = [layouts, layouts[::-1], layouts.astype(np.float32)]
    for number, part in enumerate(parts):
        np.savez_compressed(file := io.BytesIO(), node_config_feat=part, config_runtime=np.arange(5))
        graphs["train"][str(number)] = file.getvalue()
    for split, named in graphs.items():
        members = [member(f"npz/layout/xla/default/{split}/{name}.npz", data) for name, data in named.items()]
        server.files |= {"LICENSE": b"licence", f"npz_layout_xla_default_{split}.tar": tar(*members)}
    before = read_json(fetch(server.base_url, tmp_path, "train", "valid") / "MANIFEST.json")
    order, other = (hashlib.sha256(part.astype(np.int8).tobytes()).hexdigest()[:16] for part in parts[:2])
    assert before["train"]["configurations"] == {"0.npz": [5, order], "1.npz": [5, other], "2.npz": [5, order]}
    assert (before["train"]["release"], before["valid"]["release"]) == (None, "2023-08")


def test_damaged_digests_are_refused(served: Server, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    for text in ("[]", "{", f'{{"{TRAIN}": 3}}', f'{{"{TRAIN}": {{"size": "x", "sha256": "00"}}}}'):
        (tmp_path / "downloads" / "archives.json").write_text(text)
        with pytest.raises(DataError, match=r"archives\.json"):
            fetch(served.base_url, tmp_path)


def test_damaged_files_are_replaced_from_a_kept_archive_unless_that_is_damaged_too(
    served: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output, cache, kept = tmp_path / "raw" / XLA.path, tmp_path / "cache", tmp_path / "downloads" / TRAIN
    fetch(served.base_url, tmp_path, keep=True)
    before = contents(output)
    shutil.copytree(output, cache, copy_function=os.link)  # as DVC links its cache
    for path in cache.rglob("*.*"):
        path.chmod(0o444)
    for damaged in ("train/train_0.npz", "valid/valid_0.npz", "test/stale.npz", "LICENSE"):
        (output / damaged).unlink(missing_ok=True)
    (output / "train" / "train_0.npz").write_bytes(b"damaged")
    (output / "test" / "stale.npz").write_bytes(npz(99))
    fetch(served.base_url, tmp_path, keep=True)
    assert contents(output) == contents(cache) == before
    assert len(served.requests) == 4
    assert (output / "train" / "train_1.npz").stat().st_nlink == 1
    data = bytearray(kept.read_bytes())
    data[2000] ^= 1
    kept.write_bytes(data)
    (output / "train" / "train_0.npz").write_bytes(b"damaged")
    fetch(served.base_url, tmp_path, keep=True)
    assert contents(output) == before
    assert kept.read_bytes() == GOOD
    assert served.requests[4:] == [TRAIN]
    (message,) = caplog.messages
    assert all(digest(content)["sha256"] in message for content in (data, GOOD))


GOOD = archives()[TRAIN]
DAMAGED = GOOD[:20_000] + bytes([GOOD[20_000] ^ 1]) + GOOD[20_001:]
FOREIGN = archives(Collection.parse("layout:xla:random"))["npz_layout_xla_random_train.tar"]


@pytest.mark.parametrize(
    "archive", [GOOD[:30_000], b"<html>" * 1000, DAMAGED, FOREIGN], ids=["truncated", "no tar", "damaged", "another"]
)
def test_a_corrupted_archive_leaves_nothing(served: Server, tmp_path: Path, archive: bytes) -> None:
    served.files[TRAIN] = archive
    with pytest.raises(DataError, match=TRAIN):
        fetch(served.base_url, tmp_path, "train")
    files = {f"raw/{XLA.path.as_posix()}/LICENSE", *(f"downloads/{name}" for name in (".lock", "LICENSE"))}
    assert set(contents(tmp_path)) == files | {"downloads/archives.json"}, "neither half a split nor a staging folder"
    assert TRAIN not in recorded(tmp_path), "only sound archives are recorded"
    served.files[TRAIN] = GOOD
    output = fetch(served.base_url, tmp_path, "train")
    assert {path.name for path in (output / "train").iterdir()} == {"train_0.npz", "train_1.npz"}


def test_a_folder_of_archives(tmp_path: Path) -> None:
    mine = stored(tmp_path / "mine")
    before = contents(mine)
    for _ in range(2):
        output = fetch(mine, tmp_path)
        assert set(contents(output)) == NPZ_NAMES | {"LICENSE", "MANIFEST.json"}
        assert contents(mine) == before
    (output / ".MANIFEST.json.abc.partial").write_text("killed")
    fetch(mine, tmp_path, "valid")
    assert set(contents(output)) == {"LICENSE", "MANIFEST.json", "valid/valid_0.npz", "valid/valid_1.npz"}
    (mine / TRAIN).write_bytes(DAMAGED)
    with pytest.raises(DataError, match=f"{TRAIN}: content"):
        fetch(mine, tmp_path)
    assert (mine / TRAIN).exists(), "the user's archives stay"


@pytest.mark.parametrize("below", ["", "npz", "npz_all", "npz_all/npz"])
def test_an_unpacked_tree(tmp_path: Path, below: str, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "tree"
    for name in NPZ_NAMES:
        path = root / below / XLA.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(npz(len(name)))
    output = fetch(root, tmp_path)
    assert "no LICENSE there" in caplog.text
    assert set(contents(output)) == NPZ_NAMES | {"MANIFEST.json"}
    unchanged = (output / "train").stat().st_ino
    changed = root / below / XLA.path / "valid" / "valid_0.npz"
    changed.write_bytes(npz(99))
    fetch(root, tmp_path)
    assert (output / "train").stat().st_ino == unchanged
    assert (output / "valid" / "valid_0.npz").read_bytes() == npz(99)
    assert (output / "valid" / "valid_0.npz").stat().st_ino != changed.stat().st_ino, "a copy"
    for path in (root / below / XLA.path / "train").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="folder: expected npz files, found none"):
        fetch(root, tmp_path, "train")
    shutil.rmtree(root / below / XLA.path / "test")
    with pytest.raises(DataError, match=r"split test of layout:xla:default: .*_test\.tar or .*npz_all/npz/layout"):
        fetch(root, tmp_path, "test")


WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}


def is_killed(base_url: str, folder: Path, writes: int) -> bool:
    """Fetch in a child that is killed before a further write; return False if it does no more writes."""

    def count(event: str, arguments: Any) -> None:
        nonlocal writes
        if event in WRITES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            writes -= 1
            if writes < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        sys.addaudithook(count)
        fetch(base_url, folder, "train")
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def kill_everywhere(base_url: str, root: Path) -> None:
    """Compare what a fetch leaves with what it leaves after a kill before each write; in a process of one thread."""
    shutil.copytree(root / "start", root / "expected")
    fetch(base_url, root / "expected", "train")
    writes, was_killed = 0, True
    while was_killed:
        shutil.copytree(root / "start", root / "folder")
        was_killed = is_killed(base_url, root / "folder", writes)
        fetch(base_url, root / "folder", "train")
        assert contents(root / "folder") == contents(root / "expected"), writes
        shutil.rmtree(root / "folder")
        writes += 1
    assert writes > 30


def test_a_call_killed_before_any_write_and_repeated_ends_in_the_same_files(served: Server, tmp_path: Path) -> None:
    output = fetch(stored(tmp_path / "mine", seed=100), tmp_path / "start")
    (tmp_path / "start" / "downloads" / "archives.json").write_text(json.dumps({TRAIN: digest(served.files[TRAIN])}))
    (output / "LICENSE").unlink()
    (output / "train" / "stale.npz").write_bytes(npz(0))
    process = multiprocessing.get_context("spawn").Process(target=kill_everywhere, args=(served.base_url, tmp_path))
    process.start()
    process.join(60)
    assert process.exitcode == 0
