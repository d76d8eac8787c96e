"""Submission file of the Kaggle competition "Google - Fast or Slow?": rankings of graphs with withheld labels.

`python -m hlorank.evaluation.submission MERGED FILE...` merges the files of several collections.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hlorank.data.collection import Collection
from hlorank.files import DataError, atomic_path

HEADER = "ID,TopConfigs"
TILE_TOP = 5

_INDICES = re.compile(r"[0-9]{1,18}(;[0-9]{1,18})*")  # of at most 18 digits, which int64 holds
_UNSAFE = re.compile(r'[,"\s]')
_SHOWN = 60


def _line(row_id: str, indices: NDArray[np.int64]) -> str:
    return f"{row_id},{';'.join(map(str, indices.tolist()))}\n"


@contextmanager
def open_submission(path: Path, collection: Collection) -> Iterator[Callable[[str, NDArray[np.int64]], None]]:
    """Open a submission file, which is checked and replaces `path` when the block succeeds.

    No row is held in memory. A file without graphs has a header only.

    Args:
        path: the file.
        collection: the collection of all its graphs.

    Yields:
        A function that adds one graph, given its name and its ranking, (configurations,) int64; a tile row keeps the
        first 5.

    Raises:
        DataError: a graph's name contains a comma, a quote or a blank or was added before, or the file does not pass
            `check_submission`.
    """
    expected: dict[str, int] = {}
    with atomic_path(path) as temporary:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(f"{HEADER}\n")

            def add(graph: str, ranking: NDArray[np.int64]) -> None:
                row_id = f"{collection}:{graph}"
                if _UNSAFE.search(row_id):
                    raise DataError("graph", "a name without commas, quotes and blanks", repr(graph))
                if row_id in expected:
                    raise DataError("graph", "a name that was not added before", f"{graph!r} again")
                file.write(_line(row_id, ranking[:TILE_TOP] if collection.kind == "tile" else ranking))
                expected[row_id] = len(ranking)

            yield add
        check_submission(temporary, expected)


def read_submission(path: Path) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Read a submission row by row, with the checks that need no graphs.

    Yields:
        ID and configuration indices, int64: for layouts all of 0..n-1 once, for tiles up to five different ones.

    Raises:
        DataError: the header or the form of a row is wrong, or an ID or an index is repeated.
    """
    seen: set[str] = set()
    with path.open(encoding="utf-8", errors="replace") as file:
        if (header := file.readline().rstrip("\n")) != HEADER:
            raise DataError("line 1", f"the header {HEADER}", repr(header[:_SHOWN]), file=path)
        for number, line in enumerate(file, start=2):
            row_id, _, text = line.rstrip("\n").partition(",")
            kind = row_id.partition(":")[0]
            if kind not in ("layout", "tile") or not _INDICES.fullmatch(text):
                expected = "layout:<source>:<search>:<graph> or tile:<source>:<graph>, then indices as in ,3;0;1"
                raise DataError(f"line {number}", expected, repr(line.rstrip("\n")[:_SHOWN]), file=path)
            if row_id in seen:
                raise DataError(f"line {number}", "each ID once", f"{row_id} again", file=path)
            seen.add(row_id)
            indices = np.array([int(index) for index in text.split(";")], dtype=np.int64)
            if kind == "layout" and not np.array_equal(np.sort(indices), np.arange(len(indices))):
                raise DataError(row_id, f"each of 0..{len(indices) - 1} once", text[:_SHOWN], file=path)
            if kind == "tile" and (len(np.unique(indices)) != len(indices) or len(indices) > TILE_TOP):
                raise DataError(row_id, f"at most {TILE_TOP} different indices", text[:_SHOWN], file=path)
            yield row_id, indices


def check_submission(path: Path, expected: Mapping[str, int]) -> None:
    """Check a submission row by row against the graphs that it must rank.

    Args:
        path: the file, of one collection or merged from several.
        expected: ID -> number of configurations of that graph.

    Raises:
        DataError: `read_submission` refuses the file, an ID is unknown or missing, or a row does not have all
            configurations (layout) or five of them, all if there are fewer (tile).
    """
    found = set()
    for row_id, indices in read_submission(path):
        if row_id not in expected:
            raise DataError("ID", "only graphs whose labels are withheld", row_id, file=path)
        count = expected[row_id]
        wanted = min(TILE_TOP, count) if row_id.startswith("tile:") else count
        if len(indices) != wanted:
            raise DataError(row_id, f"{wanted} of {count} configurations", f"{len(indices)} indices", file=path)
        if int(indices.max()) >= count:
            raise DataError(row_id, f"indices below {count}", int(indices.max()), file=path)
        found.add(row_id)
    if missing := sorted(expected.keys() - found):
        raise DataError("ID", f"{len(expected)} rows", f"no row for {', '.join(missing[:5])}", file=path)


def merge_submissions(files: Sequence[Path], output: Path) -> int:
    """Merge the submissions of several collections into one file, in one step.

    Args:
        files: the files, in the order of their rows in the output.
        output: the merged file.

    Returns:
        The number of rows.

    Raises:
        DataError: `read_submission` refuses a file, or two files have the same ID.
    """
    origin: dict[str, Path] = {}
    with atomic_path(output) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as merged:
        merged.write(f"{HEADER}\n")
        for file in files:
            for row_id, indices in read_submission(file):
                if row_id in origin:
                    raise DataError(row_id, "each ID in one file", f"one in {origin[row_id]} too", file=file)
                origin[row_id] = file
                merged.write(_line(row_id, indices))
    return len(origin)


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge submission files: `MERGED FILE...`."""
    parser = argparse.ArgumentParser(
        prog="python -m hlorank.evaluation.submission",
        description="Merge the submission files of several collections.",
    )
    parser.add_argument("merged", type=Path, help="the file to write")
    parser.add_argument("files", type=Path, nargs="+", help="reports/<collection>/<method>/submission.csv, ...")
    options = parser.parse_args(arguments)
    rows = merge_submissions(options.files, options.merged)
    print(f"{options.merged}: {rows} rows")  # noqa: T201 - the result of a command


if __name__ == "__main__":
    main()
