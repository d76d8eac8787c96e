"""Evaluation of one model on its collection: tables of metrics, and the model's MLflow run."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from hlorank.compute import SERIAL, find_device
from hlorank.config import ComputeConfig, Config, EvaluateConfig
from hlorank.data.collection import Collection, Split
from hlorank.evaluation.one_segment import one_segment
from hlorank.evaluation.properties import properties
from hlorank.evaluation.protocol import PER_GRAPH, evaluate_collection
from hlorank.featurize.features import GraphFeatures
from hlorank.files import SPEC, DataError, read_json, recorded_run
from hlorank.metrics import EXPERIMENT
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.serialization import Spec
from hlorank.models.trained_model import TrainedModel, load_trained
from hlorank.runs.find import run_of_model
from hlorank.runs.store import FEATURES, MODEL, connect, open_run

LOGGED = ("kendall_tau", "slowdown_1", "slowdown_5", "slowdown_10")
"""Metrics of an evaluation in MLflow; the others follow from these or are facts of the data: metrics.json has all."""
TABLE = "per_graph.json"
"""Artifact of an evaluated run: the table of graphs that MLflow's UI compares between runs."""

_MIN_NODE_STATES = 10_000_000  # one for each node and distinct configuration; a worker takes seconds to import PyTorch

log = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """Evaluation of one model.

    Attributes:
        metrics: metrics by path, such as `valid/kendall_tau`.
        spec: specification of the model.
        features: fingerprint of the features.
    """

    metrics: dict[str, float]
    spec: Spec
    features: str


@dataclass(frozen=True)
class _ModelScores:
    """Scores of a model for the graphs of its collection; each process reads the files when it needs them.

    Attributes:
        model: the model folder.
        features: the collection's folder under data/features.
        segments: its folder under data/segments, which a model of whole graphs does not need.
        memory_bytes: bound of memory while scoring.
        accelerator: the device, as in `trainer.accelerator`.
        threads: threads of PyTorch; None leaves them as they are.
    """

    model: Path
    features: Path
    segments: Path
    memory_bytes: int
    accelerator: str
    threads: int | None

    def graphs(self, split: Split) -> Sequence[str]:
        """Return the names of a split's graphs."""
        return _loaded(self)[1].store.graphs(split)

    def open(self, split: Split, name: str) -> GraphFeatures:
        """Return one graph."""
        return _loaded(self)[1].store.open(split, name)

    def properties(self, graph: GraphFeatures, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """Return the properties of distinct configurations by name."""
        return properties(graph, rows, _loaded(self)[1].store.spec)

    def score(self, split: Split, name: str, graph: GraphFeatures) -> NDArray[np.float64]:
        """Return the scores of the distinct configurations of a graph."""
        trained, graphs = _loaded(self)
        return trained.score(graph, graphs.open_partition(split, name))


@lru_cache(maxsize=1)
def _loaded(scores: _ModelScores) -> tuple[TrainedModel, GraphLoader]:
    """Return the model and the graphs, which this process reads once."""
    if scores.threads is not None:
        torch.set_num_threads(scores.threads)
    trained = load_trained(scores.model, scores.memory_bytes, scores.accelerator)
    return trained, GraphLoader(scores.features, None if trained.partition is None else scores.segments)


def _is_for_one_process(scores: _ModelScores, splits: Sequence[Split]) -> bool:
    """Return True on a GPU, which one process uses, and where several would need longer to begin than to score."""
    entries = [entry for split in splits for entry in _loaded(scores)[1].store.entries(split).values()]
    little = sum(entry.nodes * entry.distinct for entry in entries) < _MIN_NODE_STATES
    return little or find_device(scores.accelerator).type != "cpu"


def score_model(
    model: Path,
    collection: Collection,
    features: Path,
    segments: Path,
    settings: EvaluateConfig,
    output: Path,
    accelerator: str = "auto",
    threads: int | None = None,
    compute: ComputeConfig = SERIAL,
) -> Evaluation:
    """Score every configuration of every graph, and write the tables.

    Args:
        model: output of the stage train.
        collection: the collection that the model was trained on.
        features: folder of featurized collections.
        segments: folder of partitioned collections.
        settings: the splits, the bound of memory, and the index file.
        output: folder of the tables.
        accelerator: the device, as in `trainer.accelerator`.
        threads: threads of PyTorch in each process, on which the rounding of scores may depend; None leaves them.
        compute: place where graphs are scored.

    Raises:
        DataError: the model is damaged, or was trained on other features or segments.
    """
    _loaded.cache_clear()  # the files may have changed
    folders = features / collection.path, segments / collection.path
    scores = _ModelScores(model, *folders, settings.memory_bytes, accelerator, threads)
    trained, graphs = _loaded(scores)
    spec = trained.spec
    if spec.data != graphs.fingerprint:
        expected = f"data {spec.data}, which the model was trained on"
        raise DataError("data", expected, f"{graphs.fingerprint}; re-run the stage train", file=model / SPEC)
    if spec.steps == 0:
        log.warning("%s: the model was never trained; its scores are meaningless", collection)
    experiment = recorded_run(model).get(EXPERIMENT)
    about = {EXPERIMENT: experiment, "one_segment": trained.partition is not None and one_segment(scores.segments)}
    if compute.form == "processes" and _is_for_one_process(scores, settings.splits):
        compute = SERIAL
    metrics = evaluate_collection(scores, collection, scores.score, settings, output, about, compute)
    return Evaluation(metrics, spec, graphs.store.fingerprint)


def evaluate(config: Config, model_folder: Path, output: Path) -> dict[str, float]:
    """Score every configuration of every graph, write the tables, and log them into the model's MLflow run.

    A model whose run is not in the store, such as one from a DVC remote, gets a new run, tagged `evaluated elsewhere`;
    later evaluations find it by the digest of the model. The model folder is only read.

    Args:
        config: the whole configuration.
        model_folder: output of the stage train.
        output: folder of the tables.

    Returns:
        The metrics, by path such as `valid/kendall_tau`.

    Raises:
        DataError: the model is damaged, or was trained on other features or segments.
        ConnectionError: the store is on a server that cannot be used.
    """
    import mlflow

    store = connect(config.tracking)  # before the scores, which may take hours
    collection = Collection.parse(config.collection)
    features, segments = Path(config.paths.features), Path(config.paths.segments)
    on_cpus = config.compute.form == "ray" and config.compute.gpus == 0
    accelerator = "cpu" if on_cpus else config.trainer.accelerator
    # The same number in every form, and for any number of workers, so that scores are equal.
    threads = 1 if config.trainer.threads == "auto" else config.trainer.threads
    metrics, spec, fingerprint = score_model(
        model_folder, collection, features, segments, config.evaluate, output, accelerator, threads, config.compute
    )
    digest = read_json(model_folder / SPEC)["spec_sha256"]
    tags = {"collection": spec.collection, "method": spec.method, "data": spec.data, "run": "evaluated elsewhere"}
    earlier = run_of_model(mlflow.MlflowClient(store), recorded_run(model_folder).get("run_id"), digest)
    with open_run(config.tracking, f"{spec.method} evaluation {collection}", tags, earlier):
        mlflow.set_tags({FEATURES: fingerprint, MODEL: digest})
        own = {name: value for name, value in metrics.items() if name.rpartition("/")[2] in LOGGED}
        mlflow.log_metrics({f"evaluate/{name}": value for name, value in own.items()})
        mlflow.log_artifacts(str(output), "report")
        _log_table(output / PER_GRAPH)
    taus = {split: metrics[key] for split in config.evaluate.splits if (key := f"{split}/kendall_tau") in metrics}
    log.info(
        "%s: Kendall tau %s", output, ", ".join(f"{tau:.3f} on {split}" for split, tau in taus.items()) or "unknown"
    )
    return metrics


def _log_table(per_graph: Path) -> None:
    """Log the table of graphs into the open run; `mlflow.log_table` would append to that of an earlier evaluation.

    The UI finds a graph's row in each run by the first column, and shows the second column first.
    """
    import mlflow
    from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

    table = pd.read_csv(per_graph)
    key = table.pop("split") + "/" + table.pop("graph")
    key[table.pop("protocol") == "indexed"] += " (indexed)"
    table.insert(0, "graph", key)
    table.insert(1, "kendall_tau", table.pop("kendall_tau"))
    mlflow.log_dict(json.loads(table.to_json(orient="split", index=False, double_precision=4)), TABLE)
    mlflow.set_tag(MLFLOW_LOGGED_ARTIFACTS, json.dumps([{"path": TABLE, "type": "table"}]))
