"""Origin `local`: a user's own npz tree, validated and copied, optionally with new splits, or collections joined."""

import filecmp
import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Set
from functools import partial
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from hlorank.compute import SERIAL, map_graphs
from hlorank.config import ConfigError, Section
from hlorank.config.root import Address
from hlorank.data import collection as official
from hlorank.data.collection import SPLITS, Collection, Kind, Split
from hlorank.data.splits import MIN_FOLDS, family_of, split_graphs
from hlorank.files import DataError, atomic_path, resolve_path

_log = logging.getLogger(__name__)


class LocalConfig(Section):
    """Settings of the origin `local`."""

    root: str
    """The folder that holds layout/ or tile/, or the graphs of the collection itself; a leading $HLORANK_SHARED is the
    folder of shared data."""
    split_file: str | None
    """JSON file of the fold of each model family or graph, written where missing; null keeps the tree's splits."""
    folds: int = Field(ge=MIN_FOLDS)
    """Folds in the split file; model families stay together."""
    fold: int = Field(ge=0)
    """The fold used as valid; the next one is test, the others are train."""
    collections: list[Address]
    """Collections of the tree that are joined into one, on which one model trains; empty = the collection itself."""

    @model_validator(mode="after")
    def _check_fold(self) -> Self:
        return self.require(self.fold < self.folds, "fold", f"a number below folds={self.folds}")


def fetch(collection: Collection, config: LocalConfig, output: Path) -> None:
    """Copy one collection of a user's tree to `<output>/<split>/`, after a check of all files.

    The measurement's sidecar next to a graph is copied too. A re-run copies only changed files, and removes files that
    the tree no longer has. With `config.split_file` the graphs get new splits (`split_graphs`) by model family, which
    is in the sidecar or else in the name. Only then may the files have no splits, as `hlorank collect` writes them. The
    graphs of joined collections are named `layout.<source>.<search>.<graph>` or `tile.<source>.<graph>`. Several
    invalid files are an ExceptionGroup of a DataError for each.
    """
    root, target, flat = resolve_path(config.root), output.resolve(), config.split_file is not None
    sources, names = dict[Path, Split](), dict[Path, str]()
    joined = [Collection.parse(address) for address in config.collections]
    for part in joined or [collection]:
        if part.kind != collection.kind:
            expected = f"collections of the kind of {collection}"
            raise ConfigError(f"data.local.collections: {part}: expected {expected}")
        folder, files = find_files(root, part, flat=flat)
        if target.is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(target):
            expected = f"a folder other than {output}, which fetch writes"
            raise ConfigError(f"data.local.root={config.root}: expected {expected}")
        sources |= files
        names |= {path: f"{part.model_name}.{path.stem}" if joined else path.stem for path in files}
    checked = map_graphs(partial(_withheld, collection.kind), [*sources], SERIAL, "validate")
    withheld = {path for path in checked if path}
    if config.split_file is not None:
        split_file = resolve_path(config.split_file)
        sources = new_splits(names, withheld, collection, split_file, config.folds, config.fold)
    copies = {output / split / f"{names[path]}.npz": path for path, split in sources.items()}
    sidecar = official.sidecar_path
    copies |= {sidecar(copy): file for copy, path in copies.items() if (file := sidecar(path)).is_file()}
    filecmp.clear_cache()  # it takes files of the size and time of an earlier comparison for unchanged
    for copy, path in copies.items():
        if not (copy.is_file() and filecmp.cmp(path, copy, shallow=False)):
            # Not a link: DVC may protect or replace files in its output folders.
            with atomic_path(copy) as temporary:
                shutil.copyfile(path, temporary)
    official.remove_stale(output, copies.keys())
    counts = Counter(sources.values())
    _log.info("%s: %s", collection, ", ".join(f"{counts[split]} {split}" for split in SPLITS))


def find_files(root: Path, collection: Collection, *, flat: bool) -> tuple[Path, dict[Path, Split]]:
    """Return the collection's folder, in `root` or `root`/npz or `root` itself, and its files with their splits.

    `flat` accepts files directly in the collection's folder, which count as test. No files are a DataError.
    """
    for folder in (root / collection.path, root / "npz" / collection.path, root):
        files = {path: split for split in SPLITS for path in official.npz_files(folder / split)}
        if not files and flat:
            files = dict.fromkeys(official.npz_files(folder), "test")  # until they get splits
        if files:
            return folder, files
    patterns = ("layout/*/*", "tile/*", "npz/layout/*/*", "npz/tile/*")
    present = [str(path.relative_to(root)) for pattern in patterns for path in sorted(root.glob(pattern))]
    expected = f"npz files in {collection.path}/<{'|'.join(SPLITS)}>, there, in npz/, or without these folders"
    found = ", ".join(present) or ("no collection" if root.is_dir() else "no such folder")
    raise DataError("root", expected, found, file=root)


def _withheld(kind: Kind, path: Path) -> Path | None:
    """Validate a file and its sidecar; return it if its labels are withheld."""
    measured = official.read_graph(path, kind)
    official.split_half_tau(path)
    return path if measured.measurements.withheld else None


def new_splits(
    names: Mapping[Path, str], withheld: Set[Path], collection: Collection, split_file: Path, folds: int, fold: int
) -> dict[Path, Split]:
    """Return the new split of each file by the graph in it (`split_graphs`); withheld labels are all in test."""
    if repeated := [name for name, count in Counter(names.values()).items() if count > 1]:
        folder = next(iter(names)).parents[1]
        raise DataError("graph names", "each in one split of the tree", ", ".join(repeated), file=folder)
    labelled = {names[path]: family_of(path) for path in names if path not in withheld}
    splits = split_graphs(collection, labelled, split_file, folds, fold)
    return {path: splits.get(name, "test") for path, name in names.items()}
