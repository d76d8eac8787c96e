"""Origin `hlo`: HLO protobufs, the dataset's own or a compiler's dumps, converted to npz files."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import track

from hlorank.config import Section
from hlorank.data.collection import SPLITS, Collection, Split
from hlorank.fetch.tree import remove_stale
from hlorank.files import DataError, resolve_path
from hlorank.hlo.configurations import NothingToConfigureError
from hlorank.hlo.convert import check_names, convert
from hlorank.hlo.reader import proto_files

_log = logging.getLogger(__name__)


class HloConfig(Section):
    """Settings of the origin `hlo`."""

    root: str
    """The folder that holds layout/ or tile/, or the files themselves; a leading $HLORANK_SHARED is the folder of
    shared data."""
    split: Split
    """The split that the protobufs of a flat folder go to."""
    extra: bool
    """Also write the features beyond the 140, to <graph>.extra.npz."""


def fetch(collection: Collection, config: HloConfig, output: Path) -> None:
    """Converts protobufs into `<output>/<split>/<graph>.npz`.

    `config.root` holds either the dataset's tree, `layout/<source>/<search>/<split>/*.pb` or
    `tile/<source>/<split>/*.pb`, or a flat folder, whose files all go to `config.split`. A re-run converts again and
    removes files that have no protobuf any more. Dumps with nothing to configure are left out with a notice.

    Raises:
        DataError: no protobufs, two of one name, one that breaks its contract, or nothing to configure in any.
    """
    sources = _find(resolve_path(config.root), collection, config.split)
    for files in sources.values():
        check_names(files)
    jobs = [(source, split) for split, files in sources.items() for source in files]
    written: set[Path] = set()
    console = Console(stderr=True)
    for source, split in track(jobs, "Converting", console=console, disable=not sys.stderr.isatty()):
        try:
            written.update(convert(source, output / split, collection.kind, extra=config.extra))
        except NothingToConfigureError as error:  # as most of what a compiler dumps beside the user's own program
            _log.warning("left out: %s", error)
    if not written:
        raise DataError("data.hlo.root", "a program to configure", f"none in {len(jobs)} protobufs", file=config.root)
    remove_stale(output, written)
    _log.info("%s: %d files converted from %d protobufs", collection, len(written), len(jobs))


def _find(root: Path, collection: Collection, split: Split) -> Mapping[Split, list[Path]]:
    """The protobufs of each split, in the dataset's tree below `root` or `root`/pb, else those right in `root`."""
    for tree in (root, root / "pb"):
        folders = {one: proto_files(tree / collection.path / one) for one in SPLITS}
        if any(folders.values()):
            return folders
    if flat := proto_files(root):
        return {split: flat}
    expected = f"*.pb files, there or in {collection.path}/<{'|'.join(SPLITS)}>, also below pb/"
    raise DataError("data.hlo.root", expected, "none" if root.is_dir() else "no such folder", file=root)
