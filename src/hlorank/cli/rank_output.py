"""Output of `hlorank rank`: tables, JSON, CSV of layouts, and submissions."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from hlorank.data.collection import Collection, write_graph
from hlorank.files import DataError, counted, escape
from hlorank.terminal import Column, cells, print_table

if TYPE_CHECKING:
    from hlorank.ranking.inputs import InputGraph

_COLUMNS = {
    "rank": Column("rank", number=True, form=","),
    "configuration": Column("configuration", number=True),
    "score": Column("score", 2, number=True, form=".4f"),
    "nodes": Column("nodes\nchanged", 4, number=True, form=","),
    "runtime_ns": Column("runtime (ns)", 3, number=True, form=","),
    "slowdown": Column("slower than\nthe best", 1, number=True, form=".2%"),
    "measured_rank": Column("measured\nrank", 1, number=True, form=","),
}
_CHANGE_COLUMNS = {
    "instruction": Column("instruction"),
    "opcode": Column("opcode", 3),
    "tensor": Column("tensor", 1),
    "shape": Column("shape", 2),
    "before": Column("layout before", 4),
    "after": Column("layout after"),
    "origin": Column("operation and source", 5),
}
_MAX_CHANGES = 20


def print_rankings(graphs: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Print values of `hlorank.ranking.result.ranked_graph` in the form that the arguments ask for."""
    if arguments.json:
        sys.stdout.write(json.dumps(graphs, indent=2, allow_nan=False) + "\n")
    elif arguments.csv != "-":
        for place, ranked in enumerate(graphs):
            sys.stdout.write("\n" if place else "")
            _print_ranking(ranked, arguments.choose, arguments.wide)


def _print_ranking(ranked: dict[str, Any], chosen: int, wide: bool) -> None:
    """Print the first configurations, and the layouts that the configuration of rank `chosen` changes."""
    count, total = len(ranked["top"]), ranked["configurations"]
    sys.stdout.write(f"{escape(ranked['graph'])}: the first {count} of {counted(total, 'configuration')}\n\n")
    print_table([*_COLUMNS.values()], [_cells(row) for row in ranked["top"]], wide)
    sys.stdout.write("".join(f"{line}\n" for line in ["", *_notes(ranked)]))
    if "verified" in ranked:
        _print_moves(ranked, chosen)
    if chosen <= count and "changes" in (row := ranked["top"][chosen - 1]):
        place = f"rank {row['rank']}, configuration {row['configuration']}"
        print_changes(place, row["changes"], "--json", wide)
    sys.stdout.writelines(f"exported: {escape(file)}\n" for file in ranked.get("exported", []))


def _cells(row: dict[str, Any]) -> list[str]:
    nodes = len({change["node"] for change in row["changes"]}) if "changes" in row else None
    return cells(_COLUMNS, row | {"nodes": nodes})


def _notes(ranked: dict[str, Any]) -> Iterator[str]:
    """Return the lines below a table."""
    from hlorank.ranking.result import doubt_text

    if ranked["drawn"]:
        yield "configurations are drawn; 0 is the compiler's default"
    for doubt in ranked["doubts"]:
        yield f"doubt: {doubt_text(doubt)}"
    if ranked["trained_on"]:
        yield f"the model was trained on runtimes {ranked['trained_on']}"
    if "comparison" not in ranked:
        return
    if (metrics := ranked["comparison"]) is None:
        yield "nothing to compare with: the runtimes are withheld, or all equal"
        return
    ceiling = "unknown" if metrics["noise_ceiling"] is None else f"{metrics['noise_ceiling']:.3f}"
    yield f"Kendall tau {metrics['kendall_tau']:.3f} (noise ceiling {ceiling}), OPA {metrics['opa']:.3f}"
    yield f"slowdown of the first {metrics['slowdown_1']:.2%}, of the best of five {metrics['slowdown_5']:.2%}"


def print_changes(place: str, changes: Sequence[dict[str, Any]], complete: str, wide: bool = False) -> None:
    """Print the first layouts that a configuration changes; `complete` names what has all of them."""
    if not changes:
        sys.stdout.write(f"\n{place}: every layout is the compiler's choice\n")
        return
    sys.stdout.write(f"\n{place}: layouts, minor to major\n\n")
    rows = []
    for change in changes[:_MAX_CHANGES]:
        layouts = {"before": _layout(change["before"]) or "the compiler's choice", "after": _layout(change["after"])}
        rows.append(cells(_CHANGE_COLUMNS, change | layouts))
    print_table([*_CHANGE_COLUMNS.values()], rows, wide)
    if (more := len(changes) - _MAX_CHANGES) > 0:
        sys.stdout.write(f"and {more:,} more: {complete}\n")


def _print_moves(ranked: dict[str, Any], chosen: int) -> None:
    """Print what compilation tells, and the copies that the configuration of rank `chosen` adds and removes."""
    for key, what in (("same_as_default", "compile to the default's program"), ("failed", "do not compile")):
        if configurations := ranked["verified"][key]:
            sys.stdout.write(f"left out, as they {what}: {', '.join(map(str, configurations))}\n")
    moves = ranked["top"][chosen - 1]["moves"] if chosen <= len(ranked["top"]) else None
    if moves is None:
        sys.stdout.write(f"rank {chosen} was not compiled: --verify has fewer\n")
        return
    sys.stdout.write(f"rank {chosen}, compiled: {moves['bytes']:+,} bytes of copies and transposes\n")
    for sign, rows in (("+", moves["added"]), ("-", moves["removed"])):
        for row in rows[:_MAX_CHANGES]:
            times = f" x {row['count']}" if row["count"] > 1 else ""
            sys.stdout.write(
                f"  {sign} {row['opcode']} {row['shape']}{times}: {escape(row['origin'] or 'no origin')}\n"
            )


def _layout(dims: Sequence[int] | None) -> str:
    """Return a layout as XLA writes it, such as `{1,0}`; empty where it is the compiler's choice."""
    return "" if dims is None else f"{{{','.join(map(str, dims))}}}"


def write_outputs(
    given: InputGraph, top: Sequence[dict[str, Any]], arguments: argparse.Namespace, collection: str
) -> dict[str, Any]:
    """Write the export and the candidates of a graph, and return what is printed of them."""
    from hlorank.ranking.ranked import export

    shown = dict[str, Any]()
    if arguments.export is not None:
        if (found := len(top)) < arguments.choose:
            raise DataError("--choose", f"at most {found}, the number of configurations", arguments.choose)
        files = export(arguments.export, given, top[arguments.choose - 1], arguments.model, collection)
        shown["exported"] = [*map(str, files)]
    if given.drawn and arguments.save is not None:
        write_graph(arguments.save / f"{given.measured.name}.npz", given.measured)
    return shown


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
