"""Origin `hlo`: HLO protobufs and HLO text, the dataset's own or a compiler's dumps, converted to npz files."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import track

from hlorank.config import Section
from hlorank.data.collection import SPLITS, Collection, Split, remove_stale
from hlorank.files import DataError, counted, resolve_path
from hlorank.hlo.configurations import NothingToConfigureError
from hlorank.hlo.convert import check_names, convert
from hlorank.hlo.reader import program_files

_log = logging.getLogger(__name__)


class HloConfig(Section):
    """Settings of the origin `hlo`."""

    root: str
    """The folder that holds layout/ or tile/, or the files themselves; a leading $HLORANK_SHARED is the folder of
    shared data."""
    split: Split
    """The split that the programs of a flat folder go to."""
    dump: str
    """The stage that is taken of XLA's dumps: the end of its name, such as before_optimizations."""
    extra: bool
    """Also write the features beyond the 140, to <graph>.extra.npz."""


def fetch(collection: Collection, config: HloConfig, output: Path) -> None:
    """Convert protobufs and HLO text to `<output>/<split>/<graph>.npz`.

    `config.root` is either the dataset's tree, `layout/<source>/<search>/<split>/*.pb` or `tile/<source>/<split>/*.pb`,
    or a flat folder, whose files all go to `config.split`. HLO text may take the place of any protobuf. A re-run
    converts again and removes files without a protobuf. Dumps with nothing to configure are left out with a notice.

    Raises:
        DataError: `config.root` has no protobufs, two protobufs of a split have the same name, a protobuf breaks its
            contract, or no protobuf has anything to configure.
    """
    sources = _find(resolve_path(config.root), collection, config)
    for files in sources.values():
        check_names(files)
    jobs = [(source, split) for split, files in sources.items() for source in files]
    written: set[Path] = set()
    console = Console(stderr=True)
    for source, split in track(jobs, "Converting", console=console, disable=not sys.stderr.isatty()):
        try:
            written.update(convert(source, output / split, collection.kind, extra=config.extra))
        except NothingToConfigureError as error:  # most dumps of a compiler are not the user's program
            _log.warning("left out: %s", error)
    if not written:
        found = f"none in {counted(len(jobs), 'protobuf')}"
        raise DataError("data.hlo.root", "a program to configure", found, file=config.root)
    remove_stale(output, written)
    sizes = counted(len(written), "file"), counted(len(jobs), "protobuf")
    _log.info("%s: %s converted from %s", collection, *sizes)


def _find(root: Path, collection: Collection, config: HloConfig) -> Mapping[Split, list[Path]]:
    """Return the protobufs of each split, in the dataset's tree in `root` or `root`/pb, else directly in `root`."""
    for tree in (root, root / "pb"):
        folders = {name: program_files(tree / collection.path / name, config.dump) for name in SPLITS}
        if any(folders.values()):
            return folders
    if flat := program_files(root, config.dump):
        return {config.split: flat}
    expected = f"*.pb files or HLO text, there or in {collection.path}/<{'|'.join(SPLITS)}>, also in pb/"
    raise DataError("data.hlo.root", expected, "none" if root.is_dir() else "no such folder", file=root)
