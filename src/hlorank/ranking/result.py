"""Rankings as JSON values."""

from typing import Any

import numpy as np

from hlorank.data.collection import measured_backend, split_half_tau
from hlorank.data.configurations import LayoutConfigurations
from hlorank.data.graph import Int64
from hlorank.evaluation.graph_report import rank_metrics
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.featurize.features import distinct_rows
from hlorank.featurize.likeness import distance
from hlorank.hlo.layout_json import NamedNodes
from hlorank.metrics import Float64, noise_ceiling, ranking
from hlorank.ranking.inputs import InputGraph

LEAST_TAU = 0.5
"""Kendall tau between the halves of a measurement below which a comparison with it means little."""

_DOUBTS = {
    "unlike": "the program is unlike those of training: {found:.1f} times as far from the nearest of them as "
    "95 % of these are from other families; measure the first configurations before you use one",
    "alike": "the model gives all {expected} configurations the same score, so that their order means nothing",
    "hardware": "the file is of {found}, the model of {expected}: it knows nothing of that hardware",
    "noise": "two halves of the measurement agree with a Kendall tau of {found:.2f} only (below {limit}): a comparison "
    "with it says little",
}


def top_configurations(scores: Float64, count: int, order: Int64 | None = None) -> list[dict[str, Any]]:
    """Return `rank` (from 1), `configuration` (its index) and `score` of the first configurations of an order."""
    indices = (ranking(scores) if order is None else order)[:count].tolist()
    return [
        {"rank": rank, "configuration": index, "score": float(scores[index])}
        for rank, index in enumerate(indices, start=1)
    ]


def ranked_graph(given: InputGraph, scores: Float64, order: Int64, count: int, *, compare: bool) -> dict[str, Any]:
    """Return the ranking of a graph that was read from a file, as JSON values of `hlorank rank --json`.

    Returns:
        `file`, `graph`, `configurations` (their number), `drawn` and `stage` (see `InputGraph`), and `top`, see
        `top_configurations`, with the `changes` of layout configurations of a module. `compare` adds `runtime_ns`,
        `slowdown` and `measured_rank` to `top` unless runtimes are withheld, and `comparison`: the values of
        `rank_metrics`, and `noise_ceiling`, null where nothing was measured twice; null where all runtimes are equal.

    Raises:
        DataError: the JSON file next to a measured graph is damaged.
    """
    measured = given.measured
    top = top_configurations(scores, count, order)
    if given.module is not None and isinstance(measured.configurations, LayoutConfigurations):
        assigned = given.stage is not None and given.stage["found"] == "after_layout_assignment"
        nodes = NamedNodes(given.module, measured.configurations.node_ids, assigned=assigned)
        for entry, row in zip(top, measured.configurations.values(order[:count]), strict=True):
            entry["changes"] = [dict(vars(change)) for change in nodes.changes(row)]
    ranked: dict[str, Any] = {
        "file": str(given.file),
        "graph": measured.name,
        "configurations": len(scores),
        "drawn": given.drawn,
        "stage": given.stage,
        "top": top,
    }
    if compare:
        ranked["comparison"] = _comparison(given, scores)
        if not measured.measurements.withheld:
            label = measured.measurements.label
            ranks = np.empty(len(label), dtype=np.int64)
            ranks[ranking(label)] = np.arange(1, len(label) + 1)
            for entry in top:
                index = entry["configuration"]
                entry["runtime_ns"] = int(measured.measurements.runtime[index])
                entry["slowdown"] = float(label[index] / label.min() - 1)
                entry["measured_rank"] = int(ranks[index])
    return ranked


def doubts(given: InputGraph, scores: Float64, spec: FeatureSpec) -> list[dict[str, Any]]:
    """Return why a ranking may mean little: objects of `doubt`, `found`, and the `limit` or what is `expected`.

    They are `unlike`, the distance of the graph to the nearest graph of training (`hlorank.featurize.likeness`) in
    units of the limit, if it is more than 1; `alike`, the number of different scores of several configurations, if it
    is 1; `hardware`, the backend of a measured graph, if it is not the model's; and `noise`, the Kendall tau between
    the halves of its measurement, if it is below `LEAST_TAU`.

    Raises:
        DataError: the JSON file next to a measured graph is damaged.
    """
    found = list[dict[str, Any]]()
    if spec.trained_limit > 0:
        away = distance(given.measured.graph, spec.trained_graphs) / spec.trained_limit
        if away > 1:
            found.append({"doubt": "unlike", "found": away, "limit": 1})
    if len(scores) > 1 and np.ptp(scores) <= 1e-9 * np.abs(scores).max():
        found.append({"doubt": "alike", "found": 1, "expected": len(scores)})
    if given.file.suffix == ".npz":
        backend = measured_backend(given.file)
        if backend and spec.backend and backend != spec.backend:
            found.append({"doubt": "hardware", "found": backend, "expected": spec.backend})
        half = split_half_tau(given.file)
        if half is not None and half < LEAST_TAU:
            found.append({"doubt": "noise", "found": half, "limit": LEAST_TAU})
    return found


def doubt_text(doubt: dict[str, Any]) -> str:
    """Return a line about one of `doubts`."""
    return _DOUBTS[doubt["doubt"]].format_map(doubt)


def _comparison(given: InputGraph, scores: Float64) -> dict[str, float | None] | None:
    configurations, label = given.measured.configurations, given.measured.measurements.label
    if label.min() == label.max():  # also where runtimes are withheld
        return None
    layouts = isinstance(configurations, LayoutConfigurations)
    rows = configurations.codes if isinstance(configurations, LayoutConfigurations) else configurations.feat
    metrics = rank_metrics("layout" if layouts else "tile", distinct_rows(rows)[1], scores, label)
    half = split_half_tau(given.file) if given.file.suffix == ".npz" else None
    return {**metrics, "noise_ceiling": None if half is None else noise_ceiling(half)}
