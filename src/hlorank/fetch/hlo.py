"""Origin `hlo`: programs as protobufs or HLO text, the dataset's own or a compiler's dumps, converted to npz files."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from hlorank.compute import SERIAL, map_graphs
from hlorank.config import Section
from hlorank.data.collection import SPLITS, Collection, Kind, Split, remove_stale, write_graph
from hlorank.files import DataError, counted, resolve_path
from hlorank.hlo.configurations import NothingToConfigureError
from hlorank.hlo.reader import contents, featurize, graph_name, program_files, read_records

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


def check_names(sources: Iterable[Path]) -> None:
    """Raise DataError if two files give graphs of the same name."""
    seen: dict[str, Path] = {}
    for source in sources:
        other = seen.setdefault(graph_name(source), source)
        if other != source:
            raise DataError("file name", "a graph name of its own", f"that of {other}", file=source)


def convert(source: Path, folder: Path, kind: Kind | None = None) -> list[Path]:
    """Write each graph of a file to `<folder>/<graph>.npz`, by default as the kind of its runs; return the files."""
    written: list[Path] = []
    for record in read_records(source):
        path = folder / f"{record.name}.npz"
        if path in written:
            raise DataError(f"{record.place}fingerprint", "one of its own", "a repeated one", file=source)
        write_graph(path, featurize(record, kind)[0])
        written.append(path)
    return written


def fetch(collection: Collection, config: HloConfig, output: Path) -> None:
    """Convert protobufs and HLO text to `<output>/<split>/<graph>.npz`.

    `config.root` is either the dataset's tree, `layout/<source>/<search>/<split>/*.pb` or `tile/<source>/<split>/*.pb`,
    or a flat folder, whose files all go to `config.split`. HLO text may take the place of any protobuf. A re-run
    converts again and removes files without a protobuf. Dumps with nothing to configure are left out with a notice.
    """
    sources = _find(resolve_path(config.root), collection, config)
    for files in sources.values():
        check_names(files)
    jobs = [(source, output / split) for split, files in sources.items() for source in files]

    def converted(job: tuple[Path, Path]) -> list[Path]:
        try:
            return convert(*job, collection.kind)
        except NothingToConfigureError as error:  # most dumps of a compiler are not the user's program
            _log.warning("left out: %s", error)
            return []

    written = {path for paths in map_graphs(converted, jobs, SERIAL, "convert") for path in paths}
    if not written:
        found = f"none in {counted(len(jobs), 'protobuf')}"
        raise DataError("data.hlo.root", "a program to configure", found, file=config.root)
    remove_stale(output, written)
    _log.info("%s: %s from %s", collection, counted(len(written), "converted file"), counted(len(jobs), "protobuf"))


def _find(root: Path, collection: Collection, config: HloConfig) -> Mapping[Split, list[Path]]:
    """Return the protobufs of each split, in the dataset's tree in `root` or `root`/pb, else directly in `root`."""
    for tree in (root, root / "pb"):
        folders = {name: program_files(tree / collection.path / name, config.dump) for name in SPLITS}
        if any(folders.values()):
            return folders
    if flat := program_files(root, config.dump):
        return {config.split: flat}
    expected = f"*.pb files or HLO text, there or in {collection.path}/<{'|'.join(SPLITS)}>, also in pb/"
    raise DataError("data.hlo.root", expected, contents(root) if root.is_dir() else "no such folder", file=root)
