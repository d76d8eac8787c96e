"""Rankings for readers: tables, HTML, exported configurations and warnings; a ranking as an object."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from html import escape as escape_html
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hlorank.data.configurations import LayoutConfigurations
from hlorank.files import DataError, counted, escape, write_atomic, write_json, write_text
from hlorank.hlo.forms import hlo_text
from hlorank.hlo.layout_json import apply, to_configuration
from hlorank.hlo.reader import DUMPS
from hlorank.hlo.stage import TRAINED, backend_of, named_stage
from hlorank.hlo.xla_process import INSTALL, has_jaxlib
from hlorank.ranking.inputs import GraphReader, InputGraph
from hlorank.terminal import Column, cells, print_table
from hlorank.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from hlorank.data.graph import Int64
    from hlorank.ranking.ranker import Ranker

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

MAX_CONFIGURATIONS = 1_000_000
"""Default limit of configurations of a graph."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """Ranking of the configurations of a program, the fastest first: prints as a table, in a notebook too.

    Attributes:
        values: the JSON values of `hlorank rank --json`.
        given: the graph that was ranked, with all its configurations.
        model: name or folder of the ranker.
        collection: the collection that it was trained on.
    """

    values: dict[str, Any]
    given: InputGraph
    model: str
    collection: str

    @property
    def table(self) -> pd.DataFrame:
        """A row for each of the first configurations: rank, configuration (its index) and score."""
        import pandas as pd

        return pd.DataFrame(
            [{key: row[key] for key in ("rank", "configuration", "score")} for row in self.values["top"]]
        )

    @property
    def changes(self) -> pd.DataFrame:
        """The layouts that the first configuration does not leave to the compiler; none for an npz file."""
        import pandas as pd

        rows = self.values["top"][0].get("changes", [])
        layouts = [{key: layout_text(row[key]) for key in ("before", "after")} for row in rows]
        return pd.DataFrame([row | shown for row, shown in zip(rows, layouts, strict=True)], columns=[*_CHANGE_COLUMNS])

    def export(self, folder: str | Path, rank: int = 1) -> list[Path]:
        """Write the configuration of a rank, as `hlorank rank --export` does, and return the files.

        Raises:
            DataError: there is no such rank in `table`, or configurations were not drawn for a program.
        """
        top = self.values["top"]
        if not 1 <= rank <= len(top):
            raise DataError("rank", f"a rank of the table, 1 to {len(top)}", rank)
        return export(Path(folder), self.given, top[rank - 1], self.model, self.collection)

    def __repr__(self) -> str:
        with redirect_stdout(TextIOWrapper(BytesIO(), "utf-8")) as text:
            print_ranking(self.values)
        text.seek(0)
        return f"{text.read()}ranked by {escape(self.model)}, trained on {self.collection}"

    def _repr_html_(self) -> str:
        first, table = f"{self.values['graph']}, ranked by {self.model}", self.table.to_html(index=False)
        return f"<p>{escape_html(first)}</p>{table}{self.changes.to_html(index=False) if len(self.changes) else ''}"


def rank_file(path: Path, ranker: Ranker, model: str, top: int, candidates: int, seed: int) -> Ranking:
    """Rank the configurations of the one graph of a file, with a warning where the ranking means nothing for it."""
    reader = GraphReader(ranker.spec.features, MAX_CONFIGURATIONS, candidates, seed, compile_dumps=True)
    given, *others = reader.read(path)
    if others:
        raise DataError("file", "one program", counted(len(others) + 1, "tuning record"), file=path)
    shown, _ = rank_graph(given, ranker, top)
    warn_of_stages([shown], str(ranker.collection))
    return Ranking(shown, given, model, str(ranker.collection))


def rank_graph(given: InputGraph, ranker: Ranker, top: int, compare: bool = False) -> tuple[dict[str, Any], Int64]:
    """Return the JSON values of a graph's ranking, and (configurations,) int64, the order of all configurations."""
    from hlorank.metrics import ranking
    from hlorank.ranking.result import ranked_graph

    measured = given.measured
    scores = ranker.score(measured.graph, measured.configurations, given.extra, name=measured.name)
    order = ranking(scores)
    shown = ranked_graph(given, scores, order, top, compare=compare)
    return shown | {"trained_on": ranker.spec.features.runtimes or None}, order


def print_ranking(ranked: dict[str, Any], chosen: int = 1, wide: bool = False) -> None:
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
        layouts = {
            "before": layout_text(change["before"]) or "the compiler's choice",
            "after": layout_text(change["after"]),
        }
        rows.append(cells(_CHANGE_COLUMNS, change | layouts))
    print_table([*_CHANGE_COLUMNS.values()], rows, wide)
    if (more := len(changes) - _MAX_CHANGES) > 0:
        sys.stdout.write(f"and {more:,} more: --changes FILE or --json\n")


def layout_text(dims: Sequence[int] | None) -> str:
    """Return a layout as XLA writes it, such as `{1,0}`; empty where it is the compiler's choice."""
    return "" if dims is None else f"{{{','.join(map(str, dims))}}}"


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
