"""A launcher around the one that the user chose, for sweeps that go on where the process of a job dies."""

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
    from hlorank.sweeps.jobs import Job, Row

log = logging.getLogger(__name__)


class FaultTolerantLauncher(Launcher):
    """Launches jobs by another launcher, which gives them all up where the process of one dies.

    What has come to an end by then stays. Jobs that had begun are launched once more, one at a time, as that says which
    of them dies; it has then failed. Those that had not begun are launched together as before.

    Args:
        launcher: the configuration of the other one.
        parent: run id of the sweep.
        uri: the tracking store.
    """

    def __init__(self, launcher: DictConfig, parent: str, uri: str) -> None:
        self._settings = launcher
        self._parent, self._uri = parent, uri

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Makes the other launcher, and puts its configuration back in its place."""
        with read_write(config):
            config.hydra.launcher = self._settings
        self._context, self._config = hydra_context, config
        self._launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs jobs to their ends; one that has died has no value."""
        try:
            return self._launcher.launch(job_overrides, initial_job_idx)
        except _deaths() as error:
            log.warning("the process of a job died: jobs that had begun are tried once more, one at a time\n%s", error)
        rows = self._rows()
        numbers = range(len(job_overrides))
        begun = [n for n in numbers if (row := rows.get(self._job(job_overrides[n]).overrides)) and row.begun]
        first = 1 + max(begun, default=numbers[-1])  # of those that had not; where none had, each is suspect
        returned = [self._again(job_overrides[n], initial_job_idx + n) for n in numbers[:first]]
        rest = job_overrides[first:]
        return [*returned, *(self.launch(rest, initial_job_idx + first) if rest else [])]

    def _again(self, overrides: Sequence[str], number: int) -> JobReturn:
        """Runs one job, if it has not come to an end."""
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
        from hlorank.sweeps.jobs import Job

        composed = self._context.config_loader.load_sweep_config(self._config, list(overrides))
        return Job.of(self._parent, composed.hydra.overrides.task)

    def _rows(self) -> "dict[tuple[str, ...], Row]":
        from mlflow.tracking import MlflowClient

        from hlorank.sweeps.jobs import rows_by_job

        return rows_by_job(MlflowClient(self._uri), self._parent)


def _deaths() -> tuple[type[Exception], ...]:
    """What launchers raise where a process ends before its job: joblib, submitit and Ray, as far as they are in use."""
    of = {"submitit.core.utils": "UncompletedJobError", "ray.exceptions": "RayError"}
    used = [getattr(sys.modules[module], name) for module, name in of.items() if module in sys.modules]
    return BrokenExecutor, *used
