"""What a report says of each collection: tables, charts and drawings, as far as there is data for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from hlorank.config import ConfigError
from hlorank.data.collection import Collection, Kind
from hlorank.evaluation.graph_report import metric_names
from hlorank.evaluation.report import charts
from hlorank.evaluation.report.drawing import MOST_NODES, Drawing
from hlorank.evaluation.report.groups import Cost, Group, Score, cost, group_runs, scores
from hlorank.evaluation.report.report_data import Data, open_data
from hlorank.evaluation.report.runs import Row, Run

# What a report may hold of what grows with graphs and runs; it says where it leaves something out.
_MOST_ROWS, _MOST_POINTS = 2_000, 8_000
# The ceiling stands beside the noise ceiling; Kaggle's score of layouts is Kendall tau.
_NO_COLUMN: Mapping[Kind, set[str]] = {"layout": {"repeat_ceiling", "kaggle"}, "tile": {"repeat_ceiling"}}


@dataclass(frozen=True)
class Section:
    """One collection.

    Attributes:
        collection: its address.
        groups: its runs.
        results: group and score, for each split and protocol.
        metrics: names of the columns of the tables.
        costs: of each group.
        graphs: rows of the table of graphs.
        all_graphs: how many rows it would have, were it not too long for a page.
        intervals: charts of Kendall tau, one for each split.
        predicted: charts of ranks, one for each group.
        predicted_graphs: the graphs that they show.
        curves: charts of the histories.
        cost: charts of quality against cost.
        drawings: graphs.
        undrawn: why there is no drawing, None if there is one.
        largest: nodes of the largest graph of train, None where the features are not there.
    """

    collection: Collection
    groups: Sequence[Group]
    results: Sequence[tuple[Group, Score]]
    metrics: Sequence[str]
    costs: Sequence[tuple[Group, Cost]]
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


def make_sections(runs: Sequence[Run], features: Path, segments: Path, graphs: Sequence[str]) -> list[Section]:
    """A section for each collection, in the order of the runs.

    Args:
        runs: what the report is about.
        features: the folder of featurized collections.
        segments: the folder of partitioned ones.
        graphs: names of graphs to draw; empty draws the largest one of each collection that can be read.

    Raises:
        ConfigError: a graph can't be drawn.
        DataError: features or segments are damaged.
    """
    grouped = group_runs(runs)
    share = sum(len(groups) for groups in grouped.values())
    found = [
        _section(collection, groups, open_data(groups, features, segments), graphs, share)
        for collection, groups in grouped.items()
    ]
    drawn = {one.graph for section in found for one in section.drawings}
    if missing := sorted(set(graphs) - drawn):
        reasons = "; ".join(f"{section.collection}: {section.undrawn}" for section in found if section.undrawn)
        raise ConfigError(f"graph {', '.join(missing)}: not among the features of these runs; {reasons}".rstrip("; "))
    return found


def _section(
    collection: Collection, groups: Sequence[Group], data: Data | str, graphs: Sequence[str], share: int
) -> Section:
    results = [(group, score) for group in groups for score in scores(group)]
    rows = [(group, row) for group in groups for row in group.rows]
    costs = [(group, cost(group)) for group in groups]
    drawings, undrawn = _drawings(data, graphs, rows)
    predicted = _predicted(groups, max(1, _MOST_POINTS // share))
    return Section(
        collection=collection,
        groups=groups,
        results=results,
        metrics=[name for name in metric_names(collection.kind) if name not in _NO_COLUMN[collection.kind]],
        costs=costs,
        graphs=[(group, row) for group in groups for row in group.rows[: max(1, _MOST_ROWS // share)]],
        all_graphs=len(rows),
        intervals=_intervals(results),
        predicted=[(group, charts.predicted(group, values)) for group, values in predicted],
        predicted_graphs=sorted({value["graph"] for _, values in predicted for value in values}),
        curves=_curves(groups),
        cost=_cost_charts(results, costs),
        drawings=drawings,
        undrawn=undrawn,
        largest=None if isinstance(data, str) else data.most_nodes,
    )


def _drawings(
    data: Data | str, graphs: Sequence[str], rows: Sequence[tuple[Group, Row]]
) -> tuple[list[Drawing], str | None]:
    if isinstance(data, str):
        return [], data
    chosen = data.named(graphs) if graphs else data.largest({(row["split"], row["graph"]) for _, row in rows})
    reason = "the graphs asked for are those of others" if graphs else f"no graph has at most {MOST_NODES} nodes"
    return [data.draw(*graph) for graph in chosen], None if chosen else reason


def _intervals(results: Sequence[tuple[Group, Score]]) -> list[charts.Spec]:
    places = dict.fromkeys((score.split, score.protocol) for _, score in results if "kendall_tau" in score.estimates)
    return [
        charts.intervals(
            split if protocol == "all" else f"{split}, {protocol}",
            [(group, score) for group, score in results if (score.split, score.protocol) == (split, protocol)],
        )
        for split, protocol in places
    ]


def _predicted(groups: Sequence[Group], most: int) -> list[tuple[Group, charts.Rows]]:
    """The predictions of the first run of each group that has any."""
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
            for row in rows[:: ceil(len(rows) / most)]
        ]
        found.append((group, values))
    return found


def _curves(groups: Sequence[Group]) -> list[charts.Spec]:
    """Of models that are trained by epochs together; of each baseline alone, as its epochs are another thing."""
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
    """Quality on valid, on which one chooses, or on the only split there is."""
    splits = list(dict.fromkeys(score.split for _, score in results))
    if not splits:
        return []
    split = "valid" if "valid" in splits else splits[0]
    taus = {
        group: score.estimates["kendall_tau"].mean
        for group, score in results
        if (score.split, score.protocol) == (split, "all") and "kendall_tau" in score.estimates
    }
    found = []
    for title, name, unit in (
        ("seconds of training", "seconds", 1),
        ("parameters", "parameters", 1),
        ("peak memory (MiB)", "peak_memory_bytes", charts.MEBIBYTE),
    ):
        known = [
            (group, value / unit, taus[group])
            for group, spent in costs
            if group in taus and (value := getattr(spent, name)) is not None
        ]
        if known:
            found.append(charts.against_cost(known, title, split))
    return found
