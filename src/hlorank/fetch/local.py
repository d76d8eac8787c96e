"""Origin `local`: a user's own npz tree, validated and copied, optionally with new splits, or collections joined."""

from __future__ import annotations

import filecmp
import logging
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from rich.console import Console
from rich.progress import track

from hlorank.config import ConfigError, Section
from hlorank.config.data_sections import Address
from hlorank.data.collection import (
    SPLITS,
    Collection,
    Split,
    graph_files,
    measured_family,
    read_graph,
    remove_stale,
    sidecar_path,
    split_half_tau,
)
from hlorank.data.splits import MIN_FOLDS, family, split_graphs
from hlorank.files import DataError, atomic_path, resolve_path
from hlorank.hlo.extra import extra_path, read_extra

_log = logging.getLogger(__name__)


class LocalConfig(Section):
    """Settings of the origin `local`."""

    root: str
    """The folder that holds layout/ or tile/; a leading $HLORANK_SHARED is the folder of shared data."""
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
    """Copy one collection of a user's tree to `<output>/<split>/`, each file validated first.

    Extra features and the measurement's sidecar next to a graph are copied too. A re-run copies only changed files, and
    removes files that the tree no longer has. With `config.split_file` the graphs get new splits (`split_graphs`) by
    model family, which is in the sidecar or else in the name; those with withheld labels are then all in test. Only
    then may the files have no splits, as `hlorank collect` writes them. The graphs of joined collections are named
    `layout.<source>.<search>.<graph>` or `tile.<source>.<graph>`, so that each is still known by its collection.

    Raises:
        ConfigError: the tree is in the folder that fetch writes, or the other way round; or a collection of tiles is to
            be joined into one of layouts, or the other way round.
        DataError: `config.root` does not have a collection, a file is invalid, a graph with a new split is in two
            splits of the tree, or the split file does not fit the graphs.
        ExceptionGroup: several files are invalid; it has a DataError for each.
    """
    root, target, flat = resolve_path(config.root), output.resolve(), config.split_file is not None
    sources, names = dict[Path, Split](), dict[Path, str]()
    for part, prefix in _parts(collection, config.collections).items():
        folder, files = find_files(root, part, flat=flat)
        if target.is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(target):
            raise ConfigError(
                f"data.local.root={config.root}: expected a folder other than {output}, which fetch writes"
            )
        sources |= files
        names |= {path: prefix + path.stem for path in files}
    withheld = _validate(sources, collection, root)
    if config.split_file is not None:
        split_file = resolve_path(config.split_file)
        sources = new_splits(names, withheld, collection, split_file, config.folds, config.fold)
    copies = {output / split / f"{names[path]}.npz": path for path, split in sources.items()}
    for path_of in (extra_path, sidecar_path):
        copies |= {path_of(copy): file for copy, path in list(copies.items()) if (file := path_of(path)).is_file()}
    filecmp.clear_cache()  # it takes files of the size and time of an earlier comparison for unchanged
    for copy in _progress(copies, "Copying"):
        if not (copy.is_file() and filecmp.cmp(copies[copy], copy, shallow=False)):
            # Not a link: DVC may protect or replace files in its output folders.
            with atomic_path(copy) as temporary:
                shutil.copyfile(copies[copy], temporary)
    remove_stale(output, copies.keys())
    counts = Counter(sources.values())
    _log.info("%s: %s", collection, ", ".join(f"{counts[split]} {split}" for split in SPLITS))


def _parts(collection: Collection, joined: Sequence[str]) -> dict[Collection, str]:
    """Return the collections to read, each with the prefix of its graphs' names; another kind is a ConfigError."""
    parts = [Collection.parse(address) for address in joined]
    if others := [str(part) for part in parts if part.kind != collection.kind]:
        raise ConfigError(
            f"data.local.collections: {', '.join(others)}: expected collections of the kind of {collection}"
        )
    return {part: f"{part.model_name}." for part in parts} or {collection: ""}


def _progress(paths: Iterable[Path], description: str) -> Iterable[Path]:
    return track(paths, description, console=Console(stderr=True), disable=not sys.stderr.isatty())


def find_files(root: Path, collection: Collection, *, flat: bool) -> tuple[Path, dict[Path, Split]]:
    """Return the collection's folder, in `root` or `root`/npz, and its files with their splits in the tree.

    `flat` accepts files that are in no split, directly in the collection's folder; they count as test. No files are a
    DataError.
    """
    for tree in (root, root / "npz"):
        files = {path: split for split in SPLITS for path in graph_files(tree, collection, split)}
        if not files and flat:
            files = dict.fromkeys(graph_files(tree, collection, None), "test")  # until they get splits
        if files:
            return tree / collection.path, files
    patterns = ("layout/*/*", "tile/*", "npz/layout/*/*", "npz/tile/*")
    present = [str(path.relative_to(root)) for pattern in patterns for path in sorted(root.glob(pattern))]
    expected = f"npz files in {collection.path}/<{'|'.join(SPLITS)}>, there or in npz/"
    if flat:
        expected += f", or directly in {collection.path}"
    found = ", ".join(present) or ("no collection" if root.is_dir() else "no such folder")
    raise DataError("root", expected, found, file=root)


def _validate(files: Iterable[Path], collection: Collection, root: Path) -> set[Path]:
    """Read every file and return the files with withheld labels; several invalid files are an ExceptionGroup."""
    withheld, errors = set(), []
    for path in _progress(files, "Validating"):
        try:
            measured = read_graph(path, collection.kind)
            if measured.measurements.withheld:
                withheld.add(path)
            if extra_path(path).is_file():
                read_extra(path, measured.graph.nodes)
            split_half_tau(path)
        except DataError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup(f"invalid files of {collection} in {root}", errors)
    return withheld


def new_splits(
    names: Mapping[Path, str], withheld: Set[Path], collection: Collection, split_file: Path, folds: int, fold: int
) -> dict[Path, Split]:
    """Return the new split of each file by `split_graphs`; files with withheld labels are all in test.

    `names` has the graph of each file. Two files of the same name are refused with DataError.
    """
    repeated = [name for name, count in Counter(names.values()).items() if count > 1]
    if repeated:
        raise DataError(
            "graph names", "each in one split of the tree", ", ".join(repeated), file=next(iter(names)).parents[1]
        )
    labelled = {names[path]: measured_family(path) or family(path.stem) for path in names if path not in withheld}
    splits = split_graphs(collection, labelled, split_file, folds, fold)
    return {path: splits.get(name, "test") for path, name in names.items()}
