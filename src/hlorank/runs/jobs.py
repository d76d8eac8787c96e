"""Jobs of a sweep, as MLflow stores them: child runs, and tags of the parent run for jobs without a child run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from hydra.core.hydra_config import HydraConfig

from hlorank.config import TrackingConfig
from hlorank.files import fingerprint, redact_credentials
from hlorank.runs.store import (
    BEST_TAU,
    ENDED_BY,
    FINGERPRINT,
    PARENT_VARIABLE,
    PRUNING,
    TRAIN_SECONDS,
    connect,
    database_file,
    tracking_uri,
)

SWEEP, NAME = "hlorank.sweep", "hlorank.sweep.name"
"""Tags of a sweep's run: its command, and its name."""
_OVERRIDES = "hlorank.overrides"
_JOB = "hlorank.job."
_TRIAL = "sweep.trial"
_REASON_LENGTH = 500  # a tag has room for 8,000 characters, and holds the overrides, too


@dataclass(frozen=True)
class Job:
    """One job of a sweep.

    Attributes:
        parent: run id of the sweep.
        overrides: the overrides of its configuration, `key=value`, sorted; they identify the job within the sweep.
    """

    parent: str
    overrides: tuple[str, ...]

    @classmethod
    def of(cls, parent: str, overrides: Iterable[str]) -> Job:
        """Return the job with these overrides, in any order; MLflow gets them without credentials."""
        return cls(parent, tuple(sorted(map(redact_credentials, overrides))))

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the job's own run."""
        return {_OVERRIDES: json.dumps(self.overrides)}

    def record(self, client: Any, **entry: str) -> None:
        """Record in the parent's tags what the job's own run does not contain: `run_id` of another run, or `reason`."""
        value = json.dumps({"overrides": self.overrides, **entry})
        client.set_tag(self.parent, _JOB + fingerprint(self.overrides), value)

    def fail(self, client: Any, error: Exception, lines: int = 1) -> None:
        """Record the reason of the job's failure: the first lines of the error, joined into one."""
        text = " ".join([line for line in str(error).splitlines() if line][:lines])[:_REASON_LENGTH]
        self.record(client, reason=f"{type(error).__name__}: {text}" if text else type(error).__name__)


def current_job() -> Job | None:
    """Return the job that this process runs; None outside of sweeps."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return None
    return Job.of(parent, task_overrides())


def task_overrides() -> list[str]:
    """Return the overrides of the command or job that this process runs, without credentials; none outside of Hydra."""
    if not HydraConfig.initialized():
        return []
    return [redact_credentials(override) for override in HydraConfig.get().overrides.task]


def chosen_experiment() -> str | None:
    """Return the name of the file of conf/experiment that Hydra composed; None without one, and outside of Hydra."""
    return HydraConfig.get().runtime.choices.get("experiment") if HydraConfig.initialized() else None


def finished_training(
    config: TrackingConfig, identity: str, tags: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, float] | None:
    """Return run and validation Kendall tau of a training that has finished before, None if there is none.

    Args:
        config: the tracking store and its experiment.
        identity: the fingerprint of the training.
        tags: further tags that the run must have.
    """
    from mlflow.tracking import MlflowClient

    if (path := database_file(tracking_uri(config))) is not None and not path.is_file():
        return None  # MLflow would create the database
    client = MlflowClient(connect(config))
    experiment = client.get_experiment_by_name(config.experiment)
    if experiment is None:
        return None
    query = "attributes.status = 'FINISHED'"
    for tag, value in ({FINGERPRINT: identity} | dict(tags)).items():
        query += f" and tags.`{tag}` = '{value}'"
    for run in client.search_runs([experiment.experiment_id], query, order_by=["attributes.start_time"]):
        if BEST_TAU in run.data.metrics:  # logged last: Lightning marks a run as finished earlier
            return run.info.run_id, run.data.metrics[BEST_TAU]
    return None


def adopt(config: TrackingConfig, run_id: str) -> None:
    """Enter an earlier run in the table of the current sweep, unless it is the run of the current job."""
    from mlflow.tracking import MlflowClient

    job = current_job()
    if job is None:
        return
    client = MlflowClient(tracking_uri(config))
    tags = client.get_run(run_id).data.tags
    if (tags.get("mlflow.parentRunId"), tags.get(_OVERRIDES)) != (job.parent, job.tags[_OVERRIDES]):
        job.record(client, run_id=run_id)


@dataclass
class Row:
    """Result of a job.

    Attributes:
        values: its overrides, by key.
        seed: its seed, empty for a job without a run.
        tau: best validation Kendall tau, None without a result.
        seconds: seconds of its training, None unless it finished.
        state: finished, pruned, failed or interrupted.
        run_id: id of its run, empty without one.
        reason: reason of its failure.
        fingerprint: fingerprint of its training, empty without a run.
    """

    values: Mapping[str, str]
    seed: str = ""
    tau: float | None = None
    seconds: float | None = None
    state: str = "interrupted"
    run_id: str = ""
    reason: str = ""
    fingerprint: str = field(default="", repr=False)
    started: int = field(default=0, repr=False)

    @property
    def ended(self) -> bool:
        """True if the job has ended since the last start of its sweep."""
        return self.state in {"finished", "pruned"} or self.reason != ""  # `forget_failures` removes earlier reasons

    @property
    def begun(self) -> bool:
        """True if the job has ended, or has a run that did not end."""
        return self.ended or self.state == "interrupted"


_RANK = ("interrupted", "failed", "pruned", "finished")


def _values(overrides: tuple[str, ...]) -> dict[str, str]:
    pairs = (override.lstrip("+").partition("=") for override in overrides)
    return {key: value for key, _, value in pairs}


def _row(overrides: tuple[str, ...], run: Any, reason: str) -> Row:
    """Return the row of a job with this run, or None for a job without a run."""
    values = _values(overrides)
    if run is None:
        return Row(values, values.get("seed", ""), state="failed", reason=reason)
    metrics, status = run.data.metrics, run.info.status
    tau = metrics.get(BEST_TAU) if status == "FINISHED" else None
    row = Row(values, run.data.params.get("seed", ""), tau, run_id=run.info.run_id, started=run.info.start_time)
    row.fingerprint = run.data.tags.get(FINGERPRINT, "")
    if tau is not None or (status == "FINISHED" and not reason):
        row.state, row.seconds = "finished", metrics.get(TRAIN_SECONDS)
    elif status == "KILLED" and run.data.tags.get(ENDED_BY) == PRUNING:
        row.state = "pruned"
    elif reason:  # a failed run without a reason was stopped from outside
        row.state, row.reason = "failed", reason
    return row


def _entries(parent: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for tag, value in parent.data.tags.items():
        if tag.startswith(_JOB):
            yield tag, json.loads(value)


def forget_failures(client: Any, parent: str) -> None:
    """Remove the reasons of failures, before the jobs are tried again."""
    for tag, entry in _entries(client.get_run(parent)):
        if "reason" in entry:
            client.delete_tag(parent, tag)


def children(client: Any, parent: str) -> Iterator[Any]:
    """Yield the child runs of a sweep."""
    experiment = client.get_run(parent).info.experiment_id
    token = None
    while token != "":
        page = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent}'", page_token=token)
        yield from page
        token = page.token or ""


def adopted(client: Any, parent: str) -> list[str]:
    """Return the runs in a sweep's table that are not its children."""
    return [entry["run_id"] for _, entry in _entries(client.get_run(parent)) if "run_id" in entry]


def rows_by_job(client: Any, parent: str) -> dict[tuple[str, ...], Row]:
    """Return the results of the jobs of a sweep by their overrides.

    Of several runs of a job, the result is that of the run in the most advanced state.
    """
    found: list[tuple[tuple[str, ...], Any]] = []
    reasons: dict[tuple[str, ...], str] = {}
    for _, entry in _entries(client.get_run(parent)):
        overrides = tuple(entry["overrides"])
        if "reason" in entry:
            reasons[overrides] = entry["reason"]
        found.append((overrides, client.get_run(entry["run_id"]) if "run_id" in entry else None))
    found += [(tuple(json.loads(run.data.tags.get(_OVERRIDES, "[]"))), run) for run in children(client, parent)]
    best: dict[tuple[str, ...], Row] = {}
    for overrides, run in found:
        row = _row(overrides, run, reasons.get(overrides, ""))
        if overrides not in best or _order(row) > _order(best[overrides]):
            best[overrides] = row
    return best


def rows(client: Any, parent: str) -> list[Row]:
    """Return the results of the jobs of a sweep.

    Jobs of the same training share one row, for example where an override repeats the default; trials of a search have
    rows of their own.
    """
    merged: dict[tuple[object, ...], Row] = {}
    for overrides, row in rows_by_job(client, parent).items():
        key = (row.fingerprint or overrides, row.values.get(_TRIAL))
        same = merged.get(key, row)
        merged[key] = replace(max(same, row, key=_order), values={**same.values, **row.values})
    return list(merged.values())


def _order(row: Row) -> tuple[int, int]:
    return _RANK.index(row.state), row.started
