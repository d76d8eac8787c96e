"""Sweeps run by Hydra in this process, with a formula in place of trainings; tables of sweeps."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from mlflow.tracking import MlflowClient
from omegaconf import DictConfig, OmegaConf

import hlorank
from hlorank.config import Config
from hlorank.files import DataError, fingerprint, flatten, one_process
from hlorank.metrics import BEST_TAU, TRAIN_SECONDS
from hlorank.runs import sweeps as sweep_module
from hlorank.runs.search import current_trial
from hlorank.runs.store import FINGERPRINT, NOTE, PARENT_VARIABLE, SWEEP, finished_training, open_run
from hlorank.runs.sweeps import claim, job_names, job_table, job_tags, seed_table
from hlorank.stages.command import stage
from hlorank.training.methods import METHODS

CONF = Path(hlorank.__file__).parents[2] / "conf"
NARROW = ["loss=hinge", "trainer.learning_rate=1", "trainer.weight_decay=0", "model.blocks=1"]  # of the searches' space
CLOSED = "postgresql+psycopg://me:secret@127.0.0.1:1/searches"
Call = Callable[..., int]


def train(config: Config) -> float:
    """Replace a training: the result is a formula, and width 13 fails."""
    key = fingerprint([config.method, config.seed, config.model.width])
    finished = finished_training(config.tracking, key)
    if finished is not None:
        claim(config.tracking, finished[0])
        return finished[1]
    with open_run(config.tracking, "job", {FINGERPRINT: key, **job_tags()}):
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


class Counted:
    """A training that notes its seeds, and that Ctrl-C ends at one of them."""

    def __init__(self, dies: int | None = None) -> None:
        self.seeds, self.dies = list[int](), dies

    def __call__(self, config: Config) -> float:
        if config.seed == self.dies:
            raise KeyboardInterrupt
        self.seeds.append(config.seed)
        return train(config)


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
        key = (*sys.argv, *master_config.hydra.overrides.hydra, *sweep_overrides)
        if key not in composed:
            composed[key] = compose_job(loader, master_config, sweep_overrides)
        job = deepcopy(composed[key])
        OmegaConf.copy_cache(from_config=master_config, to_config=job)
        return job

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", compose_once)

    def run(*arguments: str, task: Callable[[Config], Any] = train) -> int:
        monkeypatch.setattr(sys, "argv", ["train", "-m", *fixed, *arguments])
        try:
            stage(reads=Config.model_fields, writes="models")(lambda config, _: task(config))()
        except SystemExit as ended:
            return int(str(ended.code))
        return 0

    return run


def sweeps(client: MlflowClient) -> list[Any]:
    (experiment,) = [one for one in client.search_experiments() if one.name == "hlorank"]
    return [run for run in client.search_runs([experiment.experiment_id]) if SWEEP in run.data.tags]


def children(client: MlflowClient, parent: Any) -> list[Any]:
    wanted = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    return list(client.search_runs([parent.info.experiment_id], wanted))


def artifact(client: MlflowClient, parent: Any, name: str) -> str:
    return Path(client.download_artifacts(parent.info.run_id, f"sweep/{name}")).read_text()


def jobs(client: MlflowClient, parent: Any) -> list[list[str]]:
    return [line.split(",") for line in artifact(client, parent, "jobs.csv").splitlines()]


def test_a_sweep_is_the_parent_of_its_jobs_and_has_their_table(
    call: Call, client: MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("method=full,gst", "seed=0,1", "model.width=20") == 0
    (parent,) = sweeps(client)
    assert parent.info.status == "FINISHED"
    assert parent.data.tags[SWEEP].endswith(" method=full,gst seed=0,1 model.width=20")
    assert parent.info.run_name == f"sweep {parent.data.tags[SWEEP]}"[:250]
    assert len(children(client, parent)) == 4
    head, *lines = jobs(client, parent)
    assert head == ["method", "seed", "valid_kendall_tau", "train_seconds", "state", "run_id"]
    assert [line[:2] for line in lines] == [["full", "1"], ["gst", "1"], ["full", "0"], ["gst", "0"]]
    assert artifact(client, parent, "seeds.csv").splitlines()[1].startswith("full,2,0.67")
    assert "over seeds" in capsys.readouterr().out
    assert re.search(r"^ *gst +2 +0\.6717 +0\.0071$", parent.data.tags[NOTE], re.MULTILINE)
    assert PARENT_VARIABLE not in os.environ


@pytest.mark.parametrize("batches", [[], ["hydra.sweeper.max_batch_size=1"]])
def test_failed_jobs_are_reported_and_do_not_stop_the_others(
    batches: list[str], call: Call, client: MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong configuration fails before its training begins: it has a run without one."""
    assert call("seed=-1,0", "model.width=13,20", *batches) == 1
    errors = capsys.readouterr().err.splitlines()
    assert [error.partition("Error: ")[0] for error in errors] == [
        "error: model.width=13 seed=-1: Config",
        "error: model.width=13 seed=0: Runtime",
        "error: model.width=20 seed=-1: Config",
    ]
    (parent,) = sweeps(client)
    assert parent.info.status == "FAILED"
    assert [line[4] for line in jobs(client, parent)[1:]] == ["finished", "failed", "failed", "failed"]
    assert sorted(run.info.status for run in children(client, parent)) == ["FAILED"] * 3 + ["FINISHED"]


def test_a_sweep_continues_under_its_name(call: Call, client: MlflowClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("seed=-1,0,1,2", "sweep.name=one", task=Counted(dies=1)) == 130
    assert "error: the sweep was interrupted" in capsys.readouterr().err
    (parent,) = sweeps(client)
    assert (parent.info.status, parent.info.run_name) == ("KILLED", "sweep one")
    assert len(jobs(client, parent)) == 3
    assert call("seed=0,1,2", "sweep.name=one", task=(counted := Counted())) == 0
    (again,) = sweeps(client)
    assert (again.info.run_id, again.info.status) == (parent.info.run_id, "FINISHED")
    assert counted.seeds == [0, 1, 2]
    assert len(children(client, parent)) == 3  # the training of seed 0 was taken, the earlier failure is forgotten
    assert [line[0] for line in jobs(client, parent)[1:]] == ["2", "1", "0"]


@pytest.mark.parametrize("ended_by", ["Ctrl-C", "kill -9"])
def test_an_interrupted_sweep_without_a_name_continues(ended_by: str, call: Call, client: MlflowClient) -> None:
    arguments = ["seed=0,1", "+hydra.job.env_set.QUOTED='\"a\"'"]
    assert call(*arguments, task=Counted(dies=1)) == 130
    (parent,) = sweeps(client)
    assert parent.info.status == "KILLED"
    if ended_by == "kill -9":
        client.update_run(parent.info.run_id, status="RUNNING")
    assert call("seed=2") == 0
    assert call(*arguments) == 0
    assert sorted(run.info.status for run in sweeps(client)) == ["FINISHED", "FINISHED"]
    assert [row[0] for row in jobs(client, parent)[1:]] == ["1", "0"]
    assert call(*arguments) == 0
    assert len(sweeps(client)) == 3  # a completed sweep is not continued
    assert len(children(client, parent)) == 2
    (third,) = [sweep for sweep in sweeps(client) if not children(client, sweep)]
    assert [row[0] for row in jobs(client, third)[1:]] == ["1", "0"]  # trainings of the first sweep


def test_a_worker_that_dies_takes_no_finished_job_with_it(
    call: Call, client: MlflowClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command continues; joblib abandons all jobs if the process of one dies."""
    basic: Any = Plugins.instance().class_name_to_class["hydra._internal.core_plugins.basic_launcher.BasicLauncher"]
    plain = basic.launch

    def launch(self: Any, jobs: list[list[str]], initial_job_idx: int) -> list[JobReturn]:
        plain(self, jobs[:1], initial_job_idx)
        raise BrokenProcessPool("a worker died")

    with monkeypatch.context() as patched:
        patched.setattr(basic, "launch", launch)
        assert call("seed=0,1,2") == 1
    assert "error: the sweep was interrupted; the same command continues" in capsys.readouterr().err
    (parent,) = sweeps(client)
    assert parent.info.status == "KILLED"
    (first,) = children(client, parent)
    assert call("seed=0,1,2") == 0
    (again,) = sweeps(client)
    assert again.info.run_id == parent.info.run_id
    runs = children(client, parent)
    assert len(runs) == 3
    assert first.info.run_id in {run.info.run_id for run in runs}


def test_a_search(call: Call, client: MlflowClient) -> None:
    trials = ["hydra.sweeper.n_trials=5", "sweep.prune_after_trials=1", "sweep.prune_after_epochs=0"]
    space = [*NARROW, "model.width=range(1,60)"]
    assert call("hparams_search=optuna", "sweep.name=s", *trials, *space) == 0
    (parent,) = sweeps(client)
    head, *rows = jobs(client, parent)
    assert head[0] == "model.width"
    assert len(rows) == 5
    assert {row[4] for row in rows} == {"finished", "pruned"}
    assert abs(int(rows[0][0]) - 30) == min(abs(int(row[0]) - 30) for row in rows)
    assert call("hparams_search=optuna", "sweep.name=s", *trials, *space) == 0  # nothing is left to do
    assert len(jobs(client, parent)) == 6


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["hparams_search=random", *NARROW, "model.width=8"], 2, "nothing to search"),
        (["hparams_search=random", "hydra.job.name=fetch"], 2, "only trainings can be searched"),
        (["hparams_search=random", "hydra.sweeper.sampler=grid"], 2, "hydra.sweeper.sampler=grid"),
        (["hparams_search=random", f"sweep.storage={CLOSED}"], 2, "***@127.0.0.1:1/searches: "),
        ([f"tracking.uri={CLOSED}"], 1, "***@127.0.0.1:1/searches: "),
        (["sweep.name=a/b"], 2, "sweep.name=a/b"),
        (["trainer.max_epochs=many"], 2, "trainer.max_epochs"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_trained(
    arguments: list[str],
    status: int,
    message: str,
    call: Call,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if any(CLOSED in argument for argument in arguments):
        pytest.importorskip("psycopg", reason="needs psycopg (extra postgresql)")
    monkeypatch.setattr(sweep_module, "_open", [])
    assert call(*arguments, task=(counted := Counted())) == status
    assert counted.seeds == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert "secret" not in line


def test_one_process_at_a_time_runs_a_sweep(
    call: Call, client: MlflowClient, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process of the same sweep waits, and finds all trainings."""
    locked = list[Path]()

    def noted(lock: Path, work: str) -> Any:
        locked.append(lock)
        return one_process(lock, work)

    monkeypatch.setattr(sweep_module, "one_process", noted)
    for arguments in (["sweep.name=mine"], ["sweep.name=mine", "seed=0"], ["seed=0"], ["seed=1"]):
        assert call(*arguments) == 0
    assert [locked.index(lock) for lock in locked] == [0, 0, 2, 3]
    assert {lock.parent for lock in locked} == {Path(config.paths.state) / "locks"}
    assert len(sweeps(client)) == 3


def test_a_multirun_of_another_stage_is_no_sweep(call: Call, client: MlflowClient) -> None:
    seen: list[str | None] = []
    assert call("seed=0,1", "hydra.job.name=fetch", task=lambda _: seen.append(os.environ.get(PARENT_VARIABLE))) == 0
    assert seen == [None, None]
    assert [one.name for one in client.search_experiments()] == ["Default"]


def test_the_grid_is_over_all_methods() -> None:
    grid = OmegaConf.load(CONF / "hparams_search" / "methods.yaml").hydra.sweeper.params
    assert grid.method == ",".join(METHODS)
    assert len(grid.seed.split(",")) == 3


class Table:
    """Client of a store with the runs of one sweep, the latest first."""

    def __init__(self, *runs: Any) -> None:
        self.runs = list(reversed(runs))

    def get_run(self, _: str) -> Any:
        return SimpleNamespace(info=SimpleNamespace(experiment_id="0"))

    def search_runs(self, *_: Any, **__: Any) -> list[Any]:
        return self.runs


def run(method: str, seed: int, tau: float | None = None, status: str = "FINISHED", **other: str) -> Any:
    """Return a run of a sweep, with a reason of its failure, `ended_by`, and further overrides."""
    reason, ended_by = other.pop("reason", None), other.pop("ended_by", None)
    values = {"trainer.max_epochs": "3", "method": method, "seed": str(seed), **other}
    tags = {f"{SWEEP}.p": json.dumps(values, sort_keys=True), "hlorank.reason": reason, "ended_by": ended_by}
    data = SimpleNamespace(
        tags={key: value for key, value in tags.items() if value is not None},
        params={"seed": str(seed)},
        metrics={} if tau is None else {BEST_TAU: tau, TRAIN_SECONDS: 1.25},
    )
    return SimpleNamespace(info=SimpleNamespace(run_id=f"run {method} {seed}", status=status), data=data)


RUNS = [
    run("full", 0, 0.25),
    run("full", 1, 0.75),
    run("gst", 1, status="FAILED", reason="KeyError: x"),
    run("gst", 0, 0.625, "RUNNING"),  # a complete training whose evaluation was killed
    run("gst_e", 0, status="KILLED", ended_by="pruning"),
    run("gst_e", 1, status="RUNNING"),
    run("gst_e", 2, status="FAILED"),  # stopped from outside
]


def test_one_row_for_each_job_the_best_first() -> None:
    table = job_table(Table(*RUNS), "p")
    assert list(table.columns) == ["method", "seed", "valid_kendall_tau", "train_seconds", "state", "run_id", "reason"]
    found = list(zip(table["method"], table["seed"], table["valid_kendall_tau"], table["state"], strict=True))
    assert found[:3] == [
        ("full", "1", 0.75, "finished"),
        ("gst", "0", 0.625, "finished"),
        ("full", "0", 0.25, "finished"),
    ]
    assert [(method, state) for method, _, _, state in found[3:]] == [
        ("gst", "failed"),
        ("gst_e", "pruned"),
        ("gst_e", "interrupted"),
        ("gst_e", "interrupted"),
    ]
    assert table["train_seconds"].isna().tolist() == [False] * 3 + [True] * 4
    assert table["reason"].tolist() == [""] * 3 + ["KeyError: x"] + [""] * 3
    assert job_names(table)[0] == "method=full seed=1"
    nothing = job_table(Table(), "p")
    assert len(nothing) == 0
    assert seed_table(nothing).empty


def test_of_several_runs_of_a_job_the_most_advanced_counts() -> None:
    failed = [run("gst", 0, status="FAILED", reason=reason) for reason in ("first", "second")]
    assert job_table(Table(*failed), "p")["reason"].tolist() == ["second"]
    table = job_table(Table(failed[0], run("gst", 0, 0.5), failed[1]), "p")
    assert table["state"].tolist() == ["finished"]
    # Numbers and folders of jobs are no keys; a key that a job lacks has its default there.
    other = run("gst", 0, 0.1, output="a", **{"sweep.trial": "1", "loss": "hinge"})
    assert list(job_table(Table(other, run("gst", 0, 0.2)), "p").columns[:2]) == ["loss", "seed"]


def test_the_spread_over_seeds() -> None:
    seeds = seed_table(job_table(Table(*RUNS), "p")).to_dict("records")
    assert [one["method"] for one in seeds] == ["gst", "full"]
    assert (seeds[1]["seeds"], seeds[1]["mean"]) == (2, 0.5)
    assert seeds[1]["standard_deviation"] == pytest.approx(math.sqrt(0.125))
    assert seeds[0]["seeds"] == 1
    assert math.isnan(seeds[0]["standard_deviation"])
    (one,) = seed_table(job_table(Table(*RUNS[:2]), "p")).to_dict("records")  # nothing varies but the seed
    assert one == {"seeds": 2, "mean": 0.5, "standard_deviation": pytest.approx(math.sqrt(0.125))}


@pytest.fixture
def in_job(config: Config, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Function that makes this process a job of a sweep, with overrides, and returns the sweep's run."""
    with open_run(config.tracking, "sweep", {}) as (parent, _):
        pass
    monkeypatch.setenv(PARENT_VARIABLE, parent)

    def enter(*overrides: str) -> str:
        monkeypatch.setattr(sweep_module, "task_overrides", lambda: list(overrides))
        return parent

    return enter


def test_a_claimed_run_keeps_its_values(
    config: Config, client: MlflowClient, in_job: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example if a sweep over methods is continued as a sweep over methods and seeds."""
    parent = in_job("+method=full", "tracking.uri=http://me:secret@host")
    with open_run(config.tracking, "job", job_tags()) as (run_id, _):
        mlflow.log_metric(BEST_TAU, 0.5)
    in_job("seed=0", "method=full")
    claim(config.tracking, run_id)
    values = json.loads(client.get_run(run_id).data.tags[f"{SWEEP}.{parent}"])
    assert values == {"method": "full", "seed": "0", "tracking.uri": "http://***@host"}
    assert job_table(client, parent)["seed"].tolist() == ["0"]
    monkeypatch.delenv(PARENT_VARIABLE)
    assert job_tags() == {}
    claim(config.tracking, "no run")


def test_reasons_of_failures(config: Config, client: MlflowClient, in_job: Callable[..., str]) -> None:
    parent = in_job("seed=1")
    with open_run(config.tracking, "job", job_tags()) as (run_id, _):
        mlflow.log_param("seed", 1)
    client.set_terminated(run_id, "RUNNING")
    sweep_module._record_failure(client, parent, ["seed=1"], OSError("\ndisk full\nmore"))
    sweep_module._record_failure(client, parent, ["seed=2"], DataError("key", "1", 2, file="f" * 9000))
    sweep_module._record_failure(client, parent, ["seed=3"], KeyError())
    table = job_table(client, parent)
    assert table["reason"].tolist()[::2] == ["OSError: disk full", "KeyError"]
    assert table["reason"][1].startswith("DataError: fff")
    sweep_module._retry(client, parent)
    assert job_table(client, parent)["state"].tolist() == ["interrupted"]  # runs without a training are deleted
