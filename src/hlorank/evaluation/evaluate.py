"""Evaluation of a model on its collection: scores of all configurations, tables, and means of metrics."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

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
    Row,
    check_scores,
    mean_metrics,
    per_graph_columns,
    predictions,
    properties,
    report_graph,
)
from hlorank.evaluation.submission import open_submission
from hlorank.featurize.features import GraphFeatures
from hlorank.files import (
    METRICS,
    SPEC,
    DataError,
    atomic_path,
    flatten,
    read_json,
    recorded_run,
    resolve_path,
    write_json,
)
from hlorank.metrics import EXPERIMENT, ranking
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.trained_model import TrainedModel, load_trained

SUBMISSION = "submission.csv"

_MIN_NODE_STATES = 10_000_000  # one for each node and distinct configuration; a worker takes seconds to import PyTorch

log = logging.getLogger(__name__)


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
class ModelScores:
    """Graphs of a collection and a model's scores of them; each process reads the files when it needs them."""

    model: Path
    folders: GraphFolders
    memory_bytes: int
    accelerator: str
    threads: int | None

    def graphs(self, split: Split) -> Sequence[str]:
        """Return the names of a split's graphs."""
        return _loaded(self)[1].store.graphs(split)

    def open(self, split: Split, name: str) -> GraphFeatures:
        """Return one graph."""
        return _loaded(self)[1].store.open(split, name)

    def score(self, split: Split, graph: GraphFeatures) -> NDArray[np.float64]:
        """Score the distinct configurations of a graph: (distinct,) numbers, larger = slower."""
        trained, graphs = _loaded(self)
        return trained.score(graph, graphs.open_partition(split, graph.name))

    def properties(self, graph: GraphFeatures, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """Return the properties of distinct configurations by name, as `graph_report.properties`."""
        return properties(graph, rows, _loaded(self)[1].store.spec)

    def is_for_one_process(self, splits: Sequence[Split]) -> bool:
        """Return True on a GPU, which one process uses, and where several would need longer to begin than to score."""
        entries = [entry for split in splits for entry in _loaded(self)[1].store.entries(split).values()]
        little = sum(entry.nodes * entry.distinct for entry in entries) < _MIN_NODE_STATES
        return little or find_device(self.accelerator).type != "cpu"


@lru_cache(maxsize=1)
def _loaded(scores: ModelScores) -> tuple[TrainedModel, GraphLoader]:
    """Return the model and the graphs, which this process reads once."""
    if scores.threads is not None:
        torch.set_num_threads(scores.threads)
    trained = load_trained(scores.model, scores.memory_bytes, scores.accelerator)
    return trained, GraphLoader(scores.folders.features, None if trained.partition is None else scores.folders.segments)


def read_indices(path: Path, configurations: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """Read an index file, a JSON object of graph -> configuration indices, for graphs with their numbers of them.

    A list may contain an index several times, which then counts as often: the published list of unet_3d in
    layout:xla:random has 481 different indices among 1,000. Lists of other graphs are ignored.
    """
    listed = {name: indices for name, indices in read_json(path).items() if name in configurations}
    if not listed:
        graphs = ", ".join(sorted(configurations)[:5]) or "no graph"
        raise DataError("graphs", f"at least one graph of the split valid ({graphs})", "none of them", file=path)
    for name, indices in listed.items():
        last = configurations[name] - 1
        entries = indices if isinstance(indices, list) and indices else [indices]
        if wrong := [index for index in entries if type(index) is not int or not 0 <= index <= last]:
            raise DataError(name, f"a list of configuration indices in 0..{last}", wrong[0], file=path)
    return {name: np.array(indices, dtype=np.int64) for name, indices in listed.items()}


@contextmanager
def _table(path: Path, columns: Sequence[str]) -> Iterator[csv.DictWriter[str]]:
    """Open a CSV file that replaces `path` when the block succeeds; it ignores other keys of a row than `columns`."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        yield writer


def _evaluate_graph(
    task: tuple[Split, str, NDArray[np.int64] | None], scored: ModelScores, kind: Kind
) -> tuple[list[Row], list[Row], dict[str, float], NDArray[np.int64] | None]:
    """Score one graph of a split, with the configurations that the index file lists.

    The result are rows of per_graph.csv over all and over the listed configurations, rows of predictions.csv, partial
    correlations of properties, and the ranking if the labels are withheld.
    """
    split, name, listed = task
    graph = scored.open(split, name)
    distinct = check_scores(
        scored.score(split, graph), f"scores of {split}/{name}", graph.distinct, "distinct configuration"
    )
    scores = distinct[graph.row_of]
    rows = [report_graph(kind, split, graph, scores)]
    points, correlations = list[Row](), dict[str, float]()
    if rows[0]["kendall_tau"] is not None:
        points = predictions(split, graph, scores)
        shown = subsample(graph.label, ANALYSED)
        known = scored.properties(graph, graph.row_of[shown])
        correlations = partial_correlations(known, scores[shown], graph.label[shown])
    if listed is not None:
        rows.append(report_graph(kind, split, graph, scores, listed))
    return rows, points, correlations, ranking(scores) if graph.withheld else None


def evaluate_collection(
    scored: ModelScores,
    collection: Collection,
    config: EvaluateConfig,
    output: Path,
    about: Mapping[str, str | bool | None] = MappingProxyType({}),
    compute: ComputeConfig = SERIAL,
) -> dict[str, float]:
    """Score all configurations of all graphs of the splits, write the tables, each in one step, and return the metrics.

    The tables are per_graph.csv, predictions.csv (predicted against measured rank), properties.csv (properties of
    configurations that the model misjudges), metrics.json (means over graphs by split; means over the index file under
    `indexed`; facts `about` the model) and submission.csv, with a row for each graph whose labels are withheld. The
    metrics are the known values of metrics.json by path, such as `valid/kendall_tau` or `valid/indexed/opa`.
    """
    splits, kind = [split for split in SPLITS if split in config.splits], collection.kind
    indices: dict[str, NDArray[np.int64]] = {}
    if config.index_file is not None:
        counts = {name: len(scored.open("valid", name).row_of) for name in scored.graphs("valid")}
        indices = read_indices(resolve_path(config.index_file), counts)
    tasks = [
        (split, name, indices.get(name) if split == "valid" else None)
        for split in splits
        for name in scored.graphs(split)
    ]
    evaluate_graph = partial(_evaluate_graph, scored=scored, kind=kind)
    rows: dict[Split, list[Row]] = {split: [] for split in splits}
    correlations: dict[Split, list[tuple[str, Mapping[str, float]]]] = {split: [] for split in splits}
    with (
        open_submission(output / SUBMISSION, collection) as submit,
        _table(output / PREDICTIONS, PREDICTION_COLUMNS) as points,
        _table(output / PER_GRAPH, per_graph_columns(kind)) as per_graph,
    ):
        results = map_graphs(evaluate_graph, tasks, compute, "Scoring")
        for (split, name, _), (own, shown, found, order) in zip(tasks, results, strict=True):
            if order is not None:
                submit(name, order)
            if split == "valid" and config.index_file is not None and name not in indices:
                own[0]["note"] = "; ".join(filter(None, [own[0]["note"], f"not in {Path(config.index_file).name}"]))
            points.writerows(shown)
            per_graph.writerows(own)
            rows[split] += own
            correlations[split].append((own[0]["family"], found))
    with _table(output / PROPERTIES, PROPERTY_COLUMNS) as table:
        for split in splits:
            table.writerows({"split": split, **row} for row in mean_effects(correlations[split]))
    metrics: dict[str, Any] = {split: mean_metrics(kind, rows[split]) for split in splits}
    write_json(output / METRICS, metrics | {key: fact for key, fact in about.items() if fact})
    return {key.replace(".", "/"): float(value) for key, value in flatten(metrics).items() if value is not None}


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
    """
    _loaded.cache_clear()  # the files may have changed
    scores = ModelScores(model, folders, settings.memory_bytes, accelerator, threads)
    trained, graphs = _loaded(scores)
    spec = trained.spec
    if spec.data != graphs.fingerprint:
        expected = f"data {spec.data}, which the model was trained on"
        raise DataError("data", expected, f"{graphs.fingerprint}; re-run the stage train", file=model / SPEC)
    if spec.steps == 0:
        log.warning("%s: the model was never trained; its scores are meaningless", collection)
    experiment = recorded_run(model).get(EXPERIMENT)
    about = {EXPERIMENT: experiment, "one_segment": trained.partition is not None and folders.one_segment}
    if compute.form == "processes" and scores.is_for_one_process(settings.splits):
        compute = SERIAL
    return evaluate_collection(scores, collection, settings, output, about, compute)


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
