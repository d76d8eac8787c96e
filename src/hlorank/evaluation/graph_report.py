"""Results of one graph: its metrics, notes, and points of the plot of ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hlorank.data.collection import Kind, Split
from hlorank.evaluation.errors import ANALYSED, WRONG, noise_width, spread, wrong_pairs
from hlorank.featurize.features import GraphFeatures
from hlorank.metrics import (
    kendall_tau,
    noise_ceiling,
    ordered_pair_accuracy,
    repeat_ceiling,
    top_k_slowdown,
)

SLOWDOWN_AT: dict[Kind, tuple[int, ...]] = {"layout": (1, 5, 10, 100), "tile": (1, 5, 10)}
PREDICTIONS_PER_GRAPH = 200
PREDICTION_COLUMNS = ("split", "graph", "configuration", "predicted_rank", "measured_rank")


def metric_names(kind: Kind) -> list[str]:
    """Return the keys of `rank_metrics`, in order."""
    return ["kendall_tau", "repeat_ceiling", "opa", *(f"slowdown_{k}" for k in SLOWDOWN_AT[kind]), "kaggle"]


def per_graph_columns(kind: Kind) -> list[str]:
    """Return the columns of per_graph.csv."""
    identity = ["split", "graph", "family", "protocol", "nodes", "configurations", "distinct"]
    noise = ["split_half_tau", "noise_ceiling", "noise_width"]
    return [*identity, *metric_names(kind), *noise, "wrong", *WRONG, "note"]


def rank_metrics(
    kind: Kind, row_of: NDArray[np.int64], score: NDArray[np.float64], label: NDArray[np.float64]
) -> dict[str, float]:
    """Return all metrics of the ranking of one graph.

    Args:
        kind: kind of the configurations, which determines the K of the slowdowns and Kaggle's score.
        row_of: (configurations,) index of the distinct configuration that each one is.
        score: (configurations,) larger = slower.
        label: (configurations,) positive, at least two different values.

    Returns:
        kendall_tau; repeat_ceiling, the Kendall tau of a perfect model, whose repeats tie; opa (ordered pair accuracy);
        slowdown_<K>; kaggle, 1 - slowdown_5 for tiles and kendall_tau for layouts.
    """
    tau = kendall_tau(score, label)
    slowdown = {f"slowdown_{k}": top_k_slowdown(score, label, k) for k in SLOWDOWN_AT[kind]}
    return {
        "kendall_tau": tau,
        "repeat_ceiling": repeat_ceiling(np.unique(row_of, return_inverse=True)[1], label),
        "opa": ordered_pair_accuracy(score, label),
        **slowdown,
        "kaggle": 1.0 - slowdown["slowdown_5"] if kind == "tile" else tau,
    }


@dataclass(frozen=True)
class GraphReport:
    """One graph under one protocol: a row of per_graph.csv.

    Attributes:
        split: the graph's split.
        graph: its name.
        family: its model family.
        protocol: `all` configurations, or those `indexed` by the index file.
        nodes: nodes of the graph.
        configurations: configurations of this protocol, repeated ones included.
        distinct: distinct ones among them.
        withheld: True if the labels are withheld.
        metrics: the result of `rank_metrics`; empty if labels are withheld or all runtimes are equal.
        split_half_tau: Kendall tau between two halves of the measurements; None if nothing was measured twice.
        noise_ceiling: highest Kendall tau against such measurements (`hlorank.metrics.noise_ceiling`); None as above.
        noise_width: noise of the ratio of two runtimes (`hlorank.evaluation.errors.noise_width`); None as above, or if
            `metrics` is empty.
        errors: the result of `wrong_pairs`; empty if `metrics` is.
        notes: remarks for the reader of the row.
    """

    split: Split
    graph: str
    family: str
    protocol: Literal["all", "indexed"]
    nodes: int
    configurations: int
    distinct: int
    withheld: bool
    metrics: dict[str, float]
    split_half_tau: float | None
    noise_ceiling: float | None
    noise_width: float | None
    errors: dict[str, float]
    notes: tuple[str, ...]

    @property
    def row(self) -> dict[str, object]:
        """The values by column of per_graph.csv."""
        return {**asdict(self), **self.metrics, **self.errors, "note": "; ".join(self.notes)}


def report_graph(
    kind: Kind,
    split: Split,
    graph: GraphFeatures,
    scores: NDArray[np.float64],
    listed: NDArray[np.int64] | None = None,
) -> GraphReport:
    """Compute the results of one graph under one protocol.

    Args:
        kind: kind of its configurations.
        split: the graph's split.
        graph: the graph.
        scores: (configurations,) larger = slower; equal for repeated ones.
        listed: (listed,) the configurations of the index file, with repeats; None = all configurations.
    """
    rows = np.arange(len(graph.row_of)) if listed is None else listed
    row_of, label = graph.row_of[rows], graph.label[rows]
    distinct = len(np.unique(row_of))
    rankable = bool(label.min() < label.max())
    notes = []
    if graph.withheld:
        notes.append("labels withheld")
    elif not rankable:
        notes.append("fewer than two distinct runtimes")
    if distinct == 1:
        notes.append("one distinct configuration")
    if repeated := len(rows) - len(np.unique(rows)):
        notes.append(f"{repeated} of {len(rows)} listed indices are repeats")
    half = graph.split_half_tau
    shown = spread(label, ANALYSED)
    width = None if half is None or not rankable else noise_width(label[shown], half)
    return GraphReport(
        split=split,
        graph=graph.name,
        family=graph.family,
        protocol="all" if listed is None else "indexed",
        nodes=graph.nodes,
        configurations=len(rows),
        distinct=distinct,
        withheld=graph.withheld,
        metrics=rank_metrics(kind, row_of, scores[rows], label) if rankable else {},
        split_half_tau=half,
        noise_ceiling=None if half is None else noise_ceiling(half),
        noise_width=width,
        errors=wrong_pairs(scores[rows][shown], label[shown], width) if rankable else {},
        notes=tuple(notes),
    )


def predictions(split: Split, graph: GraphFeatures, scores: NDArray[np.float64]) -> list[dict[str, object]]:
    """Return predicted and measured rank of at most 200 configurations, spread evenly over the measured ranking.

    Ranks are fractions, 0 = fastest and 1 = slowest, so that graphs of all sizes share one plot. Ties get the mean of
    their ranks, as an order by index was neither predicted nor measured.

    Args:
        split: the graph's split.
        graph: a graph of at least two configurations.
        scores: (configurations,) larger = slower.

    Returns:
        Rows of predictions.csv, values by column.
    """
    from scipy.stats import rankdata

    last = len(graph.label) - 1
    shown = spread(graph.label, PREDICTIONS_PER_GRAPH)
    predicted = (rankdata(scores) - 1) / last
    measured = (rankdata(graph.label) - 1) / last
    rows = zip(shown.tolist(), predicted[shown].round(5).tolist(), measured[shown].round(5).tolist(), strict=True)
    return [dict(zip(PREDICTION_COLUMNS, (split, graph.name, *row), strict=True)) for row in rows]
