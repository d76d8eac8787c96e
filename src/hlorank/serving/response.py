"""What a ranking is told as: the first configurations, and how they compare with known runtimes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.collection import split_half_tau
from hlorank.data.graph import LayoutConfigurations
from hlorank.evaluation.graph_report import rank_metrics
from hlorank.featurize.distinct import distinct_rows
from hlorank.hlo.layout_space import to_plain
from hlorank.metrics import noise_ceiling, ranking
from hlorank.serving.inputs import Input


def first(scores: NDArray[np.float64], order: NDArray[np.int64], count: int) -> list[dict[str, Any]]:
    """The first configurations of a ranking, as JSON.

    Args:
        scores: (configurations,) larger = slower.
        order: (configurations,) their ranking.
        count: how many, at most.

    Returns:
        `rank` from 1, `configuration` (its index) and `score` of each.
    """
    indices = order[:count].tolist()
    return [
        {"rank": rank, "configuration": index, "score": float(scores[index])}
        for rank, index in enumerate(indices, start=1)
    ]


def answer(
    given: Input, scores: NDArray[np.float64], order: NDArray[np.int64], count: int, *, compare: bool
) -> dict[str, Any]:
    """A ranked graph, as JSON.

    Args:
        given: the graph.
        scores: (configurations,) larger = slower.
        order: (configurations,) their ranking.
        count: how many of the first configurations.
        compare: with the runtimes in the file.

    Returns:
        `file`, `graph`, `configurations` (how many), `drawn` (whether they are drawn candidates) and `top`, as `first`
        gives it. A drawn candidate also has `layouts`, as in the files of `hlorank autotune`. With `compare`, and
        unless the runtimes are withheld, the first configurations also have `runtime_ns`, `slowdown` (against the
        best) and `measured_rank`. Then there is `comparison`, too: what `rank_metrics` gives, and `noise_ceiling`, null
        where nothing was measured twice; or null where there are no different runtimes.

    Raises:
        DataError: the JSON file beside a measured graph is damaged.
    """
    measured = given.measured
    top = first(scores, order, count)
    if given.drawn is not None and isinstance(measured.configurations, LayoutConfigurations):
        for one, row in zip(top, measured.configurations.values(order[:count]), strict=True):
            one["layouts"] = to_plain(given.drawn, row)
    told: dict[str, Any] = {
        "file": str(given.file),
        "graph": measured.name,
        "configurations": len(scores),
        "drawn": given.drawn is not None,
        "top": top,
    }
    if compare:
        told["comparison"] = _comparison(given, scores)
        if not measured.measurements.withheld:
            label = measured.measurements.label
            ranks = np.empty(len(label), dtype=np.int64)
            ranks[ranking(label)] = np.arange(1, len(label) + 1)
            for one in top:
                index = one["configuration"]
                one["runtime_ns"] = int(measured.measurements.runtime[index])
                one["slowdown"] = float(label[index] / label.min() - 1)
                one["measured_rank"] = int(ranks[index])
    return told


def _comparison(given: Input, scores: NDArray[np.float64]) -> dict[str, float | None] | None:
    configurations, label = given.measured.configurations, given.measured.measurements.label
    if label.min() == label.max():  # also where they are withheld
        return None
    layouts = isinstance(configurations, LayoutConfigurations)
    rows = configurations.codes if isinstance(configurations, LayoutConfigurations) else configurations.feat
    metrics = rank_metrics("layout" if layouts else "tile", distinct_rows(rows)[1], scores, label)
    half = split_half_tau(given.file) if given.file.suffix == ".npz" else None
    return {**metrics, "noise_ceiling": None if half is None else noise_ceiling(half)}
