"""Markdown tables of measured graphs for a data card: `python -m hlorank_collect.card FOLDER`."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hlorank.data.collection import Collection, graph_files, sidecar_path
from hlorank.files import DataError, read_json

_COLUMNS = {
    "graph": "name",
    "family": "family",
    "nodes": "nodes",
    "configurations": "measured",
    "rounds": "rounds",
}
_FIGURES = ("max / min", "default / best", "split-half tau", "noise ceiling")


def collected(root: Path) -> Iterator[tuple[Collection, list[Mapping[str, Any]]]]:
    """Yield the collections in the folder of `hlorank collect`, sorted, with the JSON of each graph.

    Raises:
        DataError: a graph has no JSON file.
    """
    for folder in sorted({path.parent for path in root.glob("*/**/*.npz")}):
        collection = Collection.parse("/".join(folder.relative_to(root).parts))
        yield collection, [read_json(sidecar_path(path)) for path in graph_files(root, collection, None)]


def _figures(about: Mapping[str, Any]) -> list[float | None]:
    runtime = about["runtime_ns"]
    spread, gain = runtime["worst"] / runtime["best"], runtime["default"] / runtime["best"]
    return [spread, gain, about["split_half_tau"], about["noise_ceiling"]]


def _row(cells: Sequence[object]) -> str:
    shown = ("unknown" if cell is None else f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells)
    return f"| {' | '.join(shown)} |\n"


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def table(graphs: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with one row per graph and a last row of medians.

    Args:
        graphs: the JSON of each, at least one.
    """
    rows = [[about[key] for key in _COLUMNS.values()] + _figures(about) for about in graphs]
    medians = [_median(column) for column in list(zip(*rows, strict=True))[len(_COLUMNS) :]]
    columns = [*_COLUMNS, *_FIGURES]
    return "".join(
        [
            _row(columns),
            _row(["---"] * len(columns)),
            *map(_row, rows),
            _row([f"median of {len(rows)}", *[""] * (len(_COLUMNS) - 1), *medians]),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each collection; the only argument is the folder of `hlorank collect`."""
    parser = argparse.ArgumentParser(description="Print the measured graphs as Markdown tables.")
    parser.add_argument("folder", type=Path, help="the --out of hlorank collect")
    folder = parser.parse_args(arguments).folder
    try:
        tables = [(collection, table(graphs)) for collection, graphs in collected(folder)]
    except DataError as error:
        parser.exit(1, f"error: {error}\n")
    if not tables:
        parser.exit(1, f"error: {folder}: no npz files of a collection\n")
    for collection, text in tables:
        sys.stdout.write(f"### {collection}\n\n{text}\n")


if __name__ == "__main__":
    main()
