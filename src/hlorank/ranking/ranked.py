"""Ranked programs: the result in Python, exports of a configuration, and warnings of modules of another stage."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hlorank.files import DataError, counted, write_atomic, write_json, write_text
from hlorank.hlo.forms import hlo_text
from hlorank.hlo.layout_json import apply, to_configuration
from hlorank.hlo.program_file import program_file
from hlorank.hlo.reader import DUMPS
from hlorank.hlo.stage import TRAINED, named_stage
from hlorank.hlo.xla_process import INSTALL, has_jaxlib
from hlorank.metrics import Float64, ranking
from hlorank.ranking.inputs import GraphReader, InputGraph
from hlorank.ranking.ranker import Ranker
from hlorank.ranking.result import doubt_text, doubts, ranked_graph
from hlorank.version import __version__

if TYPE_CHECKING:
    import pandas as pd

_OTHER_STAGE = (
    "%s: a module of the stage %s; the model was trained on modules of the stage %s, so that the ranking means nothing "
    "for the program; XLA dumps the right module with --xla_dump_hlo_pass_re=layout-assignment%s"
)
_OTHER_BACKEND = "%s: dumped by XLA for a %s; the model is of %s, so that the ranking means nothing for the program"
_COMPILED = "%s: compiled for the %s up to layout assignment, as the model was trained on modules of the stage %s%s"
_NO_STAGE = f"; if it is of this stage already, rank it with --dump {DUMPS[0]}"
_UNKNOWN_STAGE = "%s: taken as a module of the stage %s, as nothing says that it is not; it was not compiled: %s"
_MAX_CONFIGURATIONS = 1_000_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """Ranking of the configurations of a program; a terminal shows it as text, a notebook as HTML.

    Attributes:
        graph: name of the graph.
        model: the model that ranked it.
        collection: address of the collection that the model was trained on.
        scores: (configurations,) float64, larger = slower.
        top: the first configurations, as `hlorank rank --json` prints them.
        doubts: why the ranking may mean little, as there.
    """

    graph: str
    model: str
    collection: str
    scores: Float64
    top: list[dict[str, Any]]
    doubts: list[dict[str, Any]]
    _given: InputGraph

    @cached_property
    def table(self) -> "pd.DataFrame":
        """The first configurations: rank, configuration (its index), score, and what the file says of its runtime."""
        import pandas as pd

        return pd.DataFrame([{key: row[key] for key in row if key != "changes"} for row in self.top])

    @cached_property
    def changes(self) -> "pd.DataFrame":
        """The layouts that the first configuration sets, minor to major; empty for a file without a module."""
        import pandas as pd

        columns = ["instruction", "opcode", "tensor", "shape", "before", "after"]
        return pd.DataFrame(self.top[0].get("changes", []), columns=columns)

    def export(self, folder: str | Path, rank: int = 1) -> list[Path]:
        """Write one of the first configurations as JSON and as HLO with layout constraints, and return the files.

        Raises:
            DataError: there is no such rank in `top`, or the file has no module.
        """
        if not 1 <= rank <= len(self.top):
            raise DataError("rank", f"1 to {len(self.top)}", rank)
        return export(Path(folder), self._given, self.top[rank - 1], self.model, self.collection)

    @property
    def _title(self) -> str:
        return (
            f"{self.graph}: the first {len(self.top)} of {counted(len(self.scores), 'configuration')}, by {self.model}"
        )

    def __repr__(self) -> str:
        parts = [self._title, self.table.to_string(index=False)]
        return "\n\n".join([*parts, self.changes.to_string(index=False)] if len(self.changes) else parts)

    def _repr_html_(self) -> str:
        tables = [self.table, self.changes] if len(self.changes) else [self.table]
        return f"<p>{escape(self._title)}</p>" + "".join(table.to_html(index=False) for table in tables)


def rank_program(program: Any, ranker: Ranker, model: str, top: int, candidates: int, seed: int) -> Ranking:
    """Return the ranking of the only graph of a file, and warn of a module of another stage; see `hlorank.rank`."""
    spec = ranker.spec.features
    with program_file(program) as path:
        graphs = [*GraphReader(spec, _MAX_CONFIGURATIONS, candidates, seed, compile_dumps=True).read(path)]
    if len(graphs) != 1:
        raise DataError("program", "one graph; `hlorank rank` ranks several", len(graphs), file=path)
    (given,) = graphs
    measured = given.measured
    scores = ranker.score(measured.graph, measured.configurations, name=measured.name)
    collection = str(ranker.collection)
    shown = ranked_graph(given, scores, ranking(scores), top, compare=not measured.measurements.withheld)
    warn_of_stages([shown], collection)
    found = doubts(given, scores, spec)
    for doubt in found:
        _log.warning("%s: %s", path, doubt_text(doubt))
    return Ranking(measured.name, model, collection, scores, shown["top"], found, given)


def export(folder: Path, given: InputGraph, row: dict[str, Any], model: str, collection: str) -> list[Path]:
    """Write an entry of `top` to `<folder>/<graph>.json`, `.hlo.pb` and, with jaxlib, `.hlo.txt`; return the files."""
    module, configurations, backend = given.candidates("--export")
    (layouts,) = configurations.values(slice(row["configuration"], row["configuration"] + 1))
    about = {"hlorank": __version__, "model": model, "collection": collection, "backend": backend}
    configuration = to_configuration(module, layouts, about | {key: row[key] for key in ("rank", "score")})
    if not configuration.instructions:
        _log.warning("%s: every layout is the compiler's choice: the export changes nothing", given.measured.name)
    exported = apply(module, configuration).SerializeToString()
    name = given.measured.name
    json_file, protobuf, text = (folder / f"{name}{suffix}" for suffix in (".json", ".hlo.pb", ".hlo.txt"))
    write_json(json_file, configuration.model_dump(mode="json"))
    write_atomic(protobuf, lambda file: file.write(exported))
    if not has_jaxlib():
        _log.warning("%s: not written: HLO text needs jaxlib: %s", text, INSTALL)
        return [json_file, protobuf]
    write_text(text, hlo_text(exported))
    return [json_file, protobuf, text]


def warn_of_stages(graphs: Sequence[dict[str, Any]], collection: str) -> bool:
    """Warn of modules that were compiled or may be of another stage or backend; return True if any is of another."""
    staged = [(ranked["file"], ranked["stage"]) for ranked in graphs if ranked["stage"] is not None]
    for file, stage in staged:
        if stage["other_backend"] is not None:
            _log.warning(_OTHER_BACKEND, file, stage["other_backend"], collection)
        if stage["compiled"]:
            remedy = _NO_STAGE if named_stage(Path(file)) is None else ""
            _log.warning(_COMPILED, file, stage["backend"], TRAINED, remedy)
        elif stage["found"] != TRAINED:
            reason = f"; not compiled: {stage['not_compiled']}" if stage["not_compiled"] else ""
            _log.warning(_OTHER_STAGE, file, stage["found"], TRAINED, reason)
        elif stage["not_compiled"]:
            _log.warning(_UNKNOWN_STAGE, file, TRAINED, stage["not_compiled"])
    return any(stage["found"] != TRAINED or stage["other_backend"] is not None for _, stage in staged)
