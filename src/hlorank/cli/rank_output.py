"""Output of `hlorank rank`: tables, JSON, CSV of layouts, submissions, exports and warnings."""

import argparse
import csv
import json
import logging
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
from hlorank.data.configurations import LayoutConfigurations
from hlorank.files import DataError, counted, csv_cell, escape, write_atomic, write_json, write_text
from hlorank.hlo.forms import hlo_text
from hlorank.hlo.layout_json import apply, to_configuration
from hlorank.hlo.reader import DUMPS
from hlorank.hlo.stage import TRAINED, backend_of, named_stage
from hlorank.hlo.xla_process import INSTALL, has_jaxlib
from hlorank.ranking.inputs import InputGraph
from hlorank.terminal import Column, cells, print_table
from hlorank.version import __version__

_OTHER_STAGE = (
    "%s: a module of the stage %s; the model was trained on modules of the stage %s, so that the ranking means nothing "
    "for the program; XLA dumps the right module with --xla_dump_hlo_pass_re=layout-assignment%s"
)
_OTHER_BACKEND = "%s: dumped by XLA for a %s; the model is of %s, so that the ranking means nothing for the program"
_COMPILED = "%s: compiled for the %s up to layout assignment, as the model was trained on modules of the stage %s%s"
_NO_STAGE = f"; if it is of this stage already, rank it with --dump {DUMPS[0]}"
_UNKNOWN_STAGE = "%s: taken as a module of the stage %s, as nothing says that it is not; it was not compiled: %s"
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
}
_MAX_CHANGES = 20
_CSV = [
    *("graph", "rank", "configuration", "score"),
    *("computation", "instruction", "opcode", "node", "tensor", "shape", "before", "after"),
]

_log = logging.getLogger(__name__)


def print_rankings(graphs: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Print values of `hlorank.ranking.result.ranked_graph` in the form that the arguments ask for."""
    if arguments.json:
        sys.stdout.write(json.dumps(graphs, indent=2, allow_nan=False) + "\n")
    elif "-" not in (arguments.csv, arguments.changes):
        for place, ranked in enumerate(graphs):
            sys.stdout.write("\n" if place else "")
            _print_ranking(ranked, arguments.choose, arguments.wide)
    if arguments.changes == "-":
        sys.stdout.write(_changes(graphs))
    elif arguments.changes is not None:
        write_text(Path(arguments.changes), _changes(graphs))


def _print_ranking(ranked: dict[str, Any], chosen: int, wide: bool) -> None:
    """Print the first configurations, and the layouts that the configuration of rank `chosen` changes."""
    count, total = len(ranked["top"]), ranked["configurations"]
    sys.stdout.write(f"{escape(ranked['graph'])}: the first {count} of {counted(total, 'configuration')}\n\n")
    print_table([*_COLUMNS.values()], [_cells(row) for row in ranked["top"]], wide)
    sys.stdout.write("".join(f"{line}\n" for line in ["", *_notes(ranked)]))
    if chosen <= count and "changes" in (row := ranked["top"][chosen - 1]):
        _print_changes(row, wide)
    sys.stdout.writelines(f"exported: {escape(file)}\n" for file in ranked.get("exported", []))


def _cells(row: dict[str, Any]) -> list[str]:
    nodes = len({change["node"] for change in row["changes"]}) if "changes" in row else None
    return cells(_COLUMNS, row | {"nodes": nodes})


def _notes(ranked: dict[str, Any]) -> Iterator[str]:
    """Return the lines below a table."""
    if ranked["drawn"]:
        yield "configurations are drawn; 0 is the compiler's default"
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


def _print_changes(row: dict[str, Any], wide: bool) -> None:
    changes = row["changes"]
    place = f"rank {row['rank']}, configuration {row['configuration']}"
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
        sys.stdout.write(f"and {more:,} more: --changes FILE or --json\n")


def _layout(dims: Sequence[int] | None) -> str:
    """Return a layout as XLA writes it, such as `{1,0}`; empty where it is the compiler's choice."""
    return "" if dims is None else f"{{{','.join(map(str, dims))}}}"


def _changes(graphs: Sequence[dict[str, Any]]) -> str:
    """Return a row for each layout that a configuration changes, and for a configuration that changes none, as CSV."""
    text = StringIO()
    writer = csv.DictWriter(text, _CSV, extrasaction="ignore")
    writer.writeheader()
    for ranked in graphs:
        for row in ranked["top"]:
            for change in row.get("changes") or [{}]:
                layouts = {key: _layout(change.get(key)) for key in ("before", "after")}
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


def export(folder: Path, given: InputGraph, row: dict[str, Any], model: str, collection: str) -> list[Path]:
    """Write an entry of `top` to `<folder>/<graph>.json`, `.hlo.pb` and, with jaxlib, `.hlo.txt`; return the files."""
    configurations = given.measured.configurations
    if given.module is None or not given.drawn or not isinstance(configurations, LayoutConfigurations):
        expected = "a program, for which candidates are drawn"
        raise DataError("--export", expected, "measured configurations", file=given.file)
    (layouts,) = configurations.values(slice(row["configuration"], row["configuration"] + 1))
    about = {"hlorank": __version__, "model": model, "collection": collection}
    configuration = to_configuration(given.module, layouts, about | {key: row[key] for key in ("rank", "score")})
    module = apply(given.module, configuration).SerializeToString()
    name = given.measured.name
    json_file, protobuf, text = (folder / f"{name}{suffix}" for suffix in (".json", ".hlo.pb", ".hlo.txt"))
    write_json(json_file, configuration.model_dump(mode="json"))
    write_atomic(protobuf, lambda file: file.write(module))
    if not has_jaxlib():
        _log.warning("%s: not written: HLO text needs jaxlib: %s", text, INSTALL)
        return [json_file, protobuf]
    write_text(text, hlo_text(module))
    return [json_file, protobuf, text]


def warn_of_stages(graphs: Sequence[dict[str, Any]], collection: str) -> bool:
    """Warn of modules that were compiled or may be of another stage; return True if any is of another.

    A module of another backend than the model's collection counts as of another stage.
    """
    staged = [(ranked["file"], ranked["stage"]) for ranked in graphs if ranked["stage"] is not None]
    for file, stage in staged:
        if stage["other_backend"] is not None:
            _log.warning(_OTHER_BACKEND, file, stage["other_backend"], collection)
        if stage["compiled"]:
            remedy = _NO_STAGE if named_stage(Path(file)) is None else ""
            _log.warning(_COMPILED, file, backend_of(collection), TRAINED, remedy)
        elif stage["found"] != TRAINED:
            reason = f"; not compiled: {stage['not_compiled']}" if stage["not_compiled"] else ""
            _log.warning(_OTHER_STAGE, file, stage["found"], TRAINED, reason)
        elif stage["not_compiled"]:
            _log.warning(_UNKNOWN_STAGE, file, TRAINED, stage["not_compiled"])
    return any(stage["found"] != TRAINED or stage["other_backend"] is not None for _, stage in staged)
