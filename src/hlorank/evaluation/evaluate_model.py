"""Evaluation of one model on its collection: tables of metrics, and the model's MLflow run."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from hlorank.config import Config
from hlorank.data.collection import Collection, Split
from hlorank.evaluation.one_segment import one_segment
from hlorank.evaluation.protocol import PER_GRAPH, evaluate_collection
from hlorank.featurize.features import GraphFeatures
from hlorank.files import LOCKS, RUN, SPEC, DataError, read_json
from hlorank.models.graph_loader import GraphLoader
from hlorank.models.scorer import load_scorer
from hlorank.tracking import EXPERIMENT, FEATURES, open_run

MODEL = "model"
"""Tag of an evaluated run: the digest of its model."""
TABLE = "per_graph.json"
"""Artifact of an evaluated run: the table of graphs that MLflow's UI compares between runs."""

log = logging.getLogger(__name__)


def evaluate(config: Config, model_folder: Path, output: Path) -> dict[str, float]:
    """Score every configuration of every graph, write the tables, and log them into the model's MLflow run.

    A model whose run is not in the store, such as one from a DVC remote, gets a new run, tagged `evaluated elsewhere`.

    Args:
        config: the whole configuration.
        model_folder: output of the stage train.
        output: folder of the tables.

    Returns:
        The metrics, by path such as `valid/kendall_tau`.

    Raises:
        DataError: the model is damaged, or was trained on other features or segments.
    """
    import mlflow

    torch.set_num_threads(config.trainer.threads)
    collection = Collection.parse(config.collection)
    scorer = load_scorer(model_folder, config.evaluate.memory_bytes)
    spec, paths = scorer.spec, config.paths
    segments = None if scorer.cut is None else Path(paths.segments) / collection.path
    graphs = GraphLoader(Path(paths.features) / collection.path, segments, torch.device("cpu"))
    if spec.data != graphs.fingerprint:
        expected = f"data {spec.data}, which the model was trained on"
        raise DataError("data", expected, f"{graphs.fingerprint}; re-run the stage train", file=model_folder / SPEC)
    if spec.steps == 0:
        log.warning("%s: the model was never trained; its scores are meaningless", collection)

    def score(split: Split, name: str, graph: GraphFeatures) -> NDArray[np.float64]:
        return scorer.score(graph, graphs.cut(split, name))

    run = read_json(model_folder / RUN)
    about = {EXPERIMENT: run.get(EXPERIMENT), "one_segment": segments is not None and one_segment(segments)}
    metrics = evaluate_collection(graphs.store, collection, score, config.evaluate, output, about)
    tags = {"collection": spec.collection, "method": spec.method, "data": spec.data, "run": "evaluated elsewhere"}
    with open_run(
        config.tracking, f"{spec.method} evaluation {collection}", tags, run["run_id"], locks=Path(paths.state) / LOCKS
    ):
        mlflow.set_tags({FEATURES: graphs.store.fingerprint, MODEL: read_json(model_folder / SPEC)["spec_sha256"]})
        # With a prefix, as valid/kendall_tau is the curve of the training.
        mlflow.log_metrics({f"evaluate/{name}": value for name, value in metrics.items()})
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
