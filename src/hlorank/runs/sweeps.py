"""Sweeps: the parent run in MLflow, the table of its jobs, and the callback of Hydra."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hlorank.config import Config, ConfigError, TrackingConfig, load
from hlorank.config.sweep import SWEEP_NAME
from hlorank.files import DataError, fingerprint, redact_credentials
from hlorank.metrics import BEST_TAU, TRAIN_SECONDS
from hlorank.runs.store import (
    CHECKOUT,
    ENDED_BY,
    FINGERPRINT,
    NOTE,
    NOTE_LENGTH,
    PARENT_VARIABLE,
    PRUNING,
    Pruned,
    checkout,
    error_lines,
    open_experiment,
    opening_runs,
    tracking_uri,
)
from hlorank.terminal import Column, print_table

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


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


def claim(config: TrackingConfig, run_id: str) -> None:
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


TAU = "valid_kendall_tau"
_SEED, _SECONDS = "seed", "train_seconds"
_NOT_VARIED = ("sweep.", "output")  # number of the job, and its folder
_LONG_FRACTION = re.compile(r"\d\.\d{5,}(e-?\d+)?")  # drawn by a sampler
_DIGITS = {TAU: 4, "mean": 4, "standard_deviation": 4, _SECONDS: 1}


def varied_keys(rows: Sequence[Row]) -> list[str]:
    """Return the keys, other than the seed, whose values differ between jobs, in the order of their overrides."""
    keys = dict.fromkeys(key for row in rows for key in row.values if not key.startswith(_NOT_VARIED) and key != _SEED)
    return [key for key in keys if len({row.values.get(key) for row in rows}) > 1]


def job_table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return one row for each job, the best first and those without a result last.

    Returns:
        The varied keys as columns of text, then seed, valid_kendall_tau, train_seconds, state, run_id.
    """
    import pandas as pd

    keys = varied_keys(rows)
    columns = [*keys, _SEED, TAU, _SECONDS, "state", "run_id"]
    cells = [
        [*(row.values.get(key, "") for key in keys), row.seed, row.tau, row.seconds, row.state, row.run_id]
        for row in rows
    ]
    table = pd.DataFrame(cells, columns=columns).astype({TAU: float, _SECONDS: float})
    return table.sort_values([TAU, *keys, _SEED], ascending=[False, *[True] * (len(keys) + 1)], ignore_index=True)


def seed_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return mean and sample standard deviation of the Kendall tau over seeds, the best combination of keys first.

    Args:
        table: the result of `job_table`; jobs without a result are left out, and a run that several trials of a search
            share counts once.

    Returns:
        The varied keys, then seeds (their number), mean, standard_deviation (missing for one seed).
    """
    keys = list(table.columns[: list(table.columns).index(_SEED)])
    import pandas as pd

    finished = table[table[TAU].notna()].drop_duplicates("run_id")
    by = finished[keys] if keys else pd.DataFrame({"": ""}, index=finished.index)
    groups = finished.groupby([by[key] for key in by], sort=False)[TAU]
    means = groups.agg(seeds="count", mean="mean", standard_deviation="std").reset_index()
    return means[[*keys, "seeds", "mean", "standard_deviation"]].sort_values("mean", ascending=False, ignore_index=True)


def short_value(value: str) -> str:
    """Return the value of an override as tables show it: a long fraction with four digits."""
    return f"{float(value):.4g}" if _LONG_FRACTION.fullmatch(value) else value


def _text(value: Any, column: str) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.{_DIGITS[column]}f}"
    return short_value(str(value))


def cells(table: pd.DataFrame) -> list[list[str]]:
    """Return a table's rows as text: numbers rounded, missing ones empty."""
    rows = table.to_dict("records")
    return [[_text(row[column], column) for column in table.columns] for row in rows]


def markdown(table: pd.DataFrame) -> str:
    """Return a table in Markdown."""
    lines = [list(table.columns), ["---"] * len(table.columns), *cells(table)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def print_rows(table: pd.DataFrame, title: str) -> None:
    """Print a table on the console."""
    numbers, ranks = {*_DIGITS, _SEED, "seeds"}, {"run_id": 1, "state": 2, _SECONDS: 3}
    columns = [Column(column, ranks.get(column, 0), number=column in numbers) for column in table.columns]
    sys.stdout.write(f"\n{title}\n")
    print_table(columns, cells(table), option="sweep/summary.md of the run")


_NAME_LENGTH = 250  # every store of MLflow has room for


class Sweep:
    """Run of a sweep, from the start of its first job to the end of its last.

    Args:
        name: the name of the sweep; None for the command, which is resumed only if it was interrupted.
        tracking: the tracking store and its experiment.
        locks: folder of locks.
        overrides: arguments of the command.

    Attributes:
        run_id: id of the MLflow run.

    Raises:
        ConfigError: another process runs the sweep of this name.
    """

    def __init__(self, name: str | None, tracking: TrackingConfig, locks: Path, overrides: Sequence[str]) -> None:
        from mlflow.tracking import MlflowClient

        experiment = open_experiment(tracking)
        self._client = client = MlflowClient(tracking_uri(tracking))
        command = redact_credentials(" ".join(overrides))
        with opening_runs(experiment, locks):
            if name is None:
                run = _interrupted(client, experiment, command, locks)
            else:
                run = find_sweep(client, [experiment], name)
            resumed = run is not None
            if run is None:
                tags = {SWEEP: command} | ({} if name is None else {NAME: name})
                run = client.create_run(experiment, run_name=f"sweep {name or command}"[:_NAME_LENGTH], tags=tags)
            self.run_id: str = run.info.run_id
            # Shows other processes that the run is open.
            self._lock = FileLock(locks / self.run_id)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                remedy = "wait, or choose another name"
                raise ConfigError(f"sweep.name={name}: another process runs this sweep; {remedy}") from None
            client.set_tag(self.run_id, CHECKOUT, checkout(locks))
            if resumed:
                log.info("the sweep continues: run %s", self.run_id)
                forget_failures(client, self.run_id)
                client.update_run(self.run_id, status="RUNNING")

    def close(self, completed: bool) -> int:
        """Write and print the tables, and print the failures.

        Args:
            completed: True if the sweeper has ended regularly.

        Returns:
            The number of jobs that failed or were interrupted; pruned ones are not among them.
        """
        found = rows(self._client, self.run_id)
        failures = [row for row in found if row.state in {"failed", "interrupted"}]
        if found:
            self._log_tables(found)
        shown = [*varied_keys(found), "seed"]
        for row in sorted(failures, key=lambda row: [row.values.get(key, "") for key in shown]):
            job = " ".join(f"{key}={row.values[key]}" for key in shown if key in row.values)
            sys.stderr.write(f"error: {job or 'the job'}: {row.reason or row.state}\n")
        if found and not completed:
            sys.stderr.write("error: the sweep was interrupted; the same command continues with the remaining jobs\n")
        status = "FAILED" if failures else "FINISHED"
        self._client.set_terminated(self.run_id, status if completed else "KILLED")
        Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()
        return len(failures)

    def _log_tables(self, found: Sequence[Row]) -> None:
        table = job_table(found)
        seeds = seed_table(table)
        summary = f"{markdown(seeds)}\n{markdown(table)}"
        self._client.set_tag(self.run_id, NOTE, _note(summary))
        for name, text in (
            ("jobs.csv", table.to_csv(index=False)),
            ("seeds.csv", seeds.to_csv(index=False)),
            ("summary.md", summary),
        ):
            self._client.log_text(self.run_id, text, f"sweep/{name}")
        print_rows(table, f"sweep {self.run_id}")
        if (seeds["seeds"] > 1).any():
            print_rows(seeds, "over seeds")


def _note(summary: str) -> str:
    """Return the description of a sweep's run: as many lines of its summary as it has room for."""
    lead = "Best on valid first: means over seeds, then the jobs.\n\n"
    if len(lead + summary) <= NOTE_LENGTH:
        return lead + summary
    end = "\nThe other jobs are in the artifact `sweep/summary.md`.\n"
    return lead + summary[: NOTE_LENGTH - len(lead + end)].rpartition("\n")[0] + "\n" + end


def find_sweep(client: Any, experiments: Sequence[str], name: str) -> Any:
    """Return the latest run of the sweep of a name, None if there is none."""
    if not SWEEP_NAME.fullmatch(name):
        return None
    query = f"tags.`{NAME}` = '{name}'"
    latest = client.search_runs(list(experiments), query, max_results=1, order_by=["attributes.start_time DESC"])
    return latest[0] if latest else None


def _interrupted(client: Any, experiment: str, command: str, locks: Path) -> Any:
    """Return the latest run of a sweep without a name that this checkout began by a command, if it was interrupted."""
    own = f"tags.`{CHECKOUT}` = '{checkout(locks)}' and tags.`{SWEEP}` LIKE '%'"
    query = f"attributes.status = 'KILLED' and {own}"
    found = client.search_runs([experiment], query, order_by=["attributes.start_time DESC"])
    # The command may have any quotes, so it is not part of the query.
    same = (run for run in found if run.data.tags[SWEEP] == command and NAME not in run.data.tags)
    return next(same, None)


_LAUNCHER = "hydra_plugins.hlorank_search.fault_tolerant_launcher.FaultTolerantLauncher"
_open: list[Sweep] = []


class SweepRun(Callback):
    """Hydra callback that opens the parent run of a multirun of trainings.

    Hydra copies it to every process that runs jobs.
    """

    _sweep: tuple[str, str] | None = None  # run id, tracking store

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Open the parent run, pass its id to the jobs, and wrap the launcher in a fault-tolerant one.

        Raises:
            SystemExit: the configuration is wrong, another process runs the sweep of this name, or the tracking store
                cannot be used.
        """
        if config.hydra.job.name != "train":
            return
        try:
            own = own_config(config)
            locks = Path(own.paths.state) / "locks"
            sweep = Sweep(own.sweep.name, own.tracking, locks, list(config.hydra.overrides.task))
        except Exception as error:
            if (lines := error_lines(error)) is None:
                raise
            # Hydra turns exceptions of a callback into warnings, and would train without the sweep's run.
            sys.stderr.writelines(f"{line}\n" for line in lines)
            raise SystemExit(2 if isinstance(error, ConfigError) else 1) from None
        _open.append(sweep)
        self._sweep = sweep.run_id, tracking_uri(own.tracking)
        with read_write(config.hydra), open_dict(config.hydra):
            config.hydra.job.env_set[PARENT_VARIABLE] = sweep.run_id
            # Launchers compose the configuration of each job again, from these overrides.
            config.hydra.overrides.hydra.append(f"+hydra.job.env_set.{PARENT_VARIABLE}='{sweep.run_id}'")
            config.hydra.launcher = {
                "_target_": _LAUNCHER,
                "_recursive_": False,
                "launcher": config.hydra.launcher,
                "parent": self._sweep[0],
                "uri": self._sweep[1],
            }

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Record a failure in the sweep's run, and let the sweep continue; the job then has no value."""
        if self._sweep is None or job_return.status is not JobStatus.FAILED:
            return
        from mlflow.tracking import MlflowClient

        parent, uri = self._sweep
        error = job_return._return_value  # the property raises it
        # Before the store is used: if the store is down, the other jobs must still continue.
        job_return.status, job_return.return_value = JobStatus.COMPLETED, None
        if not isinstance(error, Pruned):
            expected = isinstance(error, ConfigError | DataError)
            log.error("failed: %s", error, exc_info=None if expected else error)
            Job.of(parent, config.hydra.overrides.task).fail(MlflowClient(uri), error)


def own_config(composed: DictConfig) -> Config:
    """Return hlorank's configuration from a composition that also holds Hydra's."""
    return load(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]))


@contextmanager
def sweep_report() -> Iterator[None]:
    """Summarize the sweep that the block opened, if any, however the block ends.

    Raises:
        SystemExit: a job failed.
    """
    completed = False
    try:
        yield
        completed = True
    finally:
        failures = _open.pop().close(completed) if _open else 0
    if failures:
        raise SystemExit(1)
