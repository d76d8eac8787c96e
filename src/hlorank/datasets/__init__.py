"""Collections as NumPy arrays: `hlorank.datasets.load`, of the package, of TpuGraphs, or of a folder."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from hlorank.config import ConfigError, Split, read_section
from hlorank.data.collection import SPLITS, Collection
from hlorank.data.npz import NpzFile
from hlorank.data.splits import SplitFile
from hlorank.datasets.graphs import Graphs as Graphs
from hlorank.datasets.graphs import GraphView as GraphView
from hlorank.fetch.local import find_files, new_splits
from hlorank.files import DataError, bundled, resolve_path

CACHE_VARIABLE = "HLORANK_CACHE"
_SPLIT_FILE = "split.json"  # next to npz files without splits; fold 0 is valid, 1 is test


@dataclass(frozen=True)
class Dataset:
    """A collection.

    Attributes:
        collection: the address.
        root: the npz tree that it is read from.
        train, valid, test: the graphs of each split.
    """

    collection: Collection
    root: Path
    train: Graphs
    valid: Graphs
    test: Graphs

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(getattr(self, split))} {split}" for split in SPLITS)
        return f"<{self.collection}: {sizes}; from {self.root}>"


def load(
    collection: str, root: str | Path | None = None, *, labels: bool = False, cache: str | Path | None = None
) -> Dataset:
    """Return the graphs of a collection as NumPy arrays, which are read when they are used.

    Nothing is written, but for a download: a collection of TpuGraphs that the cache does not have is downloaded and
    checked. A download that was interrupted continues, and other processes wait for it.

    Args:
        collection: its address, such as `layout/cpu/random` or `tile:xla`.
        root: folder that holds layout/ or tile/, there or in npz/: the official tree, such as an unpacked archive or
            data/raw, which the stage fetch writes; or files without splits next to the `split.json` of their folds. A
            leading $HLORANK_SHARED is the folder of shared data. By default the collection is one that comes with
            hlorank, or one of TpuGraphs; what is in the current folder does not matter.
        labels: show the runtimes of test; those of train and valid always are.
        cache: folder of downloads; by default that of the variable HLORANK_CACHE, or else ~/.cache/hlorank.

    Raises:
        ConfigError: there is no such collection, or the cache cannot be written.
        DataError: `root` does not have the collection or has no splits, or a download is damaged.
        OSError: the download failed, or the disk is full.
    """
    address, tree = _source(collection, root, cache)
    folder, sources = find_files(tree, address, flat=True)
    if any(path.parent == folder for path in sources):
        sources = _splits(sources, folder, address, tree / _SPLIT_FILE)
    files = {split: [path for path, found in sources.items() if found == split] for split in SPLITS}
    shown = {"train": True, "valid": True, "test": labels}
    return Dataset(address, tree, *(Graphs(files[split], split, address.kind, shown[split]) for split in SPLITS))


def _source(collection: str, root: str | Path | None, cache: str | Path | None) -> tuple[Collection, Path]:
    """Return the address of a collection, and the npz tree that has it."""
    if root is not None:
        return Collection.parse(collection), resolve_path(root)
    address, sample = None, bundled("sample")
    with suppress(ConfigError):
        address = Collection.parse(collection)
        if (sample / address.path).is_dir():
            return address, sample
    from hlorank.fetch.tpugraphs import COLLECTIONS, fetch_cached  # libraries for downloads take time to import

    if address is not None and str(address) in COLLECTIONS:
        place = resolve_path(cache or os.environ.get(CACHE_VARIABLE) or "~/.cache/hlorank")
        return address, fetch_cached(address, place)
    names = [str(folder.relative_to(sample)) for form in ("layout/*/*", "tile/*") for folder in sample.glob(form)]
    names += [name.replace(":", "/") for name in COLLECTIONS]
    near = get_close_matches(collection.replace(":", "/"), names, cutoff=0.5) or sorted(names)
    raise ConfigError(f"collection {collection!r}: expected {' or '.join(near)}, or root=, your own folder")


def _splits(sources: dict[Path, Split], folder: Path, collection: Collection, split_file: Path) -> dict[Path, Split]:
    """Return the split of each of the files directly in the folder, by the split file."""
    if not split_file.is_file():
        expected = f"the folders {', '.join(SPLITS)}, or folds in {split_file}; `data=local data.local.split_file="
        raise DataError("splits", f"{expected}{split_file}` of the stage fetch writes them", "none", file=folder)
    content = read_section(SplitFile, split_file, "edit the file")
    if not content.families and str(collection) not in content.collections:
        raise DataError(str(collection), "its folds, or those of model families", "none", file=split_file)
    names, withheld = {path: path.stem for path in sources}, {path for path in sources if _is_withheld(path)}
    return new_splits(names, withheld, collection, split_file, content.folds, fold=0)


def _is_withheld(path: Path) -> bool:
    with NpzFile(path) as file:
        return not file.read("config_runtime").any()
