"""Tables of measured graphs for a data card: `python -m scripts.card FOLDER`, the --out of `hlorank collect`."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hlorank.data.collection import Collection, graph_files, sidecar_path
from hlorank.data.manifest import manifest_of
from hlorank.files import DataError, read_json
from hlorank.terminal import quiet_pipe
from hlorank_collect.record import LEFT_OUT, read_left_out

_TITLES = ("graph", "family", "nodes", "configurable", "configurations", "rounds")
_KEYS = {"graph": "name", "configurable": "configurable_nodes", "configurations": "measured"}


def _collected(root: Path) -> Iterator[tuple[Collection, list[Mapping[str, Any]]]]:
    """Yield the collections in the folder of `hlorank collect`, sorted, with the JSON of each graph."""
    patterns = ("layout/*/*/*.npz", "tile/*/*.npz")  # ** would not follow links to folders
    for folder in sorted({path.parent for pattern in patterns for path in root.glob(pattern)}):
        collection = Collection.parse("/".join(folder.relative_to(root).parts))
        yield collection, [read_json(sidecar_path(path)) for path in graph_files(root, collection, None)]


def _figures(about: Mapping[str, Any]) -> dict[str, float | None]:
    runtime = about["runtime_ns"]
    found = {"max / min": runtime["worst"] / runtime["best"], "default / best": runtime["default"] / runtime["best"]}
    if about.get("runtimes") == "estimated":  # without noise
        return found
    return found | {"split-half tau": about["split_half_tau"], "noise ceiling": about["noise_ceiling"]}


def _row(cells: Iterable[object]) -> str:
    shown = (cell if isinstance(cell, str | int) else f"{cell:.2f}".replace("nan", "unknown") for cell in cells)
    return f"| {' | '.join(map(str, shown))} |\n"


def _table(graphs: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with one row per graph, at least one, of estimates per family, and a last row of medians."""
    import pandas as pd

    titles, figures = {title: _KEYS.get(title, title) for title in _TITLES}, [*_figures(graphs[0])]
    facts = ({title: about[key] for title, key in titles.items() if key in graphs[0]} for about in graphs)
    rows = pd.DataFrame([{**fact, **_figures(about)} for fact, about in zip(facts, graphs, strict=True)])
    rows[figures] = rows[figures].astype(float)
    last = [f"median of {len(graphs)}", *rows[figures].median()]
    if len(figures) == 2:
        rows = rows.groupby("family").agg({"graph": "count", **dict.fromkeys(figures, "median")}).reset_index()
        rows = rows.rename(columns={"graph": "graphs"})
    last[1:1] = [""] * (len(rows.columns) - len(last))
    return "".join(map(_row, [[*rows.columns], ["---"] * len(rows.columns), *rows.itertuples(index=False), last]))


def card(root: Path) -> str:
    """Return Markdown with a table for each collection of a folder, and below it what was left out and why."""
    tables = {}
    for collection, graphs in _collected(root):
        manifest = manifest_of(collection, graph_files(root, collection, None))
        tables[str(collection)] = (f"Runtimes {manifest}.\n\n" if manifest else "") + _table(graphs)
    reasons = read_left_out(root)
    parts = []
    for name in sorted(tables.keys() | reasons.keys()):
        lines = "".join(f"- {program}: {reason}\n" for program, reason in sorted(reasons.get(name, {}).items()))
        texts = [tables.get(name, ""), f"Left out:\n\n{lines}" if lines else ""]
        parts.append(f"### {name}\n\n" + "\n".join(filter(None, texts)))
    return "\n".join(parts)


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
