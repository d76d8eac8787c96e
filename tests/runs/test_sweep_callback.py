"""Sweeps run by Hydra in this process, with a formula in place of trainings."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from copy import deepcopy
from pathlib import Path
from typing import Any

import mlflow
import pytest
from filelock import FileLock
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from mlflow.tracking import MlflowClient
from omegaconf import DictConfig, OmegaConf

import hlorank
from hlorank.config import Config
from hlorank.files import fingerprint, flatten
from hlorank.metrics import BEST_TAU, TRAIN_SECONDS
from hlorank.runs import sweeps as sweep_module
from hlorank.runs.search import current_trial, open_study
from hlorank.runs.store import FINGERPRINT, NOTE, NOTE_LENGTH, PARENT_VARIABLE, finished_training, open_run
from hlorank.runs.sweeps import Job, current_job
from hlorank.stages.command import stage
from hlorank.training.methods import METHODS

NARROW = [
    "loss=hinge",
    "trainer.learning_rate=1",
    "trainer.weight_decay=0",
    "model.blocks=1",
]  # the searches' own space
CONF = Path(hlorank.__file__).parents[2] / "conf"
Call = Callable[..., int]


def train(config: Config) -> float:
    """Replace a training: the result is a formula, and width 13 fails."""
    key = fingerprint([config.method, config.seed, config.model.width])
    finished = finished_training(config.tracking, key)
    if finished is not None:
        return finished[1]
    job = current_job()
    assert job is not None
    with open_run(config.tracking, "job", {FINGERPRINT: key, **job.tags}):
        mlflow.log_params({"seed": config.seed})
        if config.model.width == 13:
            raise RuntimeError("unlucky")
        tau = 1 - abs(config.model.width - 30) / 30 + config.seed / 100
        if (trial := current_trial(config.sweep)) is not None:
            for epoch in range(1, 4):
                trial.report(tau * epoch / 3, epoch)
                trial.raise_if_pruned()
        mlflow.log_metrics({BEST_TAU: tau, TRAIN_SECONDS: 1.0})
        return tau


@pytest.fixture
def call(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that runs a sweep with the real conf/ and returns its exit status."""
    shutil.copytree(CONF, tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    subtrees = {name: getattr(config, name).model_dump(mode="json") for name in ("paths", "tracking")}
    fixed = [f"{key}={value}" for key, value in flatten(subtrees).items()]
    fixed += [f"sweep.storage={config.sweep.storage}", "hydra.job.name=train", "hydra.sweep.dir=sweep"]
    fixed += ["hydra/job_logging=none", "hydra/hydra_logging=none"]
    compose_job, composed = ConfigLoaderImpl.load_sweep_config, dict[tuple[str, ...], DictConfig]()

    def compose_once(loader: ConfigLoaderImpl, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Compose the configuration of a job, which the sweeper and the launchers do several times."""
        key = (*sys.argv, *sweep_overrides)
        if key not in composed:
            composed[key] = compose_job(loader, master_config, sweep_overrides)
        job = deepcopy(composed[key])
        OmegaConf.copy_cache(from_config=master_config, to_config=job)
        return job

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", compose_once)

    def run(*arguments: str, task: Callable[[Config], Any] = train) -> int:
        monkeypatch.setattr(sys, "argv", ["train", "-m", *fixed, *arguments])
        try:
            stage(reads=Config.model_fields)(task)()
        except SystemExit as ended:
            return int(str(ended.code))
        return 0

    return run


def sweeps(client: MlflowClient) -> list[Any]:
    (experiment,) = [one for one in client.search_experiments() if one.name == "hlorank"]
    return [run for run in client.search_runs([experiment.experiment_id]) if "hlorank.sweep" in run.data.tags]


def artifact(client: MlflowClient, run_id: str, name: str) -> str:
    return Path(client.download_artifacts(run_id, f"sweep/{name}")).read_text()


def test_a_sweep_is_the_parent_of_its_jobs_and_has_their_table(
    call: Call, client: MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("method=full,gst", "seed=0,1", "model.width=20") == 0
    (parent,) = sweeps(client)
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["hlorank.sweep"].endswith(" method=full,gst seed=0,1 model.width=20")
    assert parent.info.run_name == f"sweep {parent.data.tags['hlorank.sweep']}"[:250]
    wanted = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    assert len(client.search_runs([parent.info.experiment_id], wanted)) == 4
    lines = artifact(client, parent.info.run_id, "jobs.csv").splitlines()
    assert lines[0] == "method,seed,valid_kendall_tau,train_seconds,state,run_id"
    assert [line.split(",")[:2] for line in lines[1:]] == [["full", "1"], ["gst", "1"], ["full", "0"], ["gst", "0"]]
    assert artifact(client, parent.info.run_id, "seeds.csv").splitlines()[1].startswith("full,2,0.67")
    assert "| gst | 2 | 0.6717 | 0.0071 |" in artifact(client, parent.info.run_id, "summary.md")
    assert "over seeds" in capsys.readouterr().out
    assert artifact(client, parent.info.run_id, "summary.md") in parent.data.tags[NOTE]
    assert PARENT_VARIABLE not in os.environ


@pytest.mark.parametrize("batches", [[], ["hydra.sweeper.max_batch_size=1"]])
def test_failed_jobs_are_reported_and_do_not_stop_the_others(
    batches: list[str], call: Call, client: MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("seed=-1,0", "model.width=13,20", *batches) == 1
    errors = capsys.readouterr().err.splitlines()
    assert [error.partition("Error: ")[0] for error in errors] == [
        "error: model.width=13 seed=-1: Config",
        "error: model.width=13 seed=0: Runtime",
        "error: model.width=20 seed=-1: Config",
    ]
    (parent,) = sweeps(client)
    assert parent.info.status == "FAILED"
    states = [line.split(",")[4] for line in artifact(client, parent.info.run_id, "jobs.csv").splitlines()[1:]]
    assert states == ["finished", "failed", "failed", "failed"]


def test_a_sweep_continues_under_its_name(call: Call, client: MlflowClient, capsys: pytest.CaptureFixture[str]) -> None:
    def dies(config: Config) -> float:
        if config.seed == 1:
            raise KeyboardInterrupt
        return train(config)

    assert call("seed=-1,0,1,2", "sweep.name=one", task=dies) == 130
    assert "error: the sweep was interrupted" in capsys.readouterr().err
    (parent,) = sweeps(client)
    assert (parent.info.status, parent.info.run_name) == ("KILLED", "sweep one")
    assert len(artifact(client, parent.info.run_id, "jobs.csv").splitlines()) == 3
    calls: list[int] = []

    def counts(config: Config) -> float:
        calls.append(config.seed)
        return train(config)

    assert call("seed=0,1,2", "sweep.name=one", task=counts) == 0
    (again,) = sweeps(client)
    assert (again.info.run_id, again.info.status) == (parent.info.run_id, "FINISHED")
    assert calls == [0, 1, 2]
    wanted = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    assert len(client.search_runs([parent.info.experiment_id], wanted)) == 3
    seeds = [line.split(",")[0] for line in artifact(client, parent.info.run_id, "jobs.csv").splitlines()[1:]]
    assert seeds == ["2", "1", "0"]  # the earlier failure is forgotten


@pytest.mark.parametrize("ended_by", ["Ctrl-C", "kill -9"])
def test_an_interrupted_sweep_without_a_name_continues(ended_by: str, call: Call, client: MlflowClient) -> None:
    def dies(config: Config) -> float:
        if config.seed == 1:
            raise KeyboardInterrupt
        return train(config)

    arguments = ["seed=0,1", "+hydra.job.env_set.QUOTED='\"a\"'"]
    assert call(*arguments, task=dies) == 130
    (parent,) = sweeps(client)
    assert parent.info.status == "KILLED"
    if ended_by == "kill -9":
        client.update_run(parent.info.run_id, status="RUNNING")
    assert call("seed=2") == 0
    assert {run.info.run_id: run.info.status for run in sweeps(client)}[parent.info.run_id] == "KILLED"
    assert call(*arguments) == 0
    assert sorted(run.info.status for run in sweeps(client)) == ["FINISHED", "FINISHED"]
    rows = artifact(client, parent.info.run_id, "jobs.csv").splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["1", "0"]
    assert call(*arguments) == 0
    assert len(sweeps(client)) == 3  # a completed sweep is not continued


def test_a_search(call: Call, client: MlflowClient, capsys: pytest.CaptureFixture[str]) -> None:
    trials = ["hydra.sweeper.n_trials=5", "sweep.prune_after_trials=1", "sweep.prune_after_epochs=0"]
    space = [*NARROW, "model.width=range(1,60)"]
    assert call("hparams_search=optuna", "sweep.name=s", *trials, *space) == 0
    (parent,) = sweeps(client)
    table = [line.split(",") for line in artifact(client, parent.info.run_id, "jobs.csv").splitlines()]
    assert table[0][0] == "model.width"
    states = [line[4] for line in table[1:]]
    assert len(states) == 5
    assert set(states) == {"finished", "pruned"}
    assert abs(int(table[1][0]) - 30) == min(abs(int(line[0]) - 30) for line in table[1:])
    assert call("hparams_search=optuna", "sweep.name=s", *trials, *space) == 0  # nothing is left to do
    assert len(artifact(client, parent.info.run_id, "jobs.csv").splitlines()) == 6


def test_a_search_with_failures(call: Call, client: MlflowClient, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["hparams_search=random", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=2", "model.width=13,20"]
    assert call(*arguments, *NARROW, "seed=range(0,9)", "hydra.sweeper.seed=1") == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all(line.startswith("error: model.width=13 seed=") for line in errors)
    assert all(line.endswith(": RuntimeError: unlucky") for line in errors)
    (parent,) = sweeps(client)
    states = [line.split(",")[4] for line in artifact(client, parent.info.run_id, "jobs.csv").splitlines()[1:]]
    assert states == ["finished"] * 3 + ["failed"] * 2


@pytest.fixture
def deadly(monkeypatch: pytest.MonkeyPatch, client: MlflowClient) -> Callable[..., list[int]]:
    """Return a function that makes the launcher die at a job of width 66, as joblib does, a number of times.

    The function returns a list to which each launch appends its number of jobs.
    """
    basic: Any = Plugins.instance().class_name_to_class["hydra._internal.core_plugins.basic_launcher.BasicLauncher"]
    plain, launches = basic.launch, list[int]()

    def make(deaths: int, begins: bool = True) -> list[int]:
        left, running = deaths, set[tuple[str, ...]]()

        def launch(self: Any, jobs: list[list[str]], initial_job_idx: int) -> list[JobReturn]:
            nonlocal left
            launches.append(len(jobs))
            returned: list[JobReturn] = []
            for number, job in enumerate(jobs):
                if left and "model.width=66" in job:
                    left -= 1
                    if begins and tuple(job) not in running:
                        running.add(tuple(job))
                        parent = self.config.hydra.job.env_set[PARENT_VARIABLE]
                        tags = Job.of(parent, job).tags | {"mlflow.parentRunId": parent}
                        client.create_run(client.get_run(parent).info.experiment_id, tags=tags)
                    raise BrokenProcessPool("A worker died.\n\nIts exit code is SIGKILL(-9)\nand so on")
                returned += plain(self, [job], initial_job_idx + number)
            return returned

        monkeypatch.setattr(basic, "launch", launch)
        return launches

    return make


DIED = "BrokenProcessPool: A worker died. Its exit code is SIGKILL(-9)"


@pytest.mark.parametrize(("begins", "launched"), [(True, [6, 1, 3, 1, 2]), (False, [6, 4, 1, 1, 1, 1])])
def test_a_process_that_dies_takes_no_other_job_with_it(
    begins: bool,
    launched: list[int],
    deadly: Callable[..., list[int]],
    call: Call,
    client: MlflowClient,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A job that dies again when it is launched alone has failed; finished jobs are not repeated."""
    launches, trained = deadly(99, begins), list[int]()

    def counts(config: Config) -> float:
        trained.append(config.model.width)
        return train(config)

    assert call("model.width=20,66,21", "seed=0,1", task=counts) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert errors == [f"error: model.width=66 seed={seed}: {DIED}" for seed in (0, 1)]
    assert trained == [20, 20, 21, 21]
    assert launches == launched
    (parent,) = sweeps(client)
    states = [line.split(",")[4] for line in artifact(client, parent.info.run_id, "jobs.csv").splitlines()[1:]]
    assert states == ["finished"] * 4 + ["failed"] * 2
    runs = client.search_runs([parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert sorted(run.info.status for run in runs) == ["FAILED", "FAILED"] * begins + ["FINISHED"] * 4


def test_a_process_that_dies_once(deadly: Callable[..., list[int]], call: Call, client: MlflowClient) -> None:
    launches = deadly(1)
    assert call("model.width=20,66,21", "seed=0,1", "hydra.sweeper.max_batch_size=4") == 0
    assert launches == [4, 1, 1, 2]
    (parent,) = sweeps(client)
    table = artifact(client, parent.info.run_id, "jobs.csv").splitlines()[1:]
    assert [line.split(",")[4] for line in table] == ["finished"] * 6
    config = OmegaConf.load("sweep/multirun.yaml")
    assert config.hydra.launcher._target_.endswith("BasicLauncher")  # as the user chose it


def test_a_trial_that_dies_has_failed(
    deadly: Callable[..., list[int]], call: Call, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    deadly(99)
    arguments = ["hparams_search=random", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=2", "model.width=66,20"]
    assert call(*arguments, *NARROW, "seed=range(0,9)", "hydra.sweeper.seed=1", "sweep.name=s") == 1
    states = [
        trial.state.name for trial in open_study(config.sweep.model_copy(update={"name": "s"}), "", create=False).trials
    ]
    died = [line for line in capsys.readouterr().err.splitlines() if line.endswith(DIED)]
    assert states == ["COMPLETE", "FAIL", "COMPLETE", "FAIL", "COMPLETE"]
    assert len(died) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hparams_search=random", *NARROW, "model.width=8"], "nothing to search"),
        (["hparams_search=random", "hydra.job.name=fetch"], "only trainings can be searched"),
        (["hparams_search=random", "hydra.sweeper.sampler=grid"], "hydra.sweeper.sampler=grid"),
        (["sweep.name=a/b"], "sweep.name=a/b"),
        (["trainer.max_epochs=many"], "trainer.max_epochs"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    arguments: list[str], message: str, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "_open", [])
    assert call(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_without_a_store_nothing_is_trained(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("psycopg", reason="needs psycopg (extra postgresql)")
    closed = "postgresql+psycopg://me:secret@127.0.0.1:1/searches"

    def never(config: Config) -> None:
        raise AssertionError("trained")

    assert call(f"tracking.uri={closed}", "seed=0,1", task=never) == 1
    assert call("hparams_search=random", f"sweep.storage={closed}", task=never) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    for error in errors:
        assert "postgresql+psycopg://***@127.0.0.1:1/searches: " in error
        assert "Connection refused" in error
        assert "secret" not in error


def test_one_process_at_a_time_runs_a_sweep(
    call: Call, client: MlflowClient, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("seed=0", "sweep.name=mine") == 0
    (parent,) = sweeps(client)
    client.update_run(parent.info.run_id, status="RUNNING")
    with FileLock(Path(config.paths.state) / "locks" / parent.info.run_id):
        assert call("seed=0", "sweep.name=mine") == 2
    assert "sweep.name=mine: " in capsys.readouterr().err
    assert client.get_run(parent.info.run_id).info.status == "RUNNING"
    assert call("seed=0", "sweep.name=mine") == 0
    assert len(sweeps(client)) == 1


def test_a_multirun_of_another_stage_is_no_sweep(call: Call, client: MlflowClient) -> None:
    seen: list[str | None] = []
    assert call("seed=0,1", "hydra.job.name=fetch", task=lambda _: seen.append(os.environ.get(PARENT_VARIABLE))) == 0
    assert seen == [None, None]
    assert [one.name for one in client.search_experiments()] == ["Default"]


def test_the_grid_is_over_all_methods() -> None:
    grid = OmegaConf.load(CONF / "hparams_search" / "methods.yaml").hydra.sweeper.params
    assert grid.method == ",".join(METHODS)
    assert len(grid.seed.split(",")) == 3


def test_the_description_of_a_long_sweep_has_its_best_lines() -> None:
    summary = "".join(f"| job {number} |\n" for number in range(2000))
    note = sweep_module._note(summary)
    assert len(note) <= NOTE_LENGTH
    lines = [line for line in note.splitlines() if line.startswith("|")]
    assert lines == summary.splitlines()[: len(lines)]
    assert "sweep/summary.md" in note
