"""Files of HLO protobufs as npz files of the official tree."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hlorank.data.collection import Kind, write_graph
from hlorank.files import DataError
from hlorank.hlo.extra import write_extra
from hlorank.hlo.reader import featurize, graph_name, read_records


def check_names(sources: Iterable[Path]) -> None:
    """Raises DataError if two files would give graphs of one name in one folder."""
    seen: dict[str, Path] = {}
    for source in sources:
        other = seen.setdefault(graph_name(source), source)
        if other != source:
            raise DataError("file name", "a graph name of its own", f"that of {other}", file=source)


def convert(source: Path, folder: Path, kind: Kind | None = None, *, extra: bool = False) -> list[Path]:
    """Writes each graph of a protobuf file to `<folder>/<graph>.npz`, one at a time.

    Args:
        source: a file that `read_records` reads.
        folder: where the graphs go; made if it is missing.
        kind: what is to be configured; None = what the runs in the file configure, layouts for a dump.
        extra: also write `<graph>.extra.npz` with the features beyond the 140.

    Returns:
        the files written.

    Raises:
        DataError: names the file and the field that breaks its contract; graphs before it are written.
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
