"""Rankings of `hlorank rank` as tables, and the layouts that they change as CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from hlorank.files import counted, escape
from hlorank.terminal import Column, print_table

_COLUMNS = (
    Column("rank", number=True),
    Column("configuration", number=True),
    Column("score", 2, number=True),
    Column("nodes\nchanged", 4, number=True),
    Column("runtime (ns)", 3, number=True),
    Column("slower than\nthe best", 1, number=True),
    Column("measured\nrank", 1, number=True),
)
_CHANGE_COLUMNS = (
    Column("instruction"),
    Column("opcode", 3),
    Column("tensor", 1),
    Column("shape", 2),
    Column("layout before", 4),
    Column("layout after"),
)
_MAX_CHANGES = 20
_CSV = ("graph", "rank", "configuration", "score")
_CSV_CHANGE = ("computation", "instruction", "opcode", "node", "tensor", "shape", "before", "after")


def print_ranking(ranked: dict[str, Any], chosen: int, wide: bool) -> None:
    """Print a ranking: its first configurations, and the layouts that one of them changes.

    Args:
        ranked: a value of `hlorank.ranking.result.ranked_input`.
        chosen: rank of the configuration whose layouts are printed, from 1.
        wide: print all columns.
    """
    count, total = len(ranked["top"]), ranked["configurations"]
    sys.stdout.write(f"{escape(ranked['graph'])}: the first {count} of {counted(total, 'configuration')}\n\n")
    print_table(_COLUMNS, [[*_cells(row)] for row in ranked["top"]], wide)
    sys.stdout.write("".join(f"{line}\n" for line in ["", *_notes(ranked)]))
    if chosen <= count and "changes" in (row := ranked["top"][chosen - 1]):
        _print_changes(row, wide)
    sys.stdout.writelines(f"exported: {escape(file)}\n" for file in ranked.get("exported", []))


def _cells(row: dict[str, Any]) -> Iterator[str]:
    """Return a cell for each of `_COLUMNS`."""
    yield f"{row['rank']:,}"
    yield str(row["configuration"])
    yield f"{row['score']:.4f}"
    yield f"{len({change['node'] for change in row['changes']}):,}" if "changes" in row else ""
    if "runtime_ns" in row:
        yield from (f"{row['runtime_ns']:,}", f"{row['slowdown']:.2%}", f"{row['measured_rank']:,}")
    else:
        yield from [""] * 3


def _notes(ranked: dict[str, Any]) -> Iterator[str]:
    """Return the lines below a table."""
    if ranked["drawn"]:
        yield "configurations are drawn; 0 is the compiler's default"
    if "comparison" not in ranked:
        return
    if (metrics := ranked["comparison"]) is None:
        yield "nothing to compare with: the runtimes are withheld, or all equal"
        return
    ceiling = "unknown" if metrics["noise_ceiling"] is None else f"{metrics['noise_ceiling']:.3f}"
    yield f"Kendall tau {metrics['kendall_tau']:.3f} (noise ceiling {ceiling}), OPA {metrics['opa']:.3f}"
    yield f"slowdown of the first {metrics['slowdown_1']:.2%}, of the best of five {metrics['slowdown_5']:.2%}"


def _print_changes(row: dict[str, Any], wide: bool) -> None:
    changes = row["changes"]
    place = f"rank {row['rank']}, configuration {row['configuration']}"
    if not changes:
        sys.stdout.write(f"\n{place}: every layout is the compiler's choice\n")
        return
    sys.stdout.write(f"\n{place}: layouts, minor to major\n\n")
    cells = [
        [
            *(change[key] for key in ("instruction", "opcode", "tensor", "shape")),
            _layout(change["before"]) or "the compiler's choice",
            _layout(change["after"]),
        ]
        for change in changes[:_MAX_CHANGES]
    ]
    print_table(_CHANGE_COLUMNS, cells, wide)
    if (more := len(changes) - _MAX_CHANGES) > 0:
        sys.stdout.write(f"and {more:,} more: --changes FILE or --json\n")


def _layout(dims: Sequence[int] | None) -> str:
    """Return a layout as XLA writes it, such as `{1,0}`; empty where it is the compiler's choice."""
    return "" if dims is None else f"{{{','.join(map(str, dims))}}}"


def write_changes(file: TextIO, graphs: Sequence[dict[str, Any]]) -> None:
    """Write the layouts that the first configurations of rankings change, as CSV.

    A configuration has a row for each layout; one that leaves all to the compiler, and one of a file without a module,
    has a row without a layout.
    """
    writer = csv.writer(file)
    writer.writerow((*_CSV, *_CSV_CHANGE))
    for ranked in graphs:
        for row in ranked["top"]:
            own = [ranked["graph"], row["rank"], row["configuration"], row["score"]]
            for change in row.get("changes") or [None]:
                if change is None:
                    writer.writerow(own + [""] * len(_CSV_CHANGE))
                else:
                    shown = change | {key: _layout(change[key]) for key in ("before", "after")}
                    writer.writerow(own + [shown[key] for key in _CSV_CHANGE])
