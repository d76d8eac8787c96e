"""Evaluations in MLflow: their record, in the run of the training, and the trainings of a report."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection
from hlorank.evaluation.graph_report import PER_GRAPH, PREDICTIONS, PROPERTIES
from hlorank.evaluation.report.trainings import Run, Score, Tracked, model_and_report_folders, read_run, scored
from hlorank.featurize.feature_store import GraphStore
from hlorank.files import (
    HISTORY,
    METRICS,
    RUN,
    SPEC,
    WEIGHTS,
    code_digest,
    fingerprint,
    read_json,
    recorded_run,
)
from hlorank.runs.find import download_files, run_of_model, tracked, trainings_of
from hlorank.runs.store import EVALUATION, FEATURES, MODEL, connect, open_experiment

LOGGED = ("kendall_tau", "slowdown_1", "slowdown_5", "slowdown_10")
"""Metrics of an evaluation in MLflow; the others follow from these or are facts of the data: metrics.json has all."""
TABLE = "per_graph.json"
"""Artifact of an evaluated run: the table of graphs that MLflow's UI compares between runs."""

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_FILES = {"model": (SPEC, HISTORY, RUN), "report": (METRICS, PER_GRAPH, PREDICTIONS, PROPERTIES)}

_log = logging.getLogger(__name__)


class EvaluationRun:
    """Run of MLflow that an evaluation is logged into: that of the training, whose status never changes.

    A model whose run is not in the store, such as one from a DVC remote, gets a new run, tagged `evaluated elsewhere`;
    later evaluations find it by the digest of the model. It connects at once, before the scores, which may take hours.

    Raises:
        ConnectionError: the store is on a server that cannot be used.
    """

    def __init__(self, config: Config, model: Path) -> None:
        from mlflow.tracking import MlflowClient

        self._config, self._model, self._store = config, model, connect(config.tracking)
        self._client = MlflowClient(self._store)

    @property
    def tracked(self) -> Tracked | None:
        """Record of the training, None if the store has none."""
        return tracked(self._model, self._store)

    @cached_property
    def _spec(self) -> Mapping[str, str]:
        return read_json(self._model / SPEC)

    def log(self, metrics: Mapping[str, float], output: Path) -> None:
        """Log metrics by path, such as `valid/kendall_tau`, and the folder of tables and report."""
        digest = self._spec["spec_sha256"]
        if (earlier := run_of_model(self._client, recorded_run(self._model).get("run_id"), digest)) is not None:
            self._log(earlier, metrics, output)
            return
        tags = {key: str(self._spec[key]) for key in ("collection", "method", "data")}
        name = f"{tags['method']} evaluation {self._config.collection}"
        experiment = open_experiment(self._config.tracking)
        created = self._client.create_run(experiment, tags={**tags, "run": "evaluated elsewhere"}, run_name=name)
        try:
            self._log(created.info.run_id, metrics, output)
        except BaseException:
            self._client.set_terminated(created.info.run_id, "FAILED")
            raise
        self._client.set_terminated(created.info.run_id, "FINISHED")

    def _log(self, run_id: str, metrics: Mapping[str, float], output: Path) -> None:
        from mlflow.entities import Metric, RunTag
        from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

        path = Collection.parse(self._config.collection).path
        features = GraphStore(Path(self._config.paths.features) / path).fingerprint
        # The fingerprint of the features has their code.
        code = code_digest("hlorank.evaluation.evaluate", "hlorank.metrics", "hlorank.models")
        tags = {FEATURES: features, MODEL: self._spec["spec_sha256"], EVALUATION: fingerprint(code)}
        tags[MLFLOW_LOGGED_ARTIFACTS] = json.dumps([{"path": TABLE, "type": "table"}])
        now = round(time.time() * 1000)
        logged = {key: value for key, value in metrics.items() if key.rpartition("/")[2] in LOGGED}
        values = [Metric(f"evaluate/{key}", value, now, 0) for key, value in logged.items()]
        self._client.log_artifacts(run_id, str(output), "report")
        self._client.log_dict(run_id, _ui_table(output / PER_GRAPH), TABLE)
        self._client.log_batch(run_id, values, tags=[RunTag(key, value) for key, value in tags.items()])


def _ui_table(per_graph: Path) -> dict[str, object]:
    """Return the table of graphs as MLflow's UI reads it; `mlflow.log_table` would append to an earlier evaluation.

    The UI finds a graph's row in each run by the first column, and shows the second column first.
    """
    table = pd.read_csv(per_graph)
    key = table.pop("split") + "/" + table.pop("graph")
    key[table.pop("protocol") == "indexed"] += " (indexed)"
    table.insert(0, "graph", key)
    table.insert(1, "kendall_tau", table.pop("kendall_tau"))
    found: dict[str, object] = json.loads(table.to_json(orient="split", index=False, double_precision=4))
    return found


def find_runs(names: Sequence[str], score: Score | None = None) -> list[Run]:
    """Find trainings for a report by name, each once.

    Args:
        names: model folders, such as models/layout/cpu/random/gst, or report folders, in the same place below reports/;
            folders of several; ids of MLflow runs; ids of sweeps, for their trainings.
        score: scores the models that were not evaluated; their tables are not kept. None leaves them without.

    Raises:
        ConfigError: a name is neither a folder nor the id of a run, or has no model and no report.
        DataError: a file is damaged.
    """
    runs: dict[str, Run] = {}
    for name in names:
        if (folder := Path(name)).is_dir():
            pairs = model_and_report_folders(folder)
            found = [scored(read_run(*pair, tracked(pair[0])), pair[0], score) for pair in pairs]
        elif _RUN_ID.fullmatch(name):
            found = _stored_runs(name, score)
        else:
            raise ConfigError(f"{name}: expected a folder, or the id of an MLflow run (32 hexadecimal digits)")
        if not found:
            raise ConfigError(f"{name}: no model and no report there; the stages train and evaluate write them")
        runs |= {run.tracked.run_id if run.tracked else run.place: run for run in found}
    return list(runs.values())


def _stored_runs(run_id: str, score: Score | None) -> list[Run]:
    """Return the run of an id, or the trainings of a sweep, from artifacts; jobs without a model are warned of."""
    from mlflow.exceptions import MlflowException

    uri, trainings = trainings_of(run_id)
    found = []
    try:
        for training in trainings:
            run = _downloaded(uri, training.run_id, score)
            if run is not None:
                found.append(run)
            elif training.job:
                _log.warning("%s: left out, as it has no model: %s", training.job, training.problem)
    except MlflowException as error:
        raise ConfigError(f"{run_id}: {str(error).splitlines()[0]} (MLflow store {uri})") from None
    return found


def _downloaded(uri: str, run_id: str, score: Score | None) -> Run | None:
    """Download a run's artifacts, with the weights if they must be scored; None for a run without a model."""
    with TemporaryDirectory() as folder:
        model, report = (Path(folder) / root for root in _FILES)
        for root, names in _FILES.items():
            Path(folder, root).mkdir()
            download_files(uri, run_id, root, names, Path(folder, root))
        if not (model / SPEC).is_file():
            return None
        if score is not None and not (report / PER_GRAPH).is_file():
            download_files(uri, run_id, "model", [WEIGHTS], model)
        return scored(read_run(model, report, tracked(model, uri), run_id), model, score)
