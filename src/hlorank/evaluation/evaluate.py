"""Evaluation of a model on its collection: scores of all configurations, tables, and means of metrics."""

import csv
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hlorank import files
from hlorank.compute import SERIAL, find_device, map_graphs
from hlorank.config import ComputeConfig, Config, EvaluateConfig
from hlorank.data.collection import SPLITS, Collection, Kind, Split
from hlorank.evaluation import graph_report
from hlorank.evaluation.submission import check_orders, graph_order, open_submission
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures
from hlorank.files import METRICS, SPEC, DataError, flatten, read_json
from hlorank.metrics import EXPERIMENT, ranking
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.scoring import TrainedModel, load_trained

SUBMISSION = "submission.csv"
_SCORES = {"tau": "kendall_tau", "slowdown_1": "slowdown_1", "slowdown_5": "slowdown_5"}  # of scores.json

_MIN_NODE_STATES = 10_000_000  # one for each node and distinct configuration; a worker takes seconds to import PyTorch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelScores:
    """Graphs of a collection and a model's scores of them; each process reads the files when it needs them.

    `features` and `segments` are the collection's folders; a model of whole graphs does not need the segments. The
    rounding of scores may depend on `threads`, the number of threads of PyTorch in each process.
    """

    model: Path
    features: Path
    segments: Path
    memory_bytes: int
    accelerator: str = "auto"
    threads: int | None = None

    @property
    def store(self) -> FeatureStore:
        """Reader of the graphs."""
        return _loaded(self)[1].store

    def score(self, split: Split, graph: GraphFeatures) -> NDArray[np.float64]:
        """Score the distinct configurations of a graph: (distinct,) numbers, larger = slower."""
        trained, graphs = _loaded(self)
        return trained.score(graph, graphs.open_partition(split, graph.name))

    @property
    def one_segment(self) -> bool:
        """True if every graph is one segment, so that methods on segments equal `full`."""
        file = self.segments / METRICS
        return file.is_file() and read_json(file).get("segments_per_graph") == 1

    def facts(self) -> dict[str, Any]:
        """Read the files again, refuse a model of other data, and return the facts of the model for metrics.json."""
        _loaded.cache_clear()
        trained, graphs = _loaded(self)
        spec = trained.spec
        if spec.data != graphs.fingerprint:
            expected = f"data {spec.data}, which the model was trained on"
            raise DataError("data", expected, f"{graphs.fingerprint}; re-run the stage train", file=self.model / SPEC)
        facts: dict[str, Any] = {EXPERIMENT: files.recorded_run(self.model).get(EXPERIMENT), "steps": spec.steps}
        facts["model"] = read_json(self.model / SPEC)["spec_sha256"]
        facts["one_segment"] = trained.partition is not None and self.one_segment
        return {name: fact for name, fact in facts.items() if fact}

    def is_for_one_process(self, splits: Sequence[Split]) -> bool:
        """Return True on a GPU, which one process uses, and where several would need longer to begin than to score."""
        entries = [entry for split in splits for entry in self.store.entries(split).values()]
        little = sum(entry.nodes * entry.distinct for entry in entries) < _MIN_NODE_STATES
        return little or find_device(self.accelerator).type != "cpu"


@lru_cache(maxsize=1)
def _loaded(scores: ModelScores) -> tuple[TrainedModel, GraphLoader]:
    """Return the model and the graphs, which this process reads once."""
    if scores.threads is not None:
        torch.set_num_threads(scores.threads)
    trained = load_trained(scores.model, scores.memory_bytes, scores.accelerator)
    return trained, GraphLoader(scores.features, None if trained.partition is None else scores.segments)


def _read_indices(path: Path, scored: ModelScores, collection: Collection) -> dict[str, NDArray[np.int64]]:
    """Read an index file, a JSON object of graph -> configuration indices, for the graphs of the split valid."""
    names = {*scored.store.graphs("valid")}
    listed = {name: indices for name, indices in read_json(path).items() if name in names}
    if not listed:
        expected = f"at least one graph of the split valid ({', '.join(sorted(names)[:5]) or 'no graph'})"
        raise DataError("graphs", expected, "none of them", file=path)
    for name, indices in listed.items():
        last = len(scored.store.open("valid", name).row_of) - 1
        wrong = [indices]
        if isinstance(indices, list) and indices:
            wrong = [index for index in indices if type(index) is not int or not 0 <= index <= last]
        if wrong:
            raise DataError(name, f"a list of configuration indices in 0..{last}", wrong[0], file=path)
    if _has_orders(scored, collection.kind):
        check_orders(path, collection, (scored.store.open("valid", name) for name in listed))
    return {name: np.array(indices, dtype=np.int64) for name, indices in listed.items()}


def _has_orders(scored: ModelScores, kind: Kind) -> bool:
    """Return True if features tell the order of configurations, unlike scaled ones of tiles, or without operands."""
    return kind == "layout" and scored.store.spec.options.operand_layouts


@contextmanager
def _table(path: Path, columns: Sequence[str]) -> Iterator[Callable[[Iterable[graph_report.Row]], None]]:
    """Yield a function that adds the columns of rows to a CSV file, which replaces `path` when the block succeeds."""
    with files.atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        yield lambda rows: writer.writerows({key: files.csv_cell(cell) for key, cell in row.items()} for row in rows)


def _evaluate_graph(
    task: tuple[Split, str, NDArray[np.int64] | None], scored: ModelScores, kind: Kind
) -> tuple[list[graph_report.Row], list[graph_report.Row], dict[str, float], NDArray[np.int64] | None]:
    """Return a graph's rows of per_graph.csv and predictions.csv, correlations, and the ranking without labels."""
    split, name, listed = task
    graph = scored.store.open(split, name)
    distinct = graph_report.check_scores(
        scored.score(split, graph), f"scores of {split}/{name}", graph.distinct, "distinct configuration"
    )
    scores = distinct[graph.row_of]
    rows = [graph_report.report_graph(kind, split, graph, scores)]
    rankable = rows[0]["kendall_tau"] is not None
    points = graph_report.predictions(split, graph, scores) if rankable else []
    correlations = graph_report.misjudged_properties(graph, scores, scored.store.spec) if rankable else {}
    if listed is not None:
        rows.append(graph_report.report_graph(kind, split, graph, scores, listed))
    return rows, points, correlations, ranking(scores) if graph.withheld else None


def evaluate_collection(
    scored: ModelScores, collection: Collection, config: EvaluateConfig, output: Path, compute: ComputeConfig = SERIAL
) -> dict[str, float]:
    """Score all configurations of all graphs of the splits, write the tables, each in one step, and return the metrics.

    The metrics are the known values of metrics.json by path, such as `valid/kendall_tau` or `valid/indexed/opa`.
    """
    facts = scored.facts()
    if compute.form == "processes" and scored.is_for_one_process(config.splits):
        compute = SERIAL
    splits, kind = [split for split in SPLITS if split in config.splits], collection.kind
    indices: dict[str, NDArray[np.int64]] = {}
    if config.index_file is not None:
        indices = _read_indices(files.resolve_path(config.index_file), scored, collection)
    tasks = [
        (split, name, indices.get(name) if split == "valid" else None)
        for split in splits
        for name in scored.store.graphs(split)
    ]
    evaluate_graph = partial(_evaluate_graph, scored=scored, kind=kind)
    rows: dict[Split, list[graph_report.Row]] = {split: [] for split in splits}
    correlations: dict[Split, list[tuple[str, Mapping[str, float]]]] = {split: [] for split in splits}
    with (
        open_submission(output / SUBMISSION, collection) as submit,
        _table(output / graph_report.PREDICTIONS, graph_report.PREDICTION_COLUMNS) as points,
        _table(output / graph_report.PER_GRAPH, graph_report.per_graph_columns(kind)) as per_graph,
    ):
        results = map_graphs(evaluate_graph, tasks, compute, "Scoring")
        for (split, name, _), (graph_rows, shown, found, order) in zip(tasks, results, strict=True):
            if order is not None:
                submit(name, order, graph_order(scored.store.open(split, name)) if _has_orders(scored, kind) else None)
            if split == "valid" and config.index_file is not None and name not in indices:
                note = f"not in {Path(config.index_file).name}"
                graph_rows[0]["note"] = "; ".join(filter(None, [graph_rows[0]["note"], note]))
            points(shown)
            per_graph(graph_rows)
            rows[split] += graph_rows
            correlations[split].append((graph_rows[0]["family"], found))
    with _table(output / graph_report.PROPERTIES, graph_report.PROPERTY_COLUMNS) as table:
        for split in splits:
            table({"split": split, **row} for row in graph_report.mean_effects(correlations[split]))
    metrics: dict[str, Any] = {split: graph_report.mean_metrics(kind, rows[split]) for split in splits}
    files.write_json(output / METRICS, metrics | facts)
    files.write_json(output / files.SCORES, {split: _shown(found) for split, found in metrics.items()})
    return {key.replace(".", "/"): float(value) for key, value in flatten(metrics).items() if value is not None}


def _shown(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the metrics of a split that DVC compares, with digits that seldom differ between machines."""
    return {name: None if (value := metrics.get(key)) is None else round(value, 3) for name, key in _SCORES.items()}


def evaluate(config: Config, model: Path, output: Path) -> dict[str, float]:
    """Do the work of the stage evaluate: `evaluate_collection` with the settings of a configuration."""
    collection = Collection.parse(config.collection)
    features, segments = (Path(root) / collection.path for root in (config.paths.features, config.paths.segments))
    on_cpus = config.compute.form == "ray" and config.compute.gpus == 0
    accelerator = "cpu" if on_cpus else config.trainer.accelerator
    # The same number in every form, and for any number of workers, so that scores are equal.
    threads = 1 if config.trainer.threads == "auto" else config.trainer.threads
    scored = ModelScores(model, features, segments, config.evaluate.memory_bytes, accelerator, threads)
    metrics = evaluate_collection(scored, collection, config.evaluate, output, config.compute)
    taus = {split: metrics[key] for split in config.evaluate.splits if (key := f"{split}/kendall_tau") in metrics}
    shown = ", ".join(f"{tau:.3f} on {split}" for split, tau in taus.items())
    log.info("%s: Kendall tau %s", output, shown or "unknown")
    return metrics
