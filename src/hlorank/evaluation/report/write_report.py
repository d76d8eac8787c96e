"""Writing of a report: one HTML file with its charts, style and script inside."""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hlorank.config import ConfigError
from hlorank.data.collection import Collection, Kind
from hlorank.evaluation.graph_report import WRONG, Row, metric_names
from hlorank.evaluation.report import charts, tables
from hlorank.evaluation.report.trainings import FOLD, Run, records
from hlorank.evaluation.summary import METRIC_COLUMNS, metric_text
from hlorank.files import counted, flatten, write_text
from hlorank.metrics import BEST_TAU, LEVEL, RESAMPLES, TRAIN_SECONDS
from hlorank.version import __version__

REPORT = "report.html"
"""File name of the report of one evaluation."""
MAX_BYTES = 5_000_000
NOISE = 2
"""Differences below this many standard deviations over seeds are called noise."""
_HERE = Path(__file__).parent
# Bounds of the whole report, which names the number of omitted rows.
_MAX_ROWS, _MAX_POINTS = 2_000, 8_000
_COSTS = (
    ("seconds of training", TRAIN_SECONDS, 1.0),
    ("milliseconds of a step", "train/step_seconds", 1e-3),
    ("memory of a step (MiB)", "train/step_memory_bytes", 2**20),
)
# The repeat ceiling has a column next to the noise ceiling; OPA follows from Kendall tau, and is Kaggle's score of
# layouts.
_NO_COLUMN: Mapping[Kind, set[str]] = {"layout": {"repeat_ceiling", "opa", "kaggle"}, "tile": {"repeat_ceiling", "opa"}}
_EQUAL = 1e-9


def write_report(runs: Sequence[Run], output: Path) -> None:
    """Write the report of at least one run into an HTML file of at most 5 MB, in one step."""
    page = _render(runs)
    if (size := len(page.encode())) > MAX_BYTES:
        raise ConfigError(f"{counted(len(runs), 'run')}: a report of {size / 1e6:.1f} MB is too large; name fewer runs")
    write_text(output, page)


def _render(runs: Sequence[Run]) -> str:
    grouped = tables.group_runs(runs)
    share = sum(len(groups) for groups in grouped.values())
    loader = FileSystemLoader(_HERE / "page")
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    pages.filters |= _FILTERS
    script = (_HERE / "page/report.js").read_text(encoding="utf-8")
    page = pages.get_template("report.html").render(
        runs=runs,
        sections=[_section(collection, groups, share) for collection, groups in grouped.items()],
        memory=_memory([group for groups in grouped.values() for group in groups]),
        version=__version__,
        level=LEVEL,
        resamples=RESAMPLES,
        noise=NOISE,
        wrong=WRONG,
        titles={name: " ".join(column.title.split()) for name, column in METRIC_COLUMNS.items()},
        style=(_HERE / "page/report.css").read_text(encoding="utf-8"),
        script=script,
        hash=f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'",
    )
    return charts.escape(page)


def _section(collection: Collection, groups: Sequence[tables.Group], share: int) -> dict[str, Any]:
    """Return what the page shows of a collection; `share` groups share the rows and points of the report."""
    results, errors = tables.scores(groups), tables.family_errors(groups)
    limit = max(1, _MAX_ROWS // share)
    validated = [(tau, group.label) for group in groups if (tau := group.mean_tracked(BEST_TAU)) is not None]
    points = [(group, _points(group, max(1, _MAX_POINTS // share))) for group in groups]
    points = [(group, rows) for group, rows in points if rows]
    runs = [run for group in groups for run in group.runs]
    return {
        "collection": collection,
        "runtimes": next(filter(None, (run.spec.get("features", {}).get("runtimes") for run in runs)), ""),
        "groups": groups,
        "headline": headline(results),
        "results": results,
        "one_segment": any(group.one_segment for group in groups),
        "metrics": [name for name in metric_names(collection.kind) if name not in _NO_COLUMN[collection.kind]],
        "errors": errors[:limit],
        "all_errors": len(errors),
        "misjudged": tables.misjudged(groups),
        "graphs": [(group, row) for group in groups for row in records(group.rows[:limit])],
        "all_graphs": sum(len(group.rows) for group in groups),
        "intervals": [
            charts.intervals(split if protocol == "all" else f"{split}, {protocol}", pairs)
            for (split, protocol), pairs in results.items()
            if any(score.tau for _, score in pairs)
        ],
        "predicted": [(group, charts.predicted(group, rows)) for group, rows in points],
        "predicted_graphs": sorted({row["graph"] for _, rows in points for row in rows}),
        "curves": _curves(groups),
        "cost": _cost_charts(results),
        "unevaluated": [(group, run) for group in groups for run in group.runs if run.per_graph.empty],
        "validations": ", ".join(f"{label} {tau:.3f}" for tau, label in sorted(validated, reverse=True)),
        "lengths_differ": len({group.length for group in groups} - {""}) > 1,
    }


def headline(results: tables.Results) -> dict[str, Any] | None:
    """Return the facts of the headline of one collection, None if no group has a Kendall tau.

    They are the groups with the highest tau on the `preferred` split, `best`; its score there and on the other splits;
    the `second` group, with the `difference` of tau and, if there are several seeds or folds (`over`), the standard
    `deviation` over them.
    """
    taus = {
        split: [(group, score, score.tau) for group, score in pairs if score.tau is not None]
        for (split, protocol), pairs in results.items()
        if protocol == "all"
    }
    if not (evaluated := [split for split, ranked in taus.items() if ranked]):
        return None
    ranked = taus[split := tables.preferred(evaluated)]
    best, score, tau = ranked[0]
    equal = [group.label for group, _, other in ranked if tau.mean - other.mean < _EQUAL]
    facts: dict[str, Any] = {
        "split": split,
        "best": equal,
        "score": score,
        "on_others": {it: its for it in evaluated for group, its, _ in taus[it] if group is best and it != split},
        "second": None,
        "incomplete": any(score.runs < len(group.runs) for group, score, _ in ranked),
    }
    if len(ranked) > len(equal):
        second, other, its = ranked[len(equal)]
        deviations = [deviation for deviation in (tau.deviation, its.deviation) if deviation is not None]
        facts |= {"second": second, "second_score": other, "difference": tau.mean - its.mean}
        facts |= {"deviation": max(deviations, default=None), "over": best.repeated}
    return facts


def _points(group: tables.Group, limit: int) -> list[Row]:
    """Return the predictions of the first run of a group that has predictions, evenly spaced."""
    table = next((run.predictions for run in group.runs if len(run.predictions)), None)
    return [] if table is None else records(table[:: ceil(len(table) / limit)])


def _curves(groups: Sequence[tables.Group]) -> list[charts.Chart]:
    """Return curves of all models that are trained by epochs, and of each baseline, whose rows are candidates."""
    with_history = [group for group in groups if any(len(run.history) > 1 for run in group.runs)]
    baselines = [group for group in with_history if "settings" in group.runs[0].spec]
    families = [([group for group in with_history if group not in baselines], "epoch")]
    families += [([group], f"candidate of {group.label}") for group in baselines]
    return [
        charts.curves(family, column, title, epoch)
        for family, epoch in families
        for column, title in (("valid_kendall_tau", "Kendall tau, valid"), ("train_loss", "training loss"))
        if any(len(run.history) and run.history[column].notna().any() for group in family for run in group.runs)
    ]


def _cost_charts(results: tables.Results) -> list[charts.Chart]:
    """Return charts of the Kendall tau of several groups on the `preferred` split against their costs."""
    split = tables.preferred([split for split, _ in results] or ["valid"])
    taus = [(group, score.tau.mean) for group, score in results.get((split, "all"), ()) if score.tau is not None]
    found: list[charts.Chart] = []
    for title, name, unit in _COSTS:
        points = [(group, cost / unit, tau) for group, tau in taus if (cost := group.mean_tracked(name)) is not None]
        if points and len(taus) > 1:
            about = f"Kendall tau on {split} of each method against {title}"
            found.append(charts.against_cost(points, title, f"Kendall tau, {split}", about))
    return found


def _memory(groups: Sequence[tables.Group]) -> charts.Chart | None:
    """Return the chart of the memory of a training step against the largest evaluated graph, None without a point."""
    title, name, unit = _COSTS[-1]
    costs = [(group, group.mean_tracked(name)) for group in groups if len(group.rows)]
    points = [(group, group.rows["nodes"].max(), size / unit) for group, size in costs if size is not None]
    about = "Memory of a training step against the nodes of the largest evaluated graph"
    return charts.against_cost(points, "nodes of the largest evaluated graph", title, about) if points else None


def _breakable(name: str) -> str:
    """Return a name that may break after a mark of punctuation."""
    return "<wbr>".join(map(escape, re.split(r"(?<=[._,/])", name)))


def settings(group: tables.Group) -> Row:
    """Return the configuration of a group without seed and fold; without MLflow, the part in the model folder."""
    run = group.runs[0]
    if run.tracked is not None and run.tracked.settings:
        found: Row = {key: value for key, value in run.tracked.settings.items() if key not in {"seed", FOLD}}
    else:
        spec = {key: run.spec[key] for key in ("model", "settings", "aggregation", "partition") if key in run.spec}
        options = run.spec.get("features", {}).get("options", {})
        found = dict(flatten({**spec, "featurize": options}))
    return dict(sorted(found.items()))


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "breakable": _breakable,
    "counted": counted,
    "draw": charts.draw_chart,
    "metric": metric_text,
    "settings": settings,
    "share": lambda value: "unknown" if value is None else f"{value:.1%}",
    "colour": charts.colour,
    "shape": lambda number: number % len(charts.SHAPES),
}
