"""Evaluation of one ranker on one collection: all configurations, and the paper's protocol over an index file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hlorank.compute import SERIAL, map_graphs
from hlorank.config import ComputeConfig, EvaluateConfig
from hlorank.data.collection import SPLITS, Collection, Kind, Split
from hlorank.evaluation.errors import ANALYSED, PROPERTY_COLUMNS, effects, mean_effects, spread
from hlorank.evaluation.graph_report import (
    PREDICTION_COLUMNS,
    GraphReport,
    metric_names,
    per_graph_columns,
    predictions,
    report_graph,
)
from hlorank.evaluation.submission import open_submission
from hlorank.featurize.features import GraphFeatures
from hlorank.files import METRICS, DataError, atomic_path, read_json, resolve_path, write_json
from hlorank.metrics import ranking

PER_GRAPH, PREDICTIONS, PROPERTIES, SUBMISSION = "per_graph.csv", "predictions.csv", "properties.csv", "submission.csv"

Score = Callable[[Split, str, GraphFeatures], NDArray[np.float64]]
"""Function that scores the distinct configurations of a graph: (distinct,) numbers, larger = slower."""


class Features(Protocol):
    """The graphs, and what configurations are called."""

    def graphs(self, split: Split) -> Sequence[str]:
        """Return the names of a split's graphs."""

    def open(self, split: Split, name: str) -> GraphFeatures:
        """Return one graph."""

    def properties(self, graph: GraphFeatures, rows: NDArray[np.int64]) -> Mapping[str, NDArray[np.float64]]:
        """Return the properties of distinct configurations by name, as `hlorank.evaluation.properties`."""


def read_indices(path: Path, configurations: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """Read an index file, a JSON object of graph -> configuration indices.

    A list may contain an index several times, which then counts as often: the published list of unet_3d in
    layout:xla:random has 481 different indices among 1,000. Lists of other graphs are ignored.

    Args:
        path: the file.
        configurations: graph -> number of configurations.

    Returns:
        Graph -> (listed,) int64, for each graph of `configurations` that the file lists.

    Raises:
        DataError: the file is not a JSON object or lists none of the graphs, or a list is empty or contains anything
            but indices of configurations.
    """
    listed = {name: indices for name, indices in read_json(path).items() if name in configurations}
    if not listed:
        graphs = ", ".join(sorted(configurations)[:5]) or "no graph"
        raise DataError("graphs", f"at least one graph of the split valid ({graphs})", "none of them", file=path)
    for name, indices in listed.items():
        count = configurations[name]
        if not isinstance(indices, list) or not indices:
            raise DataError(name, "a list of configuration indices", indices, file=path)
        if wrong := [index for index in indices if type(index) is not int or not 0 <= index < count]:
            raise DataError(name, f"configuration indices in 0..{count - 1}", wrong[0], file=path)
    return {name: np.array(indices, dtype=np.int64) for name, indices in listed.items()}


def check_scores(scores: NDArray[np.float64], key: str, count: int, noun: str) -> NDArray[np.float64]:
    """Return scores that are one finite number for each configuration.

    Args:
        scores: the scores.
        key: whose scores they are, for errors.
        count: number of configurations.
        noun: what each of them is for, for errors.

    Raises:
        DataError: the shape is not (count,), or a score is NaN or infinite.
    """
    if scores.shape != (count,):
        raise DataError(key, f"shape ({count},), one for each {noun}", scores.shape)
    if not np.isfinite(scores).all():
        place = int(np.argmin(np.isfinite(scores)))
        raise DataError(key, "finite numbers", f"{scores[place]} for {noun} {place}")
    return scores


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, None without values or if one of them is unknown."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def mean_metrics(kind: Kind, reports: Sequence[GraphReport]) -> dict[str, Any]:
    """Return one split of metrics.json: means over the ranked graphs (None without any), and counts of the others."""

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
    """Open a CSV file that replaces `path` when the block succeeds; it ignores other keys of a row than `columns`."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        yield writer


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return nested metrics as `valid/kendall_tau`, without unknown ones."""
    flat: dict[str, float] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}/")
        elif value is not None:
            flat[prefix + key] = float(value)
    return flat


class _Evaluated(NamedTuple):
    """Results of one graph.

    Attributes:
        reports: over all configurations, and over those of the index file if it lists the graph.
        points: rows of predictions.csv.
        effects: what properties tell beyond the scores; see `hlorank.evaluation.errors.effects`.
        ranking: (configurations,) int64 if its labels are withheld.
    """

    reports: list[GraphReport]
    points: list[dict[str, object]]
    effects: dict[str, float]
    ranking: NDArray[np.int64] | None


def _evaluate_graph(
    task: tuple[Split, str, NDArray[np.int64] | None], features: Features, kind: Kind, score: Score
) -> _Evaluated:
    """Score one graph of a split, with the configurations that the index file lists."""
    split, name, listed = task
    graph = features.open(split, name)
    key = f"scores of {split}/{name}"
    distinct = check_scores(score(split, name, graph), key, graph.distinct, "distinct configuration")
    scores = distinct[graph.row_of]
    reports = [report_graph(kind, split, graph, scores)]
    points, found = list[dict[str, object]](), dict[str, float]()
    if reports[0].metrics:
        points = predictions(split, graph, scores)
        shown = spread(graph.label, ANALYSED)
        found = effects(features.properties(graph, graph.row_of[shown]), scores[shown], graph.label[shown])
    if listed is not None:
        reports.append(report_graph(kind, split, graph, scores, listed))
    return _Evaluated(reports, points, found, ranking(scores) if graph.withheld else None)


def evaluate_collection(
    features: Features,
    collection: Collection,
    score: Score,
    config: EvaluateConfig,
    output: Path,
    about: Mapping[str, str | bool | None] = MappingProxyType({}),
    compute: ComputeConfig = SERIAL,
) -> dict[str, float]:
    """Score all configurations of all graphs of some splits, and write the tables.

    Each file in `output` is written in one step: per_graph.csv, predictions.csv (predicted against measured rank),
    properties.csv (properties of configurations that the model misjudges), metrics.json (means over graphs by split;
    those over the index file under `indexed`) and submission.csv, with a row for each graph whose labels are withheld.
    docs/reference/metrics.md describes them.

    Args:
        features: the graphs.
        collection: their address.
        score: called once for each graph.
        config: the splits, and the index file of the paper's protocol, which applies to the split valid.
        output: folder of the tables.
        about: facts about the model, which metrics.json holds too if they are not None or False.
        compute: place where graphs are scored; worker processes get `features` and `score` by pickle.

    Returns:
        The values of metrics.json by path, such as `valid/kendall_tau` or `valid/indexed/opa`, without unknown ones.

    Raises:
        DataError: scores have another shape or are not finite, or the index file is wrong.
    """
    splits, kind = [split for split in SPLITS if split in config.splits], collection.kind
    indices: dict[str, NDArray[np.int64]] = {}
    if config.index_file is not None:
        counts = {name: len(features.open("valid", name).row_of) for name in features.graphs("valid")}
        indices = read_indices(resolve_path(config.index_file), counts)

    tasks = [
        (split, name, indices.get(name) if split == "valid" else None)
        for split in splits
        for name in features.graphs(split)
    ]
    evaluate_graph = partial(_evaluate_graph, features=features, kind=kind, score=score)
    reports: list[GraphReport] = []
    found: dict[Split, list[tuple[str, Mapping[str, float]]]] = {split: [] for split in splits}
    with (
        open_submission(output / SUBMISSION, collection) as submit,
        _table(output / PREDICTIONS, PREDICTION_COLUMNS) as points,
        _table(output / PER_GRAPH, per_graph_columns(kind)) as per_graph,
    ):
        for rows, shown, told, order in map_graphs(evaluate_graph, tasks, compute, "Scoring"):
            if order is not None:
                submit(rows[0].graph, order)
            points.writerows(shown)
            found[rows[0].split].append((rows[0].family, told))
            if rows[0].split == "valid" and config.index_file is not None and rows[0].graph not in indices:
                rows[0] = replace(rows[0], notes=(*rows[0].notes, f"not in {Path(config.index_file).name}"))
            per_graph.writerows(report.row for report in rows)
            reports += rows

    with _table(output / PROPERTIES, PROPERTY_COLUMNS) as table:
        for split in splits:
            table.writerows({"split": split, **row} for row in mean_effects(found[split]))
    metrics: dict[str, Any] = {
        split: mean_metrics(kind, [report for report in reports if report.split == split]) for split in splits
    }
    write_json(output / METRICS, metrics | {key: fact for key, fact in about.items() if fact})
    return _flatten(metrics)
