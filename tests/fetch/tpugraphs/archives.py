"""Archives of the official dataset in small, and fetching of them."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np

from hlorank.data.collection import SPLITS, Collection, Split
from hlorank.fetch import tpugraphs
from hlorank.fetch.tpugraphs import TpuGraphsConfig

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
