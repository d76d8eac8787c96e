"""Sections of a report, one for each collection: tables, charts and drawings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import ceil, inf
from pathlib import Path

from hlorank.config import ConfigError
from hlorank.data.collection import SPLITS, Collection, Kind
from hlorank.evaluation.graph_report import metric_names
from hlorank.evaluation.one_segment import one_segment
from hlorank.evaluation.report import charts
from hlorank.evaluation.report.drawing import MAX_NODES, Drawing, StoredGraphs, open_graphs
from hlorank.evaluation.report.error_tables import FamilyErrors, family_errors, misjudged
from hlorank.evaluation.report.groups import Cost, Group, Score, cost, group_runs, scores
from hlorank.evaluation.report.headline import Headline, headline
from hlorank.evaluation.report.runs import Row, Run

# Bounds of the whole report, which names the number of omitted rows.
_MAX_ROWS, _MAX_POINTS = 2_000, 8_000
# The repeat ceiling has a column next to the noise ceiling; OPA follows from Kendall tau, and is Kaggle's score of
# layouts.
_NO_COLUMN: Mapping[Kind, set[str]] = {"layout": {"repeat_ceiling", "opa", "kaggle"}, "tile": {"repeat_ceiling", "opa"}}


@dataclass(frozen=True)
class Section:
    """Section of one collection.

    Attributes:
        collection: the collection.
        groups: groups of its runs.
        headline: the best method, None if no run was evaluated.
        results: group and score, the best Kendall tau first, by split and protocol.
        one_segment: True if methods on segments equal `full`, as every graph is one segment.
        metrics: names of the columns of the tables.
        costs: group and cost.
        errors: rows of the table of families.
        misjudged: rows of the table of properties.
        graphs: rows of the table of graphs.
        all_graphs: number of rows before the table was shortened.
        intervals: charts of Kendall tau, one for each split.
        predicted: charts of ranks, one for each group.
        predicted_graphs: names of the graphs in these charts.
        curves: charts of the histories.
        cost: charts of quality against cost.
        drawings: drawings of graphs.
        undrawn: reason for a missing drawing, None if there is a drawing.
        largest: nodes of the largest graph of train, None without the features.
    """

    collection: Collection
    groups: Sequence[Group]
    headline: Headline | None
    results: Mapping[tuple[str, str], Sequence[tuple[Group, Score]]]
    one_segment: bool
    metrics: Sequence[str]
    costs: Sequence[tuple[Group, Cost]]
    errors: Sequence[FamilyErrors]
    misjudged: Sequence[tuple[Group, Row]]
    graphs: Sequence[tuple[Group, Row]]
    all_graphs: int
    intervals: Sequence[charts.Spec]
    predicted: Sequence[tuple[Group, charts.Spec]]
    predicted_graphs: Sequence[str]
    curves: Sequence[charts.Spec]
    cost: Sequence[charts.Spec]
    drawings: Sequence[Drawing]
    undrawn: str | None
    largest: int | None

    @property
    def unevaluated(self) -> Sequence[tuple[Group, Run]]:
        """The runs that were not evaluated, with their groups."""
        return [(group, run) for group in self.groups for run in group.runs if not run.per_graph]

    @property
    def validations(self) -> str:
        """Mean Kendall tau of each method in the validation of its trainings, the best first."""
        known = [(tau, group.label) for group in self.groups if (tau := group.validation) is not None]
        return ", ".join(f"{label} {tau:.3f}" for tau, label in sorted(known, reverse=True))

    @property
    def lengths_differ(self) -> bool:
        """True if not all models were trained for the same number of epochs and steps, or under one bound."""
        return len({group.length for group in self.groups} - {""}) > 1


def make_sections(runs: Sequence[Run], features: Path, segments: Path, graphs: Sequence[str]) -> list[Section]:
    """Return a section for each collection, in the order of the runs.

    Args:
        runs: at least one run.
        features: folder of featurized collections.
        segments: folder of partitioned collections.
        graphs: names of graphs to draw; empty draws the largest readable graph of each collection.

    Raises:
        ConfigError: a graph has no features, or too many nodes for a drawing.
        DataError: features or segments are damaged.
    """
    grouped = group_runs(runs)
    share = sum(len(groups) for groups in grouped.values())
    stored = {collection: open_graphs(groups, features, segments) for collection, groups in grouped.items()}
    _check_names(graphs, stored)
    return [_section(collection, groups, stored[collection], graphs, share) for collection, groups in grouped.items()]


def _check_names(graphs: Sequence[str], stored: Mapping[Collection, StoredGraphs | str]) -> None:
    """Raise ConfigError for the name of a graph that has no features; the message has the names that are near."""
    readable = [data.store for data in stored.values() if not isinstance(data, str)]
    known = {name for store in readable for split in SPLITS for name in store.graphs(split)}
    for name in graphs:
        if name not in known:
            near = [f"near names: {', '.join(found)}"] if (found := get_close_matches(name, sorted(known))) else []
            reasons = [f"{collection}: {data}" for collection, data in stored.items() if isinstance(data, str)]
            raise ConfigError("; ".join([f"graph {name}: not among the features of these runs", *near, *reasons]))


def _section(
    collection: Collection, groups: Sequence[Group], data: StoredGraphs | str, graphs: Sequence[str], share: int
) -> Section:
    results = [(group, score) for group in groups for score in scores(group)]
    rows = [(group, row) for group in groups for row in group.rows]
    costs = [(group, cost(group)) for group in groups]
    drawings, undrawn = _drawings(data, graphs, rows)
    predicted = _predicted(groups, max(1, _MAX_POINTS // share))
    return Section(
        collection=collection,
        groups=groups,
        headline=headline(results),
        results=_by_split(results),
        one_segment=not isinstance(data, str) and data.partitions is not None and one_segment(data.partitions.root),
        metrics=[name for name in metric_names(collection.kind) if name not in _NO_COLUMN[collection.kind]],
        costs=costs,
        errors=family_errors(groups)[: max(1, _MAX_ROWS // share)],
        misjudged=misjudged(groups),
        graphs=[(group, row) for group in groups for row in group.rows[: max(1, _MAX_ROWS // share)]],
        all_graphs=len(rows),
        intervals=_intervals(_by_split(results)),
        predicted=[(group, charts.predicted(group, values)) for group, values in predicted],
        predicted_graphs=sorted({value["graph"] for _, values in predicted for value in values}),
        curves=_curves(groups),
        cost=_cost_charts(results, costs),
        drawings=drawings,
        undrawn=undrawn,
        largest=None if isinstance(data, str) else data.max_nodes,
    )


def _drawings(
    data: StoredGraphs | str, graphs: Sequence[str], rows: Sequence[tuple[Group, Row]]
) -> tuple[list[Drawing], str | None]:
    if isinstance(data, str):
        return [], data
    chosen = data.named(graphs) if graphs else data.largest({(row["split"], row["graph"]) for _, row in rows})
    reason = "the requested graphs are in other collections" if graphs else f"no graph has at most {MAX_NODES} nodes"
    return [data.draw(*graph) for graph in chosen], None if chosen else reason


def _by_split(results: Sequence[tuple[Group, Score]]) -> dict[tuple[str, str], list[tuple[Group, Score]]]:
    """Return group and score by split and protocol, in the order of the splits and the best Kendall tau first."""
    places = sorted(
        {(score.split, score.protocol) for _, score in results}, key=lambda place: (SPLITS.index(place[0]), place[1])
    )

    def tau(result: tuple[Group, Score]) -> float:
        estimate = result[1].estimates.get("kendall_tau")
        return inf if estimate is None else -estimate.mean

    return {
        place: sorted((result for result in results if (result[1].split, result[1].protocol) == place), key=tau)
        for place in places
    }


def _intervals(results: Mapping[tuple[str, str], Sequence[tuple[Group, Score]]]) -> list[charts.Spec]:
    return [
        charts.intervals(split if protocol == "all" else f"{split}, {protocol}", pairs)
        for (split, protocol), pairs in results.items()
        if any("kendall_tau" in score.estimates for _, score in pairs)
    ]


def _predicted(groups: Sequence[Group], max_points: int) -> list[tuple[Group, charts.Rows]]:
    """Return the predictions of the first run of each group that has predictions."""
    found: list[tuple[Group, charts.Rows]] = []
    for group in groups:
        rows = next((run.predictions for run in group.runs if run.predictions), None)
        if rows is None:
            continue
        values = [
            {
                "graph": row["graph"],
                "label": f"{row['graph']}\n{row['split']}, configuration {row['configuration']:.0f}",
                "measured": row["measured_rank"],
                "predicted": row["predicted_rank"],
            }
            for row in rows[:: ceil(len(rows) / max_points)]
        ]
        found.append((group, values))
    return found


def _curves(groups: Sequence[Group]) -> list[charts.Spec]:
    """Return curves of all models that are trained by epochs, and of each baseline, whose rows are candidates."""
    with_history = [group for group in groups if any(len(run.history) > 1 for run in group.runs)]
    baselines = [group for group in with_history if "settings" in group.runs[0].spec]
    families = [([group for group in with_history if group not in baselines], "epoch")]
    families += [([group], f"candidate of {group.label}") for group in baselines]
    return [
        charts.curves(family, column, title, epoch)
        for family, epoch in families
        for column, title in (("valid_kendall_tau", "Kendall tau, valid"), ("train_loss", "training loss"))
        if any(row[column] is not None for group in family for run in group.runs for row in run.history)
    ]


def _cost_charts(results: Sequence[tuple[Group, Score]], costs: Sequence[tuple[Group, Cost]]) -> list[charts.Spec]:
    """Return charts of quality on valid, the split to choose models on, or else on the first evaluated split."""
    splits = list(dict.fromkeys(score.split for _, score in results))
    if not splits:
        return []
    split = "valid" if "valid" in splits else splits[0]
    taus = {
        group: score.estimates["kendall_tau"].mean
        for group, score in results
        if (score.split, score.protocol) == (split, "all") and "kendall_tau" in score.estimates
    }
    found: list[charts.Spec] = []
    if len(taus) < 2:
        return found
    for title, name, unit in (
        ("seconds of training", "seconds", 1),
        ("milliseconds of a step", "step_seconds", 1e-3),
        ("memory of a step (MiB)", "step_memory_bytes", charts.MEBIBYTE),
    ):
        known = [
            (group, value / unit, taus[group])
            for group, spent in costs
            if group in taus and (value := getattr(spent, name)) is not None
        ]
        if known:
            found.append(charts.against_cost(known, title, split))
    return found
