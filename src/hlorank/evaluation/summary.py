"""Table of all reports: `python -m hlorank.evaluation.summary [reports folder]`."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hlorank.data.collection import SPLITS, Collection
from hlorank.files import METRICS, read_json

_log = logging.getLogger(__name__)

_METRICS = {
    "kendall_tau": "Kendall\ntau",
    "repeat_ceiling": "repeat\nceiling",
    "noise_ceiling": "noise\nceiling",
    "opa": "OPA",
    "slowdown_1": "slowdown\n@1",
    "slowdown_5": "@5",
    "slowdown_10": "@10",
    "slowdown_100": "@100",
    "kaggle": "Kaggle",
}
_WIDTH = 10_000  # wider than any terminal, so that no number is cut


def _reports(folder: Path) -> Iterator[tuple[Collection, str, dict[str, Any]]]:
    for file in sorted(folder.rglob(METRICS)):
        *address, method = file.relative_to(folder).parent.parts or ("",)
        try:
            collection = Collection.parse("/".join(address))
        except ValueError:
            _log.warning("%s: left out, as its folder is not <collection>/<method>", file)
            continue
        yield collection, method, read_json(file)


def _cells(metrics: Mapping[str, Any]) -> Iterator[str]:
    yield str(metrics["graphs"])
    yield ", ".join(f"{metrics[key]} {key}" for key in ("skipped", "withheld") if metrics[key])
    for name in _METRICS:
        value = metrics.get(name)
        if value is not None:
            yield f"{value:.2%}" if name.startswith("slowdown") else f"{value:.3f}"
        else:
            yield "unknown" if name == "noise_ceiling" and metrics["graphs"] else ""


def summary_table(folder: Path) -> Table:
    """Return the metrics of all reports, one row for each collection, method, split and protocol.

    Args:
        folder: contains <collection path>/<method>/metrics.json; other files of that name are ignored with a warning.

    Raises:
        FileNotFoundError: `folder` contains no report.
        DataError: a metrics.json is not a JSON object.
    """
    table = Table("collection", "method", "split", box=SIMPLE_HEAD)
    for name in ("graphs", "left out", *_METRICS.values()):
        table.add_column(name, justify="right", vertical="bottom")
    for collection, method, metrics in _reports(folder):
        for split in (split for split in SPLITS if split in metrics):
            whole = metrics[split]
            table.add_row(str(collection), method, split, *_cells(whole))
            if indexed := whole.get("indexed"):
                table.add_row(str(collection), method, f"{split}, indexed", *_cells(indexed))
    if not table.rows:
        raise FileNotFoundError(f"{folder}: no metrics.json of a report; the stage evaluate writes them (make repro)")
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; the only argument is the folder, `reports` by default."""
    parser = argparse.ArgumentParser(description="Print the metrics of all reports as one table.")
    parser.add_argument("reports", type=Path, nargs="?", default=Path("reports"))
    try:
        table = summary_table(parser.parse_args(arguments).reports)
    except FileNotFoundError as error:
        parser.exit(1, f"{error}\n")
    Console(width=_WIDTH).print(table)


if __name__ == "__main__":
    main()
