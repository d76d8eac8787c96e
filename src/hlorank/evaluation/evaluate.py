"""Evaluation of a model on its collection: scores of all configurations, tables, and means of metrics."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hlorank.compute import SERIAL, find_device, map_graphs
from hlorank.config import ComputeConfig, Config, EvaluateConfig
from hlorank.data.collection import SPLITS, Collection, Kind, Split
from hlorank.evaluation.errors import ANALYSED, PROPERTY_COLUMNS, mean_effects, partial_correlations, subsample
from hlorank.evaluation.graph_report import (
    PER_GRAPH,
    PREDICTION_COLUMNS,
    PREDICTIONS,
    PROPERTIES,
    GraphReport,
    check_scores,
    mean_metrics,
    per_graph_columns,
    predictions,
    properties,
    report_graph,
)
from hlorank.evaluation.submission import open_submission
from hlorank.featurize.features import GraphFeatures
from hlorank.files import METRICS, SPEC, DataError, atomic_path, read_json, recorded_run, resolve_path, write_json
from hlorank.metrics import EXPERIMENT, ranking
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.trained_model import TrainedModel, load_trained

SUBMISSION = "submission.csv"

_MIN_NODE_STATES = 10_000_000  # one for each node and distinct configuration; a worker takes seconds to import PyTorch

Score = Callable[[Split, str, GraphFeatures], NDArray[np.float64]]
"""Function that scores the distinct configurations of a graph: (distinct,) numbers, larger = slower."""

log = logging.getLogger(__name__)


class Features(Protocol):
    """The graphs, and what configurations are called."""

    def graphs(self, split: Split) -> Sequence[str]:
        """Return the names of a split's graphs."""

    def open(self, split: Split, name: str) -> GraphFeatures:
        """Return one graph."""

    def properties(self, graph: GraphFeatures, rows: NDArray[np.int64]) -> Mapping[str, NDArray[np.float64]]:
        """Return the properties of distinct configurations by name, as `graph_report.properties`."""


def read_indices(path: Path, configurations: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """Read an index file, a JSON object of graph -> configuration indices, for graphs with their numbers of them.

    A list may contain an index several times, which then counts as often: the published list of unet_3d in
    layout:xla:random has 481 different indices among 1,000. Lists of other graphs are ignored.

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


def _evaluate_graph(
    task: tuple[Split, str, NDArray[np.int64] | None], features: Features, kind: Kind, score: Score
) -> tuple[list[GraphReport], list[dict[str, object]], dict[str, float], NDArray[np.int64] | None]:
    """Score one graph of a split, with the configurations that the index file lists.

    The result are reports over all and over the listed configurations, rows of predictions.csv, partial correlations of
    properties, and the ranking if the labels are withheld.
    """
    split, name, listed = task
    graph = features.open(split, name)
    key = f"scores of {split}/{name}"
    distinct = check_scores(score(split, name, graph), key, graph.distinct, "distinct configuration")
    scores = distinct[graph.row_of]
    reports = [report_graph(kind, split, graph, scores)]
    points, correlations = list[dict[str, object]](), dict[str, float]()
    if reports[0].metrics:
        points = predictions(split, graph, scores)
        shown = subsample(graph.label, ANALYSED)
        known = features.properties(graph, graph.row_of[shown])
        correlations = partial_correlations(known, scores[shown], graph.label[shown])
    if listed is not None:
        reports.append(report_graph(kind, split, graph, scores, listed))
    return reports, points, correlations, ranking(scores) if graph.withheld else None


def evaluate_collection(
    features: Features,
    collection: Collection,
    score: Score,
    config: EvaluateConfig,
    output: Path,
    about: Mapping[str, str | bool | None] = MappingProxyType({}),
    compute: ComputeConfig = SERIAL,
) -> dict[str, float]:
    """Score all configurations of all graphs of the splits, and write the tables, each in one step.

    They are per_graph.csv, predictions.csv (predicted against measured rank), properties.csv (properties of
    configurations that the model misjudges), metrics.json (means over graphs by split; means over the index file under
    `indexed`; facts `about` the model) and submission.csv, with a row for each graph whose labels are withheld. The
    index file of the paper's protocol applies to the split valid. Processes get `features` and `score` by pickle.

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
    reports = list[GraphReport]()
    correlations: dict[Split, list[tuple[str, Mapping[str, float]]]] = {split: [] for split in splits}
    with (
        open_submission(output / SUBMISSION, collection) as submit,
        _table(output / PREDICTIONS, PREDICTION_COLUMNS) as points,
        _table(output / PER_GRAPH, per_graph_columns(kind)) as per_graph,
    ):
        for rows, shown, found, order in map_graphs(evaluate_graph, tasks, compute, "Scoring"):
            if order is not None:
                submit(rows[0].graph, order)
            points.writerows(shown)
            correlations[rows[0].split].append((rows[0].family, found))
            if rows[0].split == "valid" and config.index_file is not None and rows[0].graph not in indices:
                rows[0] = replace(rows[0], notes=(*rows[0].notes, f"not in {Path(config.index_file).name}"))
            per_graph.writerows(report.row for report in rows)
            reports += rows
    with _table(output / PROPERTIES, PROPERTY_COLUMNS) as table:
        for split in splits:
            table.writerows({"split": split, **row} for row in mean_effects(correlations[split]))
    metrics: dict[str, Any] = {
        split: mean_metrics(kind, [report for report in reports if report.split == split]) for split in splits
    }
    write_json(output / METRICS, metrics | {key: fact for key, fact in about.items() if fact})
    return _flatten(metrics)


class GraphFolders(NamedTuple):
    """Folders of a collection's features and segments; a model of whole graphs does not need the segments."""

    features: Path
    segments: Path

    @property
    def one_segment(self) -> bool:
        """True if every graph is one segment, so that methods on segments equal `full`."""
        file = self.segments / METRICS
        return file.is_file() and read_json(file).get("segments_per_graph") == 1


@dataclass(frozen=True)
class _ModelScores:
    """Scores of a model for the graphs of its collection; each process reads the files when it needs them."""

    model: Path
    folders: GraphFolders
    memory_bytes: int
    accelerator: str
    threads: int | None

    def graphs(self, split: Split) -> Sequence[str]:
        return _loaded(self)[1].store.graphs(split)

    def open(self, split: Split, name: str) -> GraphFeatures:
        return _loaded(self)[1].store.open(split, name)

    def properties(self, graph: GraphFeatures, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        return properties(graph, rows, _loaded(self)[1].store.spec)

    def score(self, split: Split, name: str, graph: GraphFeatures) -> NDArray[np.float64]:
        trained, graphs = _loaded(self)
        return trained.score(graph, graphs.open_partition(split, name))


@lru_cache(maxsize=1)
def _loaded(scores: _ModelScores) -> tuple[TrainedModel, GraphLoader]:
    """Return the model and the graphs, which this process reads once."""
    if scores.threads is not None:
        torch.set_num_threads(scores.threads)
    trained = load_trained(scores.model, scores.memory_bytes, scores.accelerator)
    return trained, GraphLoader(scores.folders.features, None if trained.partition is None else scores.folders.segments)


def _is_for_one_process(scores: _ModelScores, splits: Sequence[Split]) -> bool:
    """Return True on a GPU, which one process uses, and where several would need longer to begin than to score."""
    entries = [entry for split in splits for entry in _loaded(scores)[1].store.entries(split).values()]
    little = sum(entry.nodes * entry.distinct for entry in entries) < _MIN_NODE_STATES
    return little or find_device(scores.accelerator).type != "cpu"


def score_model(
    model: Path,
    collection: Collection,
    folders: GraphFolders,
    settings: EvaluateConfig,
    output: Path,
    accelerator: str = "auto",
    threads: int | None = None,
    compute: ComputeConfig = SERIAL,
) -> dict[str, float]:
    """Score every configuration of every graph with a model folder, write the tables, and return the metrics by path.

    `threads` is the number of threads of PyTorch in each process, on which the rounding of scores may depend.

    Raises:
        DataError: the model is damaged, or was trained on other features or segments.
    """
    _loaded.cache_clear()  # the files may have changed
    scores = _ModelScores(model, folders, settings.memory_bytes, accelerator, threads)
    trained, graphs = _loaded(scores)
    spec = trained.spec
    if spec.data != graphs.fingerprint:
        expected = f"data {spec.data}, which the model was trained on"
        raise DataError("data", expected, f"{graphs.fingerprint}; re-run the stage train", file=model / SPEC)
    if spec.steps == 0:
        log.warning("%s: the model was never trained; its scores are meaningless", collection)
    experiment = recorded_run(model).get(EXPERIMENT)
    about = {EXPERIMENT: experiment, "one_segment": trained.partition is not None and folders.one_segment}
    if compute.form == "processes" and _is_for_one_process(scores, settings.splits):
        compute = SERIAL
    return evaluate_collection(scores, collection, scores.score, settings, output, about, compute)


def evaluate(config: Config, model: Path, output: Path) -> dict[str, float]:
    """Do the work of the stage evaluate: `score_model` with the settings of a configuration."""
    collection = Collection.parse(config.collection)
    folders = GraphFolders(*(Path(root) / collection.path for root in (config.paths.features, config.paths.segments)))
    on_cpus = config.compute.form == "ray" and config.compute.gpus == 0
    accelerator = "cpu" if on_cpus else config.trainer.accelerator
    # The same number in every form, and for any number of workers, so that scores are equal.
    threads = 1 if config.trainer.threads == "auto" else config.trainer.threads
    metrics = score_model(model, collection, folders, config.evaluate, output, accelerator, threads, config.compute)
    taus = {split: metrics[key] for split in config.evaluate.splits if (key := f"{split}/kendall_tau") in metrics}
    shown = ", ".join(f"{tau:.3f} on {split}" for split, tau in taus.items())
    log.info("%s: Kendall tau %s", output, shown or "unknown")
    return metrics
