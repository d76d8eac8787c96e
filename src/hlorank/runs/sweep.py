"""Sweep in the process that starts its jobs: opens or resumes the sweep's run, and logs its tables."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hlorank.config import ConfigError, TrackingConfig
from hlorank.config.sweep import SWEEP_NAME
from hlorank.files import redact_credentials
from hlorank.runs.jobs import NAME, SWEEP, Row, forget_failures, rows
from hlorank.runs.store import CHECKOUT, NOTE, NOTE_LENGTH, checkout, open_experiment, opening_runs, tracking_uri
from hlorank.runs.sweep_table import job_table, markdown, print_rows, seed_table, varied_keys

_NAME_LENGTH = 250  # every store of MLflow has room for

log = logging.getLogger(__name__)


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
