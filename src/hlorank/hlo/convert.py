"""Conversion of HLO modules to npz files of the official tree."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hlorank.data.collection import Kind, write_graph
from hlorank.files import DataError
from hlorank.hlo.extra import write_extra
from hlorank.hlo.reader import featurize, graph_name, read_records


def check_names(sources: Iterable[Path]) -> None:
    """Check that files give graphs of different names.

    Raises:
        DataError: two of `sources` give graphs of the same name.
    """
    seen: dict[str, Path] = {}
    for source in sources:
        other = seen.setdefault(graph_name(source), source)
        if other != source:
            raise DataError("file name", "a graph name of its own", f"that of {other}", file=source)


def convert(source: Path, folder: Path, kind: Kind | None = None, *, extra: bool = False) -> list[Path]:
    """Write each graph of a file to `<folder>/<graph>.npz`, one at a time.

    Args:
        source: a file that `read_records` reads.
        folder: folder of the npz files; created if it is missing.
        kind: kind of the configurations; None = that of the runs in the file, layouts for a dump.
        extra: also write `<graph>.extra.npz` with the features beyond the 140.

    Returns:
        The files written.

    Raises:
        DataError: a field of the file is wrong, or two records have the same fingerprint; earlier graphs of the file
            are written.
    """
    written: list[Path] = []
    for record in read_records(source):
        path = folder / f"{record.name}.npz"
        if path in written:
            raise DataError(f"{record.place}fingerprint", "one of its own", "a repeated one", file=source)
        graph, program = featurize(record, kind)
        write_graph(path, graph)
        written.append(path)
        if extra:
            written.append(write_extra(path, program))
    return written
