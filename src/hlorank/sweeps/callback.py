"""Sweeps as Hydra sees them: a callback that opens the sweep's run and keeps count of the jobs that fail."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hlorank.config import Config, ConfigError, load
from hlorank.files import DataError
from hlorank.sweeps.jobs import Job
from hlorank.tracking import PARENT_VARIABLE, Pruned, tracking_uri

if TYPE_CHECKING:
    from hlorank.sweeps.sweep import Sweep

log = logging.getLogger(__name__)

_LAUNCHER = "hydra_plugins.hlorank_search.fault_tolerant_launcher.FaultTolerantLauncher"
_open: list[Sweep] = []


class SweepRun(Callback):
    """A Hydra callback: opens one run a multirun of trainings, which become its children.

    A copy of it goes to each process that jobs run in.
    """

    _sweep: tuple[str, str] | None = None  # run id, tracking store

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Opens the parent run and hands its id to the jobs, wherever they run; ends where it can't.

        The launcher is wrapped in one that goes on where a job's process dies.
        """
        if config.hydra.job.name != "train":
            return
        from hlorank.sweeps.sweep import Sweep

        try:
            own = own_config(config)
            sweep = Sweep(own, list(config.hydra.overrides.task))
        except ConfigError as error:  # of other exceptions Hydra makes a warning
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(2) from None
        _open.append(sweep)
        self._sweep = sweep.run_id, tracking_uri(own.tracking)
        with read_write(config.hydra), open_dict(config.hydra):
            config.hydra.job.env_set[PARENT_VARIABLE] = sweep.run_id
            # Launchers compose the configuration of a job anew, from these.
            config.hydra.overrides.hydra.append(f"+hydra.job.env_set.{PARENT_VARIABLE}='{sweep.run_id}'")
            config.hydra.launcher = {
                "_target_": _LAUNCHER,
                "_recursive_": False,
                "launcher": config.hydra.launcher,
                "parent": self._sweep[0],
                "uri": self._sweep[1],
            }

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Enters a failure in the sweep's run, and lets the sweep go on; the job then has no value."""
        if self._sweep is None or job_return.status is not JobStatus.FAILED:
            return
        from mlflow.tracking import MlflowClient

        parent, uri = self._sweep
        error = job_return._return_value  # the property raises it
        # First, as the store may be what fails, and the other jobs shall go on all the same.
        job_return.status, job_return.return_value = JobStatus.COMPLETED, None
        if not isinstance(error, Pruned):
            expected = isinstance(error, ConfigError | DataError)
            log.error("failed: %s", error, exc_info=None if expected else error)
            Job.of(parent, config.hydra.overrides.task).fail(MlflowClient(uri), error)


def own_config(composed: DictConfig) -> Config:
    """The configuration of a composition that still holds Hydra's own."""
    return load(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]))


@contextmanager
def sweep_report() -> Iterator[None]:
    """Sums up the sweep that the block opened, if any, however the block ends.

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
