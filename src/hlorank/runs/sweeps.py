"""Sweeps: the run in MLflow that is the parent of their trainings, the table of these, and the callback of Hydra.

The run of each training of a sweep has the tag `hlorank.sweep.<id of the sweep>`, with the overrides of its job as
JSON: also a training that another sweep has finished before, and a job that failed before its training began.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, errors, open_dict, read_write

from hlorank.config import Config, ConfigError, TrackingConfig, load
from hlorank.files import LOCKS, csv_cell, fingerprint, one_line, one_process, redact_credentials
from hlorank.metrics import BEST_TAU, TRAIN_SECONDS
from hlorank.runs import store
from hlorank.runs.find import tagged_runs
from hlorank.terminal import Column, print_table

if TYPE_CHECKING:
    import pandas as pd

TAU = "valid_kendall_tau"
_KEY = "hlorank.sweep.key"  # machine, folder and command
_REASON, _PARENT = "hlorank.reason", "mlflow.parentRunId"
_DESCRIBED, _ROOM = 15, 200  # rows of a table in the description, and characters of a value in a tag
_STATES = ("interrupted", "failed", "pruned", "finished")
_SEED, _SECONDS, _COLLECTION = "seed", "train_seconds", "collection"
_RESULTS = [_SEED, TAU, _SECONDS, "state", "run_id", "reason"]  # columns of the table after the keys
_DIGITS = {TAU: 4, _SECONDS: 1, "mean": 4, "standard_deviation": 4}
_NOT_VARIED = ("sweep.", "output")  # number of the job, and its folder
_LONG_FRACTION = re.compile(r"\d\.\d{5,}(e-?\d+)?")  # drawn by a sampler

log = logging.getLogger(__name__)


def task_overrides() -> list[str]:
    """Return the overrides of the command or job that this process runs, without credentials; none outside of Hydra."""
    overrides = HydraConfig.get().overrides.task if HydraConfig.initialized() else ()
    return [redact_credentials(override) for override in overrides]


def chosen_experiment() -> str | None:
    """Return the name of the file of conf/experiment that Hydra composed; None without one, and outside of Hydra."""
    return HydraConfig.get().runtime.choices.get("experiment") if HydraConfig.initialized() else None


def in_sweep() -> bool:
    """Return whether this process runs a job of a sweep."""
    return store.PARENT_VARIABLE in os.environ


def job_tags() -> dict[str, str]:
    """Return the tag that enters a run in the table of the current sweep; none outside of sweeps."""
    return _tags(os.environ[store.PARENT_VARIABLE], task_overrides()) if in_sweep() else {}


def _tags(parent: str, overrides: Iterable[str]) -> dict[str, str]:
    pairs = [redact_credentials(override).lstrip("+").partition("=") for override in overrides]
    values = {key: value if len(value) <= _ROOM else fingerprint(value) for key, _, value in pairs}
    return {f"{store.SWEEP}.{parent}": json.dumps(values, sort_keys=True)}


def claim(config: TrackingConfig, run_id: str) -> None:
    """Enter an earlier run in the table of the current sweep, if there is one."""
    from mlflow.tracking import MlflowClient

    for tag, values in job_tags().items():
        client = MlflowClient(store.tracking_uri(config))
        earlier = json.loads(client.get_run(run_id).data.tags.get(tag, "{}"))  # of a job that names a default
        client.set_tag(run_id, tag, json.dumps(earlier | json.loads(values), sort_keys=True))


def _record_failure(client: Any, parent: str, overrides: Iterable[str], error: Exception) -> None:
    """Record the reason in the run of a job, or in a run without a training if the job failed before it had one."""
    tags = _tags(parent, overrides)
    runs = [run for run in tagged_runs(client, parent) if tags.items() <= run.data.tags.items()]
    run = next((run for run in reversed(runs) if _state(run) != "finished"), None)
    if run is None:
        experiment = client.get_run(parent).info.experiment_id
        name = one_line(f"failed {' '.join(map(redact_credentials, overrides))}")[: store.NAME_LENGTH]
        run = client.create_run(experiment, run_name=name, tags={**tags, _PARENT: parent})
    text = next(filter(None, str(error).splitlines()), "")
    reason = one_line(": ".join(filter(None, [type(error).__name__, text])))  # a tag has room for it
    client.set_tag(run.info.run_id, _REASON, reason)
    client.set_terminated(run.info.run_id, "FAILED")


def _retry(client: Any, parent: str) -> list[Any]:
    """Forget the failures of a sweep, before its jobs are tried again, and return their runs."""
    failures = [run for run in tagged_runs(client, parent) if _REASON in run.data.tags]
    for run in failures:
        client.delete_tag(run.info.run_id, _REASON)
        if not run.data.params:  # the job failed before it had a training
            client.delete_run(run.info.run_id)
    return failures


def _state(run: Any) -> str:
    tags, status = run.data.tags, run.info.status
    if BEST_TAU in run.data.metrics or status == "FINISHED":
        return "finished"
    if status == "KILLED" and tags.get(store.ENDED_BY) == store.PRUNING:
        return "pruned"
    return "failed" if _REASON in tags else "interrupted"  # also a failed run that was stopped from outside


def job_table(client: Any, parent: str) -> pd.DataFrame:
    """Return a row for each job of a sweep, the best first: what differs, and the result of its most advanced run."""
    import pandas as pd

    runs = sorted(tagged_runs(client, parent), key=lambda run: _STATES.index(_state(run)))
    jobs = {run.data.tags[f"{store.SWEEP}.{parent}"]: run for run in runs}
    overrides = pd.DataFrame([json.loads(job) for job in jobs], dtype=object).fillna("")
    varied = (key for key in map(str, overrides) if key != _SEED and overrides[key].nunique() > 1)
    keys = sorted(key for key in varied if not key.startswith(_NOT_VARIED))
    results = [
        {
            _SEED: run.data.params.get(_SEED, json.loads(job).get(_SEED, "")),
            TAU: tau if (tau := run.data.metrics.get(BEST_TAU, 2)) <= 1 else None,  # infinity is a number of 309 digits
            _SECONDS: run.data.metrics.get(TRAIN_SECONDS) if _state(run) == "finished" else None,
            "state": _state(run),
            "run_id": run.info.run_id,
            "reason": run.data.tags.get(_REASON, ""),
        }
        for job, run in jobs.items()
    ]
    table = overrides[keys].join(pd.DataFrame(results, columns=_RESULTS).astype({TAU: float, _SECONDS: float}))
    order = [*[_COLLECTION] * (_COLLECTION in keys), TAU, *keys, _SEED]  # taus of several cannot be compared
    return table.sort_values(order, ascending=[key != TAU for key in order], ignore_index=True)


def job_names(table: pd.DataFrame) -> list[str]:
    """Return the overrides that tell the jobs of a table apart, as text."""
    keys = [*table.columns[: -len(_RESULTS)], _SEED]
    return [" ".join(f"{key}={row[key]}" for key in keys if row[key]) for row in table.to_dict("records")]


def seed_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return number of seeds, mean and sample standard deviation of the Kendall tau, the best combination first."""
    keys = [*table.columns[: -len(_RESULTS)]]
    groups = table[table[TAU].notna()].assign(all="").groupby(keys or ["all"], sort=False)[TAU]
    means = groups.agg(seeds="count", mean="mean", standard_deviation="std").reset_index()
    order = [*[_COLLECTION] * (_COLLECTION in keys), "mean"]
    means = means[[*keys, "seeds", "mean", "standard_deviation"]]
    return means.sort_values(order, ascending=[key != "mean" for key in order], ignore_index=True)


def short_value(value: str) -> str:
    """Return the value of an override as tables show it: a long fraction with four digits."""
    return f"{float(value):.4g}" if _LONG_FRACTION.fullmatch(value) else value


def _print(table: pd.DataFrame, title: str) -> None:
    ranks = {"run_id": 1, "state": 2, _SECONDS: 3}
    numbers = {_SEED, "seeds", *_DIGITS}
    columns = [Column(column, ranks.get(column, 0), number=column in numbers) for column in table.columns]
    shown = {
        column: ["" if value != value else f"{value:.{digits}f}" for value in table[column]]
        for column, digits in _DIGITS.items()
        if column in table
    }
    rows = [[short_value(str(value)) for value in row] for row in table.assign(**shown).itertuples(index=False)]
    sys.stdout.write(f"\n{title}\n")
    print_table(columns, rows, option="sweep/jobs.csv of the run")


class Sweep:
    """Run of a sweep in the process that starts its jobs, which continues its name or the same interrupted command."""

    def __init__(self, config: Config, overrides: Sequence[str]) -> None:
        from mlflow.tracking import MlflowClient

        name, locks = config.sweep.name, Path(config.paths.state) / LOCKS
        experiment, command = store.open_experiment(config.tracking), redact_credentials(" ".join(overrides))
        self._client = client = MlflowClient(store.tracking_uri(config.tracking))
        key = fingerprint([platform.node(), str(locks.resolve()), experiment, {"name": name} if name else command])
        self._lock = ExitStack()
        self._lock.enter_context(one_process(locks / key, "this sweep"))
        interrupted = f"tags.`{_KEY}` = '{key}' and attributes.status != 'FINISHED' and attributes.status != 'FAILED'"
        query = f"tags.`{store.NAME}` = '{name}'" if name else interrupted
        earlier = client.search_runs([experiment], query, max_results=1, order_by=["attributes.start_time DESC"])
        self._status: str | None = earlier[0].info.status if earlier else None
        self._failures: list[Any] = []
        if earlier:
            self.run_id: str = earlier[0].info.run_id
            log.info("the sweep continues: run %s", self.run_id)
            self._failures = _retry(client, self.run_id)
            client.update_run(self.run_id, status="RUNNING")
        else:
            tags = {store.SWEEP: command, _KEY: key} | ({store.NAME: name} if name else {})
            run = client.create_run(experiment, run_name=f"sweep {name or command}"[: store.NAME_LENGTH], tags=tags)
            self.run_id = run.info.run_id
        self._before = self._jobs()

    def _jobs(self) -> list[tuple[str, str, int]]:
        return [(run.info.run_id, run.info.status, run.info.end_time) for run in tagged_runs(self._client, self.run_id)]

    def _undo(self) -> None:
        """Leave the store as it was before a command that began no job."""
        for failure in self._failures:
            self._client.restore_run(failure.info.run_id)
            self._client.set_tag(failure.info.run_id, _REASON, failure.data.tags[_REASON])
        if self._status is None:
            self._client.delete_run(self.run_id)
        else:
            self._client.update_run(self.run_id, status="KILLED" if self._status == "RUNNING" else self._status)

    def close(self, completed: bool) -> int:
        """Write and print tables and failures, and return the number of jobs that failed or were interrupted."""
        if not completed and self._jobs() == self._before:
            self._undo()
            self._lock.close()
            return 0
        client, table = self._client, job_table(self._client, self.run_id)
        jobs, seeds = table.drop(columns="reason"), seed_table(table)
        failures = table.assign(job=job_names(table))[table["state"].isin(["failed", "interrupted"])]
        if len(table):
            heads = (part[:_DESCRIBED].to_string(index=False, float_format="%.4f", na_rep="") for part in (seeds, jobs))
            note = "".join(f"```\n{head}\n```\n" for head in heads)
            client.set_tag(self.run_id, store.NOTE, note[: store.NOTE_LENGTH])
            for name, shown in (("jobs", jobs), ("seeds", seeds)):
                client.log_text(self.run_id, shown.map(csv_cell).to_csv(index=False), f"sweep/{name}.csv")
            self._log_best(len(table), seeds)
            _print(jobs, f"sweep {self.run_id}")
        if (seeds["seeds"] > 1).any():
            _print(seeds, "over seeds")
        for row in failures.sort_values("job").to_dict("records"):
            sys.stderr.write(f"error: {row['job'] or 'the job'}: {row['reason'] or row['state']}\n")
        if len(table) and not completed:
            sys.stderr.write("error: the sweep was interrupted; the same command continues with the remaining jobs\n")
        client.set_terminated(self.run_id, "KILLED" if not completed else "FAILED" if len(failures) else "FINISHED")
        self._lock.close()
        return len(failures)

    def _log_best(self, jobs: int, seeds: pd.DataFrame) -> None:
        """Log the number of jobs, and the best mean over seeds with its settings, those of each collection."""
        self._client.log_metric(self.run_id, "sweep/jobs", jobs)
        for row in (seeds.drop_duplicates(_COLLECTION) if _COLLECTION in seeds else seeds[:1]).to_dict("records"):
            place = f"sweep/{row.pop(_COLLECTION)}" if _COLLECTION in row else "sweep"
            self._client.log_metric(self.run_id, f"{place}/best_kendall_tau", row["mean"], step=jobs)
            for key in row.keys() - {"seeds", "mean", "standard_deviation"}:
                self._client.set_tag(self.run_id, f"{place}/best/{key}", row[key])  # a parameter cannot change


_open: list[Sweep] = []


class SweepRun(Callback):
    """Hydra callback that opens the parent run of a multirun of trainings; each process of a job has a copy."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Open the parent run of trainings, and pass its id to the jobs; a mistake ends the process before any job."""
        try:
            own = load_composed(config)  # which has no password: Hydra writes it into a file after this
            if config.hydra.job.name != "train":
                return
            given: Any = OmegaConf.to_container(config.hydra)
            overrides = given["overrides"]["task"]
            texts = [f"{key}={value}" for key, value in (given["sweeper"].get("params") or {}).items()]
            parsed = OverridesParser.create().parse_overrides([*texts, *overrides])
            varied = [one.key_or_group for one in parsed if one.is_sweep_override()]
            overrides.sort(key=lambda override: override.lstrip("+").partition("=")[0] not in varied)
            sweep = Sweep(own, overrides)
        except Exception as error:
            if (lines := store.error_lines(error)) is None:
                raise
            # Hydra turns exceptions of a callback into warnings, and would train without the sweep's run.
            sys.stderr.writelines(f"{line}\n" for line in lines)
            raise SystemExit(2 if isinstance(error, ConfigError) else 1) from None
        _open.append(sweep)
        with read_write(config.hydra), open_dict(config.hydra):
            for name, value in ((store.PARENT_VARIABLE, sweep.run_id), (store.VARIED_VARIABLE, ",".join(varied))):
                config.hydra.job.env_set[name] = value
                # Launchers compose the configuration of each job again, from these overrides.
                config.hydra.overrides.hydra.append(f"+hydra.job.env_set.{name}='{value}'")

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Record a failure in the sweep's table, and let the sweep continue; the job then has no value."""
        parent = config.hydra.job.env_set.get(store.PARENT_VARIABLE)
        error = job_return._return_value  # the property raises it
        if parent is None or job_return.status is not JobStatus.FAILED:
            return
        from mlflow.tracking import MlflowClient

        # Before the store is used: if the store is down, the other jobs must still continue.
        job_return.status, job_return.return_value = JobStatus.COMPLETED, None
        if not isinstance(error, store.Pruned):
            details = "\n" + "".join(traceback.format_exception(error)) if store.error_lines(error) is None else ""
            log.error("failed: %s%s", one_line(error), redact_credentials(details).rstrip())
            client = MlflowClient(store.tracking_uri(config.tracking))
            _record_failure(client, parent, config.hydra.overrides.task, error)


def load_composed(composed: DictConfig) -> Config:
    """Validate a configuration as Hydra composed it, maybe with its own; see `hlorank.config.load`."""
    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    try:
        return load(OmegaConf.to_container(own, resolve=True))
    except errors.OmegaConfBaseException as error:  # of an interpolation
        raise ConfigError(f"{error.full_key}: {(error.msg or str(error)).splitlines()[0]}") from None


@contextmanager
def sweep_report() -> Iterator[None]:
    """Summarize the sweep that the block opened, if any, however the block ends; exit with status 1 if a job failed."""
    completed = False
    try:
        yield
        completed = True
    finally:
        failures = _open.pop().close(completed) if _open else 0
    if failures:
        raise SystemExit(1)
