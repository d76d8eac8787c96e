"""Launcher around the one that the user chose, for sweeps that continue after the process of a job dies."""

# No `from __future__ import annotations`: as in search_sweeper.
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from typing import TYPE_CHECKING

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, read_write

if TYPE_CHECKING:
    from hlorank.runs.sweeps import Job, Row

log = logging.getLogger(__name__)


class FaultTolerantLauncher(Launcher):
    """Launcher that wraps another one; the wrapped launcher abandons all jobs if the process of one dies.

    Results of jobs that have ended are kept. Jobs that had begun are launched once more, one at a time, to find the one
    that dies; that job has then failed. Jobs that had not begun are launched together as before.

    Args:
        launcher: configuration of the other launcher.
        parent: run id of the sweep.
        uri: the tracking store.
    """

    def __init__(self, launcher: DictConfig, parent: str, uri: str) -> None:
        self._settings = launcher
        self._parent, self._uri = parent, uri

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Create the other launcher, and restore its configuration."""
        with read_write(config):
            config.hydra.launcher = self._settings
        self._context, self._config = hydra_context, config
        self._launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run jobs to their ends; a job whose process died has no value."""
        try:
            return self._launcher.launch(job_overrides, initial_job_idx)
        except _deaths() as error:
            log.warning("the process of a job died: jobs that had begun are launched again, one at a time\n%s", error)
        rows = self._rows()
        numbers = range(len(job_overrides))
        begun = [n for n in numbers if (row := rows.get(self._job(job_overrides[n]).overrides)) and row.begun]
        # The first job that had not begun; if no job is known to have begun, each is launched alone.
        first = 1 + max(begun, default=numbers[-1])
        returned = [self._launch_alone(job_overrides[n], initial_job_idx + n) for n in numbers[:first]]
        rest = job_overrides[first:]
        return [*returned, *(self.launch(rest, initial_job_idx + first) if rest else [])]

    def _launch_alone(self, overrides: Sequence[str], number: int) -> JobReturn:
        """Run one job, unless it has ended."""
        job = self._job(overrides)
        row = self._rows().get(job.overrides)
        if row is not None and row.ended:
            return JobReturn(overrides=overrides, status=JobStatus.COMPLETED, _return_value=row.tau)
        try:
            return self._launcher.launch([overrides], number)[0]
        except _deaths() as error:
            from mlflow.tracking import MlflowClient

            client = MlflowClient(self._uri)
            job.fail(client, error, lines=2)
            if (row := self._rows()[job.overrides]).run_id:
                client.set_terminated(row.run_id, "FAILED")
            return JobReturn(overrides=overrides, status=JobStatus.COMPLETED, _return_value=None)

    def _job(self, overrides: Sequence[str]) -> "Job":
        from hlorank.runs.sweeps import Job

        composed = self._context.config_loader.load_sweep_config(self._config, list(overrides))
        return Job.of(self._parent, composed.hydra.overrides.task)

    def _rows(self) -> "dict[tuple[str, ...], Row]":
        from mlflow.tracking import MlflowClient

        from hlorank.runs.sweeps import rows_by_job

        return rows_by_job(MlflowClient(self._uri), self._parent)


def _deaths() -> tuple[type[Exception], ...]:
    """Return the exceptions of dead processes: those of joblib, and of submitit and Ray if they are loaded."""
    names = {"submitit.core.utils": "UncompletedJobError", "ray.exceptions": "RayError"}
    return BrokenExecutor, *(getattr(sys.modules[module], names[module]) for module in names if module in sys.modules)
