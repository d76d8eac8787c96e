"""A sweep in the process that starts its jobs: opens its run, or the earlier one of its name, and sums it up."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hlorank.config import Config, ConfigError
from hlorank.files import fingerprint
from hlorank.sweeps.jobs import NAME, SWEEP, Row, forget_failures, rows
from hlorank.tracking import open_experiment, tracking_uri

_NAME_LENGTH = 250  # that every store of MLflow has room for

log = logging.getLogger(__name__)


class Sweep:
    """The run of a sweep, from the start of its first job to the end of its last.

    Args:
        config: the whole configuration, without what the jobs vary.
        overrides: what was said on the command line.

    Attributes:
        run_id: its run.

    Raises:
        ConfigError: the name can't be one, or another process is at the sweep of this name.
    """

    def __init__(self, config: Config, overrides: Sequence[str]) -> None:
        from mlflow.tracking import MlflowClient

        name = config.sweep.name
        self._lock = None if name is None else _only_here(config, name)
        experiment = open_experiment(config.tracking)
        self._client = MlflowClient(tracking_uri(config.tracking))
        command = " ".join(overrides)
        earlier = None if name is None else find_sweep(self._client, [experiment], name)
        if earlier is not None:
            self.run_id: str = earlier.info.run_id
            log.info("the sweep %r goes on: run %s", name, self.run_id)
            forget_failures(self._client, self.run_id)
            self._client.update_run(self.run_id, status="RUNNING")
        else:
            tags = {SWEEP: command} | ({} if name is None else {NAME: name})
            run = self._client.create_run(experiment, run_name=f"sweep {name or command}"[:_NAME_LENGTH], tags=tags)
            self.run_id = run.info.run_id

    def close(self, completed: bool) -> int:
        """Writes and prints the table, and tells what failed.

        Args:
            completed: whether the sweeper came to its end.

        Returns:
            How many jobs have no result, although none was given up on purpose.
        """
        from hlorank.sweeps.table import varied_keys

        found = rows(self._client, self.run_id)
        failures = [row for row in found if row.state in {"failed", "interrupted"}]
        if found:
            self._sum_up(found)
        shown = [*varied_keys(found), "seed"]
        for row in sorted(failures, key=lambda row: [row.values.get(key, "") for key in shown]):
            job = " ".join(f"{key}={row.values[key]}" for key in shown if key in row.values)
            sys.stderr.write(f"error: {job or 'the job'}: {row.reason or row.state}\n")
        if found and not completed:
            sys.stderr.write("error: the sweep did not come to its end; the same command goes on with what is left\n")
        self._client.set_terminated(self.run_id, "FINISHED" if completed and not failures else "FAILED")
        if self._lock is not None:
            self._lock.release()
        return len(failures)

    def _sum_up(self, found: Sequence[Row]) -> None:
        from hlorank.sweeps.table import job_table, markdown, print_table, seed_table

        table = job_table(found)
        seeds = seed_table(table)
        artifacts = {
            "sweep/jobs.csv": table.to_csv(index=False),
            "sweep/seeds.csv": seeds.to_csv(index=False),
            "sweep/summary.md": f"{markdown(table)}\n{markdown(seeds)}",
        }
        for path, text in artifacts.items():
            self._client.log_text(self.run_id, text, path)
        print_table(table, f"sweep {self.run_id}")
        if (seeds["seeds"] > 1).any():
            print_table(seeds, "over seeds")


def find_sweep(client: Any, experiments: Sequence[str], name: str) -> Any:
    """The run of the sweep of a name, the latest of several; None where there is none."""
    wanted = f"tags.`{NAME}` = '{name}'"
    latest = client.search_runs(list(experiments), wanted, max_results=1, order_by=["attributes.start_time DESC"])
    return latest[0] if latest else None


def check_name(name: str) -> None:
    """Checks that a sweep can have this name.

    Raises:
        ConfigError: it can't.
    """
    if not re.fullmatch(r"[\w.-][\w .-]*", name):
        raise ConfigError(f"sweep.name={name!r}: use letters, digits, spaces, dots, dashes and underscores only")


def _only_here(config: Config, name: str) -> FileLock:
    check_name(name)
    path = Path(config.paths.state) / "locks" / f"sweep-{fingerprint(name)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"sweep.name={name}: another process is at this sweep; wait, or choose another name"
        ) from None
    return lock
