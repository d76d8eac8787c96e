"""Markdown of measured graphs and of what was left out, for a data card: `python -m hlorank_collect.card FOLDER`."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hlorank.data.collection import Collection, graph_files, sidecar_path
from hlorank.files import DataError, read_json
from hlorank.terminal import quiet_pipe
from hlorank_collect.left_out import LEFT_OUT, read_left_out

_COLUMNS = {
    "graph": "name",
    "family": "family",
    "nodes": "nodes",
    "configurable": "configurable_nodes",
    "configurations": "measured",
    "rounds": "rounds",
}
_FIGURES = ("max / min", "default / best", "split-half tau", "noise ceiling")


def collected(root: Path) -> Iterator[tuple[Collection, list[Mapping[str, Any]]]]:
    """Yield the collections in the folder of `hlorank collect`, sorted, with the JSON of each graph.

    Raises:
        DataError: a graph has no JSON file.
    """
    patterns = ("layout/*/*/*.npz", "tile/*/*.npz")  # ** would not follow links to folders
    for folder in sorted({path.parent for pattern in patterns for path in root.glob(pattern)}):
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
        graphs: the JSON of each, at least one; of a graph of layouts, also with `configurable_nodes`.
    """
    keys = [key for key in _COLUMNS.values() if key != "configurable_nodes" or key in graphs[0]]
    rows = [[about[key] for key in keys] + _figures(about) for about in graphs]
    medians = [_median(column) for column in list(zip(*rows, strict=True))[len(keys) :]]
    columns = [*(title for title, key in _COLUMNS.items() if key in keys), *_FIGURES]
    return "".join(
        [
            _row(columns),
            _row(["---"] * len(columns)),
            *map(_row, rows),
            _row([f"median of {len(rows)}", *[""] * (len(keys) - 1), *medians]),
        ]
    )


def _left_out(reasons: Mapping[str, str]) -> str:
    lines = "".join(f"- {name}: {reason}\n" for name, reason in sorted(reasons.items()))
    return f"Left out:\n\n{lines}" if lines else ""


def card(root: Path) -> str:
    """Return Markdown with a heading and a table for each collection, and below it what was left out and why.

    Args:
        root: the folder of `hlorank collect`.

    Returns:
        The collections are sorted, without a table where nothing was measured; empty if there are none.

    Raises:
        DataError: a graph has no JSON file, or left_out.json is damaged.
    """
    graphs = {str(collection): found for collection, found in collected(root)}
    reasons = read_left_out(root)
    parts = {
        name: [table(graphs[name]) if name in graphs else "", _left_out(reasons.get(name, {}))]
        for name in sorted(graphs.keys() | reasons.keys())
    }
    return "\n".join(f"### {name}\n\n" + "\n".join(filter(None, texts)) for name, texts in parts.items())


@quiet_pipe()
def main(arguments: Sequence[str] | None = None) -> None:
    """Print the card of each collection; the only argument is the folder of `hlorank collect`."""
    parser = argparse.ArgumentParser(description="Print the measured graphs as Markdown tables, and what was left out.")
    parser.add_argument("folder", type=Path, help="the --out of hlorank collect")
    folder = parser.parse_args(arguments).folder
    try:
        found = card(folder)
    except DataError as error:
        parser.exit(1, f"error: {error}\n")
    if not found:
        parser.exit(1, f"error: {folder}: no npz files of a collection, and no {LEFT_OUT}\n")
    sys.stdout.write(found)


if __name__ == "__main__":
    main()
