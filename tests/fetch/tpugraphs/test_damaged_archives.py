"""Damaged archives of TpuGraphs: an error that names the archive, and a later call that mends it."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hlorank.data.collection import Collection
from hlorank.files import DataError
from tests.fetch.tpugraphs.archives import TRAIN, XLA, archives, config, fetch, npz, tar, tree

if TYPE_CHECKING:
    from tests.fetch.conftest import Server


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


def test_corrupted_folder_archive_is_the_users(downloads: Path, output: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / TRAIN).write_bytes(corrupt("data"))
    with pytest.raises(DataError, match=r"train_0\.npz: array: .*damaged"):
        fetch(XLA, config(tmp_path / "mine", ("train",)), downloads, output)
    assert (tmp_path / "mine" / TRAIN).exists()
