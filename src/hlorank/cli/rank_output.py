"""Output of `hlorank rank`: tables, JSON, CSV of layouts, submissions."""

import argparse
import csv
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hlorank.data.collection import Collection
from hlorank.files import csv_cell, write_text
from hlorank.ranking.output import layout_text, print_ranking

_CSV = [
    *("graph", "rank", "configuration", "score"),
    *("computation", "instruction", "opcode", "node", "tensor", "shape", "before", "after"),
]


def print_rankings(graphs: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Print values of `hlorank.ranking.result.ranked_graph` in the form that the arguments ask for."""
    if arguments.json:
        sys.stdout.write(json.dumps(graphs, indent=2, allow_nan=False) + "\n")
    elif "-" not in (arguments.csv, arguments.changes):
        for place, ranked in enumerate(graphs):
            sys.stdout.write("\n" if place else "")
            print_ranking(ranked, arguments.choose, arguments.wide)
    if arguments.changes == "-":
        sys.stdout.write(_changes(graphs))
    elif arguments.changes is not None:
        write_text(Path(arguments.changes), _changes(graphs))


def _changes(graphs: Sequence[dict[str, Any]]) -> str:
    """Return a row for each layout that a configuration changes, and for a configuration that changes none, as CSV."""
    text = StringIO()
    writer = csv.DictWriter(text, _CSV, extrasaction="ignore")
    writer.writeheader()
    for ranked in graphs:
        for row in ranked["top"]:
            for change in row.get("changes") or [{}]:
                layouts = {key: layout_text(change.get(key)) for key in ("before", "after")}
                cells = {"graph": ranked["graph"], **row, **change, **layouts}
                writer.writerow({key: csv_cell(cell) for key, cell in cells.items()})
    return text.getvalue()


@contextmanager
def submission(target: str | None, collection: Collection) -> Iterator[Callable[[str, NDArray[Any]], None]]:
    """Yield a function that adds a graph's ranking to a submission, which `-` prints; without `target` to none."""
    from hlorank.evaluation.submission import open_submission

    if target is None:
        yield lambda *_: None
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "submission.csv") if target == "-" else Path(target)
        with open_submission(path, collection) as submit:
            yield submit
        if target == "-":
            with path.open(encoding="utf-8") as file:
                shutil.copyfileobj(file, sys.stdout)
