"""Evaluations in MLflow: their record, in the run of the training, and the trainings of a report."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient, get_tracking_uri
from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT, MLFLOW_LOGGED_ARTIFACTS

from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection
from hlorank.evaluation.graph_report import PER_GRAPH
from hlorank.evaluation.report.trainings import Run, Score, Tracked, model_and_report_folders, read_run, scored
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import SPEC, DataError, code_digest, fingerprint, first_line, one_line, read_json, recorded_run
from hlorank.runs.find import RUN_ID, run_of_model
from hlorank.runs.store import EVALUATION, FEATURES, MODEL, URI_VARIABLE, connect, existing_store, open_run
from hlorank.runs.sweeps import job_names, job_table

LOGGED = ("kendall_tau", "slowdown_1", "slowdown_5", "slowdown_10")
"""Metrics of an evaluation in MLflow; the others follow from these or are facts of the data: metrics.json has all."""
TABLE = "per_graph.json"
"""Artifact of an evaluated run: the table of graphs that MLflow's UI compares between runs."""

_STEP_MEMORY = "train/step_memory_bytes"  # with a prefix for each member of an ensemble

_log = logging.getLogger(__name__)


def log_evaluation(config: Config, model: Path, metrics: Mapping[str, float], output: Path) -> None:
    """Log metrics by path, tables and report into a training's run, or into a new run if the store lacks it."""
    client, spec = MlflowClient(connect(config.tracking)), read_json(model / SPEC)
    path = Collection.parse(config.collection).path
    # The fingerprint of the features has their code.
    code = code_digest("hlorank.evaluation.evaluate", "hlorank.metrics", "hlorank.models")
    tags = {
        FEATURES: FeatureStore(Path(config.paths.features) / path).fingerprint,
        MODEL: spec["spec_sha256"],
        EVALUATION: fingerprint(code),
        MLFLOW_LOGGED_ARTIFACTS: json.dumps([{"path": TABLE, "type": "table"}]),
    }
    described = {key: str(spec[key]) for key in ("collection", "method", "data")} | {"run": "evaluated elsewhere"}
    name = f"{spec['method']} evaluation {config.collection}"
    run: AbstractContextManager[tuple[str, bool]] = open_run(config.tracking, name, described)
    if (earlier := run_of_model(recorded_run(model), spec["spec_sha256"])) is not None:
        run = nullcontext((earlier.info.run_id, True))
    logged = {key: value for key, value in metrics.items() if key.rpartition("/")[2] in LOGGED}
    values = [Metric(f"evaluate/{key}", value, round(time.time() * 1000), 0) for key, value in logged.items()]
    with run as (run_id, _):
        client.log_artifacts(run_id, str(output), "report")
        client.log_dict(run_id, _ui_table(output / PER_GRAPH), TABLE)
        client.log_batch(run_id, values, tags=[RunTag(key, value) for key, value in tags.items()])


def _ui_table(per_graph: Path) -> dict[str, object]:
    """Return the table of graphs for MLflow's UI, which finds rows by the first column and shows the second first."""
    names = dict.fromkeys(("split", "graph", "protocol"), "str")  # also a graph called 1, or NA
    table = pd.read_csv(per_graph, dtype=names, keep_default_na=False, na_values=[""])
    key = table.pop("split") + "/" + table.pop("graph")
    key[table.pop("protocol") == "indexed"] += " (indexed)"
    table.insert(0, "graph", key)
    table.insert(1, "kendall_tau", table.pop("kendall_tau"))
    found: dict[str, object] = json.loads(table.to_json(orient="split", index=False, double_precision=4))
    return found


def tracked(model: Path) -> Tracked | None:
    """Return the store's record of the run of a model folder; None if the store lacks the run or cannot be used."""
    digest = read_json(model / SPEC).get("spec_sha256", "") if (model / SPEC).is_file() else ""
    recorded, run = recorded_run(model), None
    with suppress(DataError, MlflowException, ConnectionError):
        client = MlflowClient(existing_store())
        run = run_of_model(recorded, digest)
    if run is None:
        # A folder does not choose the store, which gets the user's credentials, and MLflow's tables.
        if (address := recorded.get("tracking_uri", "")) not in ("", "sqlite:///mlflow.db", get_tracking_uri()):
            message = "%s: without costs, which are in the MLflow store %s; set %s"
            _log.warning(message, model, one_line(address), URI_VARIABLE)
        return None
    run_id, metrics = run.info.run_id, run.data.metrics
    of_members = [client.get_metric_history(run_id, key) for key in metrics if key.endswith(_STEP_MEMORY)]
    if memory := [entry.value for history in of_members for entry in history]:
        metrics = {**metrics, _STEP_MEMORY: max(memory)}
    return Tracked(run_id, run.data.params, run.data.tags.get(MLFLOW_GIT_COMMIT), metrics)


def find_runs(names: Sequence[str], score: Score | None = None) -> list[Run]:
    """Find trainings for a report by name, each once.

    A name is a model folder, such as models/layout/cpu/random/gst, or a report folder, in the same place below
    reports/; a folder of several; the id of an MLflow run, or of a sweep, for its trainings. `score` scores the models
    that were not evaluated; their tables are not kept.
    """
    runs: dict[str, Run] = {}
    for name in names:
        if (folder := Path(name)).is_dir():
            pairs = model_and_report_folders(folder)
            found = [scored(read_run(*pair, tracked(pair[0])), pair[0], score) for pair in pairs]
        elif RUN_ID.fullmatch(name):
            found = _stored_runs(name, score)
        else:
            raise ConfigError(f"{name}: expected a folder, or the id of an MLflow run (32 hexadecimal digits)")
        if not found:
            raise ConfigError(f"{name}: no model and no report there; the stages train and evaluate write them")
        runs |= {run.tracked.run_id if run.tracked else run.place: run for run in found}
    return list(runs.values())


def _stored_runs(run_id: str, score: Score | None) -> list[Run]:
    """Return the run of an id, or the trainings of a sweep, from artifacts; jobs without a model are warned of."""
    client, found = MlflowClient(store := existing_store()), []
    try:
        table = job_table(client, run_id)
        jobs = table.assign(job=job_names(table)).to_dict("records")
        for job in jobs or [{"run_id": run_id}]:
            with TemporaryDirectory() as folder:
                for root in {artifact.path for artifact in client.list_artifacts(job["run_id"])} & {"model", "report"}:
                    client.download_artifacts(job["run_id"], root, folder)
                model, report = Path(folder, "model"), Path(folder, "report")
                if model.is_dir():
                    found.append(scored(read_run(model, report, tracked(model), job["run_id"]), model, score))
                elif jobs:
                    reason = job["reason"] or job["state"]
                    _log.warning("%s: left out, as it has no model: %s", job["job"], reason)
    except MlflowException as error:
        raise ConfigError(f"{run_id}: {first_line(error)} (MLflow store {store})") from None
    return found
