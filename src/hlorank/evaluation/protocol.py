"""Evaluates one ranker on one collection and writes the files of its report."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from hlorank.config import EvaluateConfig
from hlorank.data.collection import SPLITS, Collection, Kind, Split
from hlorank.evaluation.graph_report import (
    PREDICTION_COLUMNS,
    GraphReport,
    metric_names,
    per_graph_columns,
    predictions,
    report_graph,
)
from hlorank.evaluation.indices import read_indices
from hlorank.evaluation.submission import open_submission
from hlorank.featurize.features import GraphFeatures
from hlorank.files import METRICS, DataError, atomic_path, resolve_path, write_json
from hlorank.metrics import ranking

PER_GRAPH, PREDICTIONS, SUBMISSION = "per_graph.csv", "predictions.csv", "submission.csv"

Score = Callable[[Split, str, GraphFeatures], NDArray[np.float64]]
"""Scores the distinct configurations of a graph: (distinct,) numbers, larger = slower."""


class Features(Protocol):
    """What evaluation reads of a feature store."""

    def graphs(self, split: Split) -> Sequence[str]:
        """The names of a split's graphs."""

    def open(self, split: Split, name: str) -> GraphFeatures:
        """One graph."""


def _checked(scores: NDArray[np.float64], key: str, distinct: int) -> NDArray[np.float64]:
    if scores.shape != (distinct,):
        raise DataError(key, f"shape ({distinct},), one for each distinct configuration", scores.shape)
    if not np.isfinite(scores).all():
        place = int(np.argmin(np.isfinite(scores)))
        raise DataError(key, "finite numbers", f"{scores[place]} for distinct configuration {place}")
    return scores


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean, None where there are no values or one of them is unknown."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _means(kind: Kind, reports: Sequence[GraphReport]) -> dict[str, Any]:
    """One split of metrics.json: means over the graphs that were ranked (None without any), and counts of the rest."""

    def mean(over: Sequence[GraphReport]) -> dict[str, Any]:
        ranked = [report for report in over if report.metrics]
        withheld = sum(report.withheld for report in over)
        counts = {"graphs": len(ranked), "skipped": len(over) - len(ranked) - withheld, "withheld": withheld}
        means = {name: _mean([report.metrics[name] for report in ranked]) for name in metric_names(kind)}
        return {**counts, **means, "noise_ceiling": _mean([report.noise_ceiling for report in ranked])}

    indexed = [report for report in reports if report.protocol == "indexed"]
    whole = mean([report for report in reports if report.protocol == "all"])
    return {**whole, "indexed": mean(indexed)} if indexed else whole


@contextmanager
def _table(path: Path, columns: Sequence[str]) -> Iterator[csv.DictWriter[str]]:
    """A CSV file with a header that takes its place when the block succeeds; other keys of a row are left out."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        yield writer


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Nested metrics as `valid/kendall_tau`, without those that are unknown."""
    flat: dict[str, float] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}/")
        elif value is not None:
            flat[prefix + key] = float(value)
    return flat


def evaluate_collection(
    features: Features, collection: Collection, score: Score, config: EvaluateConfig, output: Path
) -> dict[str, float]:
    """Scores all configurations of all graphs of some splits and writes the report.

    Under `output`, each file in one step: per_graph.csv, predictions.csv (predicted against measured rank),
    metrics.json (means over graphs by split; those over the index file under `indexed`) and submission.csv, with a row
    for each graph whose labels are withheld. docs/reference/metrics.md says what they hold.

    Args:
        features: the graphs.
        collection: their address.
        score: called once for each graph.
        config: the splits, and the index file of the paper's protocol, which applies to the split valid.
        output: the report's folder.

    Returns:
        What metrics.json holds, by path, such as `valid/kendall_tau` or `valid/indexed/opa`; unknown values left out.

    Raises:
        DataError: scores of another shape or not finite, or a wrong index file.
    """
    splits, kind = [split for split in SPLITS if split in config.splits], collection.kind
    indices: dict[str, NDArray[np.int64]] = {}
    if config.index_file is not None:
        counts = {name: len(features.open("valid", name).row_of) for name in features.graphs("valid")}
        indices = read_indices(resolve_path(config.index_file), counts)

    jobs = [(split, name) for split in splits for name in features.graphs(split)]
    bar = track(jobs, "Scoring", console=Console(stderr=True), disable=not sys.stderr.isatty())
    reports: list[GraphReport] = []
    with (
        open_submission(output / SUBMISSION, collection) as submit,
        _table(output / PREDICTIONS, PREDICTION_COLUMNS) as points,
        _table(output / PER_GRAPH, per_graph_columns(kind)) as per_graph,
    ):
        for split, name in bar:
            graph = features.open(split, name)
            start = time.perf_counter()
            scores = _checked(score(split, name, graph), f"scores of {split}/{name}", graph.distinct)
            seconds = time.perf_counter() - start
            rows = [report_graph(kind, split, graph, scores, seconds)]
            if graph.withheld:
                submit(name, ranking(scores[graph.row_of]))
            elif rows[0].metrics:
                points.writerows(predictions(split, graph, scores))
            if split == "valid" and name in indices:
                rows.append(report_graph(kind, split, graph, scores, seconds, indices[name]))
            elif split == "valid" and config.index_file is not None:
                rows = [replace(rows[0], notes=(*rows[0].notes, f"not in {Path(config.index_file).name}"))]
            per_graph.writerows(report.row for report in rows)
            reports += rows

    metrics: dict[str, Any] = {
        split: _means(kind, [report for report in reports if report.split == split]) for split in splits
    }
    write_json(output / METRICS, metrics)
    return _flatten(metrics)
