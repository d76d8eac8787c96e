"""Writing of a report: one HTML file with its charts, style and script inside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hlorank.config import ConfigError
from hlorank.data.collection import SPLITS, Collection, Kind
from hlorank.evaluation.errors import WRONG
from hlorank.evaluation.graph_report import metric_names
from hlorank.evaluation.report import charts
from hlorank.evaluation.report.tables import (
    LEVEL,
    RESAMPLES,
    Estimate,
    Group,
    SplitScores,
    family_errors,
    group_runs,
    misjudged,
    scores,
)
from hlorank.evaluation.report.trainings import Row, Run, records
from hlorank.files import counted, flatten, write_text
from hlorank.version import __version__

REPORT = "report.html"
"""File name of the report of one evaluation."""
MAX_BYTES = 5_000_000
NOISE = 2
"""Differences below this many standard deviations over seeds are called noise."""
_HERE = Path(__file__).parent
# Bounds of the whole report, which names the number of omitted rows.
_MAX_ROWS, _MAX_POINTS = 2_000, 8_000
_MEBIBYTE = 2**20
# The repeat ceiling has a column next to the noise ceiling; OPA follows from Kendall tau, and is Kaggle's score of
# layouts.
_NO_COLUMN: Mapping[Kind, set[str]] = {"layout": {"repeat_ceiling", "opa", "kaggle"}, "tile": {"repeat_ceiling", "opa"}}
_EQUAL = 1e-9

Results = Mapping[tuple[str, str], Sequence[tuple[Group, SplitScores]]]
"""Group and scores by split and protocol, the best Kendall tau first."""


def write_report(runs: Sequence[Run], output: Path) -> None:
    """Write the report of at least one run into an HTML file of at most 5 MB, in one step.

    Raises:
        ConfigError: the report is larger than 5 MB.
    """
    page = _render(runs)
    if (size := len(page.encode())) > MAX_BYTES:
        raise ConfigError(f"{counted(len(runs), 'run')}: a report of {size / 1e6:.1f} MB is too large; name fewer runs")
    write_text(output, page)


def _render(runs: Sequence[Run]) -> str:
    grouped = group_runs(runs)
    share = sum(len(groups) for groups in grouped.values())
    environment = Environment(
        loader=FileSystemLoader(_HERE / "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _FILTERS
    script = (_HERE / "page/report.js").read_text(encoding="utf-8")
    page = environment.get_template("report.html").render(
        runs=runs,
        sections=[_section(collection, groups, share) for collection, groups in grouped.items()],
        memory=_memory([group for groups in grouped.values() for group in groups]),
        version=__version__,
        level=LEVEL,
        resamples=RESAMPLES,
        noise=NOISE,
        wrong=WRONG,
        style=(_HERE / "page/report.css").read_text(encoding="utf-8"),
        script=script,
        hash=f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'",
    )
    return charts.escape(page)


def _section(collection: Collection, groups: Sequence[Group], share: int) -> dict[str, Any]:
    """Return what the page shows of a collection; `share` groups share the rows and points of the report."""
    results = by_split(groups)
    rows = [(group, row) for group in groups for row in records(group.rows[: max(1, _MAX_ROWS // share)])]
    validated = [(tau, group.label) for group in groups if (tau := group.validation) is not None]
    points = [(group, _points(group, max(1, _MAX_POINTS // share))) for group in groups]
    points = [(group, values) for group, values in points if values]
    return {
        "collection": collection,
        "groups": groups,
        "headline": headline(results),
        "results": results,
        "one_segment": any(group.one_segment for group in groups),
        "metrics": [name for name in metric_names(collection.kind) if name not in _NO_COLUMN[collection.kind]],
        "errors": family_errors(groups)[: max(1, _MAX_ROWS // share)],
        "misjudged": misjudged(groups),
        "graphs": rows,
        "all_graphs": sum(len(group.rows) for group in groups),
        "intervals": [
            charts.intervals(split if protocol == "all" else f"{split}, {protocol}", pairs)
            for (split, protocol), pairs in results.items()
            if any("kendall_tau" in score.estimates for _, score in pairs)
        ],
        "predicted": [(group, charts.predicted(group, values)) for group, values in points],
        "predicted_graphs": sorted({value["graph"] for _, values in points for value in values}),
        "curves": _curves(groups),
        "cost": _cost_charts(results),
        "unevaluated": [(group, run) for group in groups for run in group.runs if run.per_graph.empty],
        "validations": ", ".join(f"{label} {tau:.3f}" for tau, label in sorted(validated, reverse=True)),
        "lengths_differ": len({group.length for group in groups} - {""}) > 1,
    }


def by_split(groups: Sequence[Group]) -> Results:
    """Return the scores of groups by split and protocol."""

    def tau(result: tuple[Group, SplitScores]) -> float:
        estimate = result[1].estimates.get("kendall_tau")
        return inf if estimate is None else -estimate.mean

    results: dict[tuple[str, str], list[tuple[Group, SplitScores]]] = {}
    for group in groups:
        for score in scores(group):
            results.setdefault((score.split, score.protocol), []).append((group, score))
    places = sorted(results, key=lambda place: (SPLITS.index(place[0]), place[1]))
    return {place: sorted(results[place], key=tau) for place in places}


class Headline(NamedTuple):
    """The method with the highest Kendall tau; noise ceiling, other splits, and the distance from the second method."""

    title: str
    sentences: str


def headline(results: Results) -> Headline | None:
    """Return the headline of the groups of one collection, None if no group has a Kendall tau.

    The best method is chosen on valid if a group was evaluated there, else on the first evaluated split.
    """
    ranked = {
        split: found
        for (split, protocol), pairs in results.items()
        if protocol == "all" and (found := [(*pair, known.mean) for pair in pairs if (known := _tau(pair[1]))])
    }
    if not ranked:
        return None
    split = "valid" if "valid" in ranked else next(iter(ranked))
    best, score, tau = ranked[split][0]
    equal = [group.label for group, _, other in ranked[split] if tau - other < _EQUAL]
    title, sentences = f"{' and '.join(equal)}, Kendall tau {tau:.3f} on {split}", [f"{_ceiling(score).capitalize()}."]
    if len(ranked[split]) > len(equal):
        incomplete = any(score.runs < len(group.runs) for group, score, _ in ranked[split])
        title = f"Best{' of the evaluated runs' if incomplete else ''}: {title}"
        sentences.append(_difference(score, *ranked[split][len(equal)][:2]))
    sentences += [
        f"On {other}: {value:.3f}, {_ceiling(its)}."
        for other, found in ranked.items()
        for group, its, value in found
        if other != split and group is best
    ]
    return Headline(title, " ".join(sentences))


def _tau(score: SplitScores) -> Estimate | None:
    return score.estimates.get("kendall_tau")


def _ceiling(score: SplitScores) -> str:
    return "noise ceiling unknown" if score.noise_ceiling is None else f"noise ceiling {score.noise_ceiling:.3f}"


def _difference(best: SplitScores, second: Group, other: SplitScores) -> str:
    """Return the difference of the first two methods, in standard deviations over seeds if there are several."""
    taus = [score.estimates["kendall_tau"] for score in (best, other)]
    difference = taus[0].mean - taus[1].mean
    text = f"{difference:.3f} above {second.label} ({taus[1].mean:.3f})"
    if best.graphs != other.graphs:
        return f"{text}, which ranked other graphs."
    deviations = [tau.deviation for tau in taus if tau.deviation is not None]
    if not deviations:
        return f"{text}; with one run each this may be chance: compare several seeds."
    if (deviation := max(deviations)) == 0:
        return f"{text}; equal for all seeds."
    ratio = difference / deviation
    noise = ": within noise" if ratio < NOISE else ""
    return f"{text}, {ratio:.1f} times the standard deviation over seeds ({deviation:.3f}){noise}."


def _points(group: Group, limit: int) -> charts.Values:
    """Return the predictions of the first run of a group that has predictions."""
    table = next((run.predictions for run in group.runs if len(run.predictions)), None)
    return [
        {
            "graph": row["graph"],
            "label": f"{row['graph']}\n{row['split']}, configuration {row['configuration']:.0f}",
            "measured": row["measured_rank"],
            "predicted": row["predicted_rank"],
        }
        for row in ([] if table is None else records(table[:: ceil(len(table) / limit)]))
    ]


def _curves(groups: Sequence[Group]) -> list[charts.Chart]:
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


def _cost_charts(results: Results) -> list[charts.Chart]:
    """Return charts of quality on valid, the split to choose models on, or else on the first evaluated split."""
    splits = list(dict.fromkeys(split for split, _ in results))
    split = "valid" if "valid" in splits else next(iter(splits), "")
    pairs = results.get((split, "all"), ())
    taus = {group: tau.mean for group, score in pairs if (tau := _tau(score)) is not None}
    found: list[charts.Chart] = []
    for title, name, unit in (
        ("seconds of training", "seconds", 1.0),
        ("milliseconds of a step", "step_seconds", 1e-3),
        ("memory of a step (MiB)", "step_memory_bytes", _MEBIBYTE),
    ):
        costs = {group: group.mean_tracked(name) for group in taus}
        known = [(group, cost / unit, taus[group]) for group, cost in costs.items() if cost is not None]
        if known and len(taus) > 1:
            about = f"Kendall tau on {split} of each method against {title}"
            found.append(charts.against_cost(known, title, f"Kendall tau, {split}", about))
    return found


def _memory(groups: Sequence[Group]) -> charts.Chart | None:
    """Return the chart of the memory of a training step against the largest evaluated graph, None without a point."""
    costs = [(group, group.mean_tracked("step_memory_bytes")) for group in groups if len(group.rows)]
    points = [(group, group.rows["nodes"].max(), size / _MEBIBYTE) for group, size in costs if size is not None]
    about = "Memory of a training step against the nodes of the largest evaluated graph"
    labels = "nodes of the largest evaluated graph", "memory of a step (MiB)"
    return charts.against_cost(points, *labels, about) if points else None


def _breakable(name: str) -> str:
    """Return a name that may break after a mark of punctuation."""
    return "<wbr>".join(map(escape, re.split(r"(?<=[._,/])", name)))


def _figure(value: float | None) -> str:
    """Return a number with three significant digits, whole numbers in full; `unknown` for None."""
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.3g}"


def _metric(value: float | None, name: str) -> str:
    """Return a metric as tables show it, slowdowns in percent."""
    if value is None:
        return ""
    return f"{value:.2%}" if name.startswith("slowdown") else f"{value:.3f}"


def settings(group: Group) -> Row:
    """Return the configuration of a group without its seed; without MLflow, the part in the model folder."""
    run = group.runs[0]
    if run.tracked is not None and run.tracked.settings:
        found: Row = {key: value for key, value in run.tracked.settings.items() if key != "seed"}
    else:
        spec = {key: run.spec[key] for key in ("model", "settings", "aggregation", "partition") if key in run.spec}
        options = run.spec.get("features", {}).get("options", {})
        found = dict(flatten({**spec, "featurize": options}))
    return dict(sorted(found.items()))


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "breakable": _breakable,
    "ends": lambda estimate, name: f"{_metric(estimate.low, name).rstrip('%')} to {_metric(estimate.high, name)}",
    "counted": counted,
    "draw": charts.draw_chart,
    "figure": _figure,
    "metric": _metric,
    "settings": settings,
    "share": lambda value: "unknown" if value is None else f"{value:.1%}",
    "colour": charts.colour,
    "shape": lambda number: number % len(charts.SHAPES),
}
