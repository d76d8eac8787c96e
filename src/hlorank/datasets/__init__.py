"""Collections as datasets of PyTorch Geometric: `hlorank.datasets.load`, over stores that are made where missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from hlorank.config import ConfigError, FeaturizeConfig, Split, parse, read_section
from hlorank.data.collection import RAW, SPLITS, Collection, sidecar_path
from hlorank.data.npz import NpzFile
from hlorank.data.splits import SplitFile
from hlorank.featurize.feature_store import INDEX_FILE, FeatureStore, GraphStore
from hlorank.featurize.featurize_collection import CODE, featurize_files, store_official
from hlorank.fetch.local import find_files, new_splits
from hlorank.files import DataError, code_digest, fingerprint, one_process, read_json, resolve_path, write_json

if TYPE_CHECKING:
    from hlorank.datasets.graph_dataset import GraphDataset

Columns = Literal["official", "hlorank"]

PROCESSED = "processed"  # default folder of the cache, in the root of the npz tree
_SPLIT_FILE = "split.json"  # next to npz files without splits; fold 0 is valid, 1 is test
_STAMP, _LOCK = "stamp.json", "lock"


def load(
    collection: str,
    root: str | Path = RAW,
    columns: Columns = "official",
    cache: str | Path | None = None,
    transform: Callable[[Any], Any] | None = None,
) -> GraphDataset:
    """Return a collection as a `torch_geometric.data.Dataset`, with one `GraphData` for each graph.

    The first call reads and validates the npz files, and writes them as memory-mapped arrays into a cache; later calls
    open it. Graphs whose files, or the code that reads them, have changed since are written again.

    Args:
        collection: its address, such as `layout/cpu/random` or `tile:xla`.
        root: folder that holds layout/ or tile/, there or in npz/: the official tree, such as data/raw or an unpacked
            archive; or files without splits, such as data/sample, next to the `split.json` of their folds. By default
            data/raw in the current folder, which the stage fetch writes. A leading $HLORANK_SHARED is the folder of
            shared data.
        columns: `official`, the columns of the npz files; or `hlorank`, the features of the stage featurize, with the
            values of conf/featurize/default.yaml: scaled on train, without the nodes that are more than one edge away
            from a configurable node.
        cache: folder of the arrays; None is `root`/processed.
        transform: function of a `GraphData`, called whenever a graph is read, such as a transform of PyTorch Geometric.

    Raises:
        ConfigError: there is no such address, or no such columns.
        DataError: `root` does not have the collection, has no splits, or a file is damaged.
        ExceptionGroup: several files are damaged; it has a DataError for each.
        OSError: the cache cannot be written.
    """
    from hlorank.datasets.graph_dataset import GraphDataset

    address = Collection.parse(collection)
    return GraphDataset(processed_store(address, root, columns, cache), address, transform)


def default_features() -> FeaturizeConfig:
    """Return the values of conf/featurize/default.yaml, a file of this package whose lines are a key and JSON."""
    text = resources.files("hlorank.featurize").joinpath("default.yaml").read_text(encoding="utf-8")
    pairs = (line.split(": ", 1) for line in text.splitlines())
    return parse(FeaturizeConfig, {key: json.loads(value) for key, value in pairs})


def processed_store(
    collection: Collection, root: str | Path, columns: Columns = "official", cache: str | Path | None = None
) -> GraphStore:
    """Open the processed store of a collection, which is brought up to date first; arguments and errors as of `load`.

    A call after a kill continues where the killed call stopped. One process writes; others wait for it. While sizes and
    times of all files are as they were, nothing is read again, written or locked, as on a read-only file system.
    """
    if columns not in get_args(Columns):
        raise ConfigError(f"columns={columns!r}: expected one of {', '.join(get_args(Columns))}")
    tree = resolve_path(root)
    try:
        folder, sources = find_files(tree, collection, flat=True)
    except DataError as error:
        fetch = f"`python -m hlorank.stages.fetch collection={collection.path.as_posix()}` or `make repro` writes {RAW}"
        raise DataError(error.key, f"{error.expected}; {fetch}", error.found, file=tree) from None
    place = resolve_path(tree / PROCESSED if cache is None else cache) / collection.path / columns
    stamp = _stamp(sources, tree, columns)
    if not _is_stamped(place, stamp):
        with one_process(place / _LOCK, f"the processing of {folder}"):
            if not _is_stamped(place, stamp):  # by a process that had the lock
                files = _splits(sources, folder, collection, tree / _SPLIT_FILE)
                if columns == "official":
                    store_official(files, collection.kind, place)
                else:
                    featurize_files(files, collection, default_features(), place)
                write_json(place / _STAMP, stamp)
    return GraphStore(place) if columns == "official" else FeatureStore(place)


def _stamp(sources: Iterable[Path], tree: Path, columns: Columns) -> dict[str, str]:
    """Return what a store is made from, without reading the tree, whose path may differ from machine to machine."""
    named = (file for path in sources for file in (path, sidecar_path(path)))
    files = [path for path in (*named, tree / _SPLIT_FILE) if path.is_file()]
    states = [[path.relative_to(tree).as_posix(), (state := path.stat()).st_size, state.st_mtime_ns] for path in files]
    options: dict[str, Any] = {} if columns == "official" else default_features().model_dump(mode="json")
    return {"files": fingerprint(states), "options": fingerprint(options), "code": code_digest(*CODE)}


def _is_stamped(place: Path, stamp: dict[str, str]) -> bool:
    with suppress(DataError):
        return read_json(place / _STAMP) == stamp and (place / INDEX_FILE).is_file()
    return False


def _splits(
    sources: dict[Path, Split], folder: Path, collection: Collection, split_file: Path
) -> dict[Split, list[Path]]:
    """Return the files of each split: that of the tree, or, for files directly in the folder, of the split file."""
    if any(path.parent == folder for path in sources):
        if not split_file.is_file():
            expected = f"the folders {', '.join(SPLITS)}, or folds in {split_file}; `data=local data.local.split_file="
            raise DataError("splits", f"{expected}{split_file}` of the stage fetch writes them", "none", file=folder)
        folds = read_section(SplitFile, split_file, "edit the file").folds
        withheld = {path for path in sources if _is_withheld(path)}
        names = {path: path.stem for path in sources}
        sources = new_splits(names, withheld, collection, split_file, folds, fold=0)
    return {split: sorted(path for path, found in sources.items() if found == split) for split in SPLITS}


def _is_withheld(path: Path) -> bool:
    with NpzFile(path) as file:
        return not file.read("config_runtime").any()
