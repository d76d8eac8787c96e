"""Hydra callback of sweeps: opens the sweep's run, and records the jobs that fail."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hlorank.config import Config, ConfigError, load
from hlorank.files import DataError
from hlorank.runs.jobs import Job
from hlorank.runs.store import PARENT_VARIABLE, Pruned, error_lines, tracking_uri

if TYPE_CHECKING:
    from hlorank.runs.sweep import Sweep

log = logging.getLogger(__name__)

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
        from hlorank.runs.sweep import Sweep

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
