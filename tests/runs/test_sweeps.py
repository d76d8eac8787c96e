"""Sweeps with a formula in place of trainings, their tables, and sweeps of real trainings by each launcher."""

import importlib.util
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import matplotlib as mpl
import mlflow
import pandas as pd
import psutil
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient
from omegaconf import DictConfig, OmegaConf

import hlorank
from hlorank.config import Config
from hlorank.files import DataError, fingerprint, flatten, one_process
from hlorank.metrics import BEST_TAU, TRAIN_LOSS, TRAIN_SECONDS
from hlorank.runs import sweeps as sweep_module
from hlorank.runs.search import current_trial, report
from hlorank.runs.store import FINGERPRINT, NOTE, PARENT_VARIABLE, SWEEP, finished_training, open_run
from hlorank.runs.sweeps import claim, job_names, job_table, job_tags, seed_table
from hlorank.stages.command import stage
from hlorank.training.methods import METHODS
from tests.runs.conftest import children, jobs, sweeps

CONF = Path(hlorank.__file__).parents[2] / "conf"
NARROW = ["loss=hinge", "trainer.learning_rate=1", "trainer.weight_decay=0", "model.blocks=1"]  # of the searches' space
CLOSED = "postgresql+psycopg://me@127.0.0.1:1/searches"
Call = Callable[..., int]
Start = Callable[..., subprocess.Popen[str]]


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
                report(trial, tau * epoch / 3, epoch, last=False)
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
def call(config: Config, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that runs a sweep with the real conf/ and returns its exit status."""
    shutil.copytree(CONF, cwd / "conf")
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


def test_a_sweep_has_a_table_of_its_jobs(call: Call, client: MlflowClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("method=full,gst", "seed=0,1", "model.width=20") == 0
    (parent,) = sweeps(client)
    assert parent.info.status == "FINISHED"
    assert parent.data.tags[SWEEP].startswith("method=full,gst seed=0,1 paths.")
    assert parent.info.run_name == f"sweep {parent.data.tags[SWEEP]}"[:250]
    assert parent.data.metrics == pytest.approx({"sweep/jobs": 4, "sweep/best_kendall_tau": 0.67166667})
    assert parent.data.tags["sweep/best/method"] == "full"
    assert len(children(client, parent)) == 4
    rows = jobs(client, parent)
    assert list(rows[0]) == ["method", "seed", "valid_kendall_tau", "train_seconds", "state", "run_id"]
    assert [(row["method"], row["seed"]) for row in rows] == [("full", "1"), ("gst", "1"), ("full", "0"), ("gst", "0")]
    table = Path(client.download_artifacts(parent.info.run_id, "sweep/seeds.csv")).read_text()
    assert table.splitlines()[1].startswith("full,2,0.67")
    assert "over seeds" in capsys.readouterr().out
    assert re.search(r"^ *gst +2 +0\.6717 +0\.0071$", parent.data.tags[NOTE], re.MULTILINE)
    assert PARENT_VARIABLE not in os.environ


def test_an_override_of_any_length_and_trainings_that_had_finished(call: Call, client: MlflowClient) -> None:
    for width in (20, 30):
        assert call(f"model.width={width},10", f"+model.operators.X.a={'x' * 9000}") == 0
    second, first = sweeps(client)
    assert [len(jobs(client, parent)) for parent in (first, second)] == [2, 2]


def test_failed_jobs_do_not_stop_others(call: Call, client: MlflowClient, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong configuration fails before its training begins: it has a run without one."""
    assert call("seed=-a,0", "model.width=13,20", "hydra.sweeper.max_batch_size=2") == 1
    errors = capsys.readouterr().err.splitlines()
    assert [error.partition("Error: ")[0] for error in errors] == [
        "error: model.width=13 seed=-a: Config",
        "error: model.width=13 seed=0: Runtime",
        "error: model.width=20 seed=-a: Config",
    ]
    (parent,) = sweeps(client)
    assert parent.info.status == "FAILED"
    rows = [(row["state"], row["seed"]) for row in jobs(client, parent)]
    assert rows == [("finished", "0"), *[("failed", seed) for seed in ("'-a", "0", "'-a")]]
    assert sorted(run.info.status for run in children(client, parent)) == ["FAILED"] * 3 + ["FINISHED"]


def test_a_sweep_continues_under_its_name(call: Call, client: MlflowClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("seed=-1,0,1,2", "sweep.name=one", task=Counted(dies=1)) == 130
    assert "error: the sweep was interrupted" in capsys.readouterr().err
    (parent,) = sweeps(client)
    assert (parent.info.status, parent.info.run_name) == ("KILLED", "sweep one")
    assert len(jobs(client, parent)) == 2
    assert (call("compute=serial,no", "sweep.name=one"), sweeps(client)[0].info.status) == (2, "KILLED")
    table = job_table(client, parent.info.run_id)
    assert sorted(table["state"] + table["reason"].str[:6]) == ["failedConfig", "finished"]
    assert call("seed=0,1,2", "sweep.name=one", task=(counted := Counted())) == 0
    (again,) = sweeps(client)
    assert (again.info.run_id, again.info.status) == (parent.info.run_id, "FINISHED")
    assert counted.seeds == [0, 1, 2]
    assert len(children(client, parent)) == 3  # the training of seed 0 was taken, the earlier failure is forgotten
    assert [row["seed"] for row in jobs(client, parent)] == ["2", "1", "0"]


def test_an_interrupted_sweep_without_a_name_continues(call: Call, client: MlflowClient) -> None:
    arguments = ["seed=0,1", "+hydra.job.env_set.QUOTED='\"a\"'"]
    for status in ("KILLED", "RUNNING"):  # as after Ctrl-C and after kill -9
        assert call(*arguments, task=Counted(dies=1)) == 130
        (parent,) = sweeps(client)
        assert parent.info.status == "KILLED"
        client.update_run(parent.info.run_id, status=status)
    assert call("seed=2") == 0
    assert call(*arguments) == 0
    assert sorted(run.info.status for run in sweeps(client)) == ["FINISHED", "FINISHED"]
    assert call(*arguments) == 0
    third, *earlier = sweeps(client)
    assert len(earlier) == 2, "a completed sweep is not continued"
    assert (len(children(client, parent)), len(children(client, third))) == (2, 0), "trainings of the first sweep"
    for sweep in (parent, third):
        assert [row["seed"] for row in jobs(client, sweep)] == ["1", "0"]


def test_a_search(call: Call, client: MlflowClient) -> None:
    trials = ["hydra.sweeper.n_trials=5", "sweep.prune_after_trials=1", "sweep.prune_after_epochs=0"]
    space = [*NARROW, "model.width=range(1,60)"]
    for _ in range(2):  # nothing is left to do in the end
        assert call("hparams_search=optuna", "sweep.name=s", *trials, *space) == 0
        (parent,) = sweeps(client)
        rows = jobs(client, parent)
        assert next(iter(rows[0])) == "model.width"
        assert len(rows) == 5
    assert {row["state"] for row in rows} == {"finished", "pruned"}
    for name in ("s", "new"):  # a mistake before any job leaves no trace
        assert call("hparams_search=optuna", f"sweep.name={name}", "hydra.sweeper.n_jobs=0", *space) == 2
        assert [(run.info.run_id, run.info.status) for run in sweeps(client)] == [(parent.info.run_id, "FINISHED")]
    distances = [abs(int(row["model.width"]) - 30) for row in rows]
    assert distances[0] == min(distances)


def test_mistakes_are_one_line_and_nothing_is_trained(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("psycopg", reason="needs psycopg (extra postgresql)")
    for arguments, status, message in (
        (["hparams_search=random", *NARROW, "model.width=8"], 2, "nothing to search"),
        (["hparams_search=random", "hydra.job.name=fetch"], 2, "only trainings can be searched"),
        (["hparams_search=random", "hydra.sweeper.sampler=grid"], 2, "hydra.sweeper.sampler=grid"),
        (["hparams_search=random", f"sweep.storage={CLOSED}"], 2, "***@127.0.0.1:1/searches: "),
        ([f"tracking.uri={CLOSED}"], 1, "***@127.0.0.1:1/searches: "),
        (["sweep.name=a/b"], 2, "sweep.name=a/b"),
        (["seed=0,1", "output=there"], 2, "output=there"),
        (["hydra.run.dir=there"], 2, "hydra.run.dir=there"),
        (["trainer.max_epochs=many"], 2, "trainer.max_epochs"),
    ):
        assert call(*arguments, task=lambda _: pytest.fail("a training began")) == status
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert message in line
        assert "secret" not in line


def test_one_process_at_a_time_runs_a_sweep(settings: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "one_process", noted := Mock(wraps=one_process))
    for name, overrides in (("mine", []), ("mine", ["seed=0"]), (None, ["seed=0"]), (None, ["seed=1"])):
        named = settings(**{} if name is None else {"sweep__name": name})
        assert sweep_module.Sweep(named, overrides).close(completed=True) == 0
    locked = [call.args[0] for call in noted.call_args_list]
    assert [locked.index(lock) for lock in locked] == [0, 0, 2, 3]


def test_a_multirun_of_another_stage_is_no_sweep(call: Call, client: MlflowClient) -> None:
    seen: list[str | None] = []
    assert call("seed=0,1", "hydra.job.name=fetch", task=lambda _: seen.append(os.environ.get(PARENT_VARIABLE))) == 0
    assert seen == [None, None]
    assert [one.name for one in client.search_experiments()] == ["Default"]


def test_the_grid_is_over_all_methods() -> None:
    grid = OmegaConf.load(CONF / "hparams_search" / "methods.yaml").hydra.sweeper.params
    assert grid.method == ",".join(METHODS)
    assert len(grid.seed.split(",")) == 3


@pytest.fixture
def table_of(client: MlflowClient) -> Callable[..., pd.DataFrame]:
    """Function that makes the runs of a sweep, each later than the one before, and returns the table of the sweep."""

    def make(*runs: tuple[dict[str, str], float | None, str, dict[str, str]]) -> pd.DataFrame:
        experiment = client.create_experiment(f"sweep {len(client.search_experiments())}")
        parent = client.create_run(experiment).info.run_id
        for number, (job, tau, status, tags) in enumerate(runs, start=1):
            own = {f"{SWEEP}.{parent}": json.dumps(job, sort_keys=True), **tags}
            run_id = client.create_run(experiment, start_time=number, tags=own).info.run_id
            results = [] if tau is None else [Metric(BEST_TAU, tau, 0, 0), Metric(TRAIN_SECONDS, 1.25, 0, 0)]
            client.log_batch(run_id, results, [Param("seed", job["seed"])])
            client.set_terminated(run_id, status)
        return job_table(client, parent)

    return make


def job(method: str, seed: int, **overrides: str) -> dict[str, str]:
    return {"trainer.max_epochs": "3", "method": method, "seed": str(seed), **overrides}


def test_one_row_for_each_job_the_best_first(table_of: Callable[..., pd.DataFrame]) -> None:
    runs = [
        (job("full", 0), 0.25, "FINISHED", {}),
        (job("full", 1), 0.75, "FINISHED", {}),
        (job("gst", 1), None, "FAILED", {"hlorank.reason": "KeyError: x"}),
        (job("gst", 0), 0.625, "RUNNING", {}),  # a complete training whose evaluation was killed
        (job("gst_e", 0), None, "KILLED", {"ended_by": "pruning"}),
        (job("gst_e", 1), None, "RUNNING", {}),
        (job("gst_e", 2), None, "FAILED", {}),  # stopped from outside
    ]
    table = table_of(*runs)
    shown = ["method", "seed", "valid_kendall_tau", "state", "reason"]
    assert list(table.columns) == [*shown[:3], "train_seconds", "state", "run_id", "reason"]
    assert table[shown].fillna(0).values.tolist() == [
        ["full", "1", 0.75, "finished", ""],
        ["gst", "0", 0.625, "finished", ""],
        ["full", "0", 0.25, "finished", ""],
        ["gst", "1", 0, "failed", "KeyError: x"],
        ["gst_e", "0", 0, "pruned", ""],
        ["gst_e", "1", 0, "interrupted", ""],
        ["gst_e", "2", 0, "interrupted", ""],
    ]
    assert table["train_seconds"].isna().tolist() == [False] * 3 + [True] * 4
    assert job_names(table)[0] == "method=full seed=1"
    spread = {"seeds": 2, "mean": 0.5, "standard_deviation": pytest.approx(math.sqrt(0.125))}
    first, second = seed_table(table).to_dict("records")
    assert (first["method"], first["seeds"], math.isnan(first["standard_deviation"])) == ("gst", 1, True)
    assert second == {"method": "full", **spread}
    assert seed_table(table_of(*runs[:2])).to_dict("records") == [spread], "nothing varies but the seed"
    nothing = table_of()
    assert len(nothing) == 0
    assert seed_table(nothing).empty


def test_of_several_runs_of_a_job_the_most_advanced_counts(table_of: Callable[..., pd.DataFrame]) -> None:
    first, second = ((job("gst", 0), None, "FAILED", {"hlorank.reason": reason}) for reason in ("first", "second"))
    assert table_of(first, second)["reason"].tolist() == ["second"]
    assert table_of(first, (job("gst", 0), 0.5, "FINISHED", {}), second)["state"].tolist() == ["finished"]
    # Numbers and folders of jobs are no keys; a key that a job lacks has its default there.
    other = job("gst", 0, output="a", **{"sweep.trial": "1", "loss": "hinge"})
    table = table_of((other, 0.1, "FINISHED", {}), (job("gst", 0), 0.2, "FINISHED", {}))
    assert list(table.columns[:2]) == ["loss", "seed"]
    table = table_of(*((job("gst", 0, collection=one), tau, "FINISHED", {}) for one, tau in (("b", 0.5), ("a", 0.25))))
    assert [*table["collection"], *seed_table(table)["collection"]] == ["a", "b"] * 2, "taus cannot be compared"
    assert table_of((job("gst", 0), math.inf, "FINISHED", {}))["valid_kendall_tau"].isna().all()


def test_a_claimed_run_keeps_its_values(config: Config, client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example if a sweep over methods is continued as a sweep over methods and seeds."""
    with open_run(config.tracking, "sweep", {}) as (parent, _):
        pass
    monkeypatch.setenv(PARENT_VARIABLE, parent)
    overrides = ["+method=full", "tracking.uri=http://me:secret@host"]
    monkeypatch.setattr(sweep_module, "task_overrides", lambda: overrides)
    with open_run(config.tracking, "job", job_tags()) as (run_id, _):
        mlflow.log_metric(BEST_TAU, 0.5)
    overrides[:] = ["seed=0", "method=full"]
    claim(config.tracking, run_id)
    values = json.loads(client.get_run(run_id).data.tags[f"{SWEEP}.{parent}"])
    assert values == {"method": "full", "seed": "0", "tracking.uri": "http://***@host"}
    monkeypatch.delenv(PARENT_VARIABLE)
    assert job_tags() == {}
    claim(config.tracking, "no run")


def test_reasons_of_failures(call: Call, client: MlflowClient, caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception] = [OSError("\nfull: sqlite://me:word@a/b\nmore"), DataError("key", "1", 2, file="f" * 9000)]
    errors.append(KeyError())
    assert call("seed=0,1,2", task=Mock(side_effect=errors)) == 1
    assert "Traceback" in caplog.text
    assert "word" not in caplog.text
    (parent,) = sweeps(client)
    reasons = job_table(client, parent.info.run_id)["reason"].tolist()
    assert reasons[::2] == ["OSError: full: sqlite://***@a/b", "KeyError"]
    assert reasons[1].startswith("DataError: fff")


LAUNCHERS = {
    "joblib": ("joblib", ["hydra.launcher.n_jobs=2"]),
    "submitit_local": ("submitit", []),
    "ray": ("ray", ["+hydra.launcher.ray.init.num_cpus=2", "+hydra.launcher.ray.init.include_dashboard=false"]),
}


@pytest.fixture
def start(config: Config, tmp_path: Path) -> Start:
    """Return a function that starts the stage train in a project folder of its own, with a training of seconds."""
    shutil.copytree(CONF, tmp_path / "conf")
    subtrees = {name: getattr(config, name).model_dump(mode="json") for name in ("paths", "trainer", "tracking")}
    fixed = [f"{name}={value}" for name, value in flatten(subtrees).items() if value is not None]
    fixed += [f"collection={config.collection}", f"sweep.storage={config.sweep.storage}", "model.width=8"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_TR", "HYDRA"))}
    # Ray keeps a token in the home folder.
    environment |= {"PYTHONPATH": str(CONF.with_name("src")), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    environment |= {"MPLCONFIGDIR": mpl.get_configdir()}  # fonts are searched once
    environment |= {"RAY_worker_niceness": "0"}  # by default workers starve beside other tests

    def started(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "hlorank.stages.train", "-m", *fixed, *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return started


def launcher(name: str) -> list[str]:
    package, settings = LAUNCHERS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return [f"hydra/launcher={name}", *settings]


def wait(process: subprocess.Popen[str], found: Callable[[], list[Any]]) -> list[Any]:
    """Wait until something is found while the process runs."""
    deadline = time.monotonic() + 300
    while not (runs := found()):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return runs


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher(name: str, start: Start, client: MlflowClient) -> None:
    """Jobs, of a method that needs no Lightning, find their sweep; a failure is reported and stops no other job."""
    process = start("method=unknown,linear_ranking", *launcher(name))
    _, errors = process.communicate()
    assert process.returncode == 1, errors
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert line.split(": ")[1:3] == ["method=unknown", "ConfigError"]
    (parent,) = sweeps(client)
    assert parent.info.status == "FAILED"
    statuses = {run.info.run_id: run.info.status for run in children(client, parent)}
    rows = {row["method"]: (row["state"], statuses[row["run_id"]]) for row in jobs(client, parent)}
    assert rows == {"linear_ranking": ("finished", "FINISHED"), "unknown": ("failed", "FAILED")}


@pytest.mark.slow
def test_a_killed_search_is_resumed(start: Start, client: MlflowClient) -> None:
    """It resumes its second training from its checkpoint."""
    arguments = ["sweep.name=k", "trainer.max_epochs=12", "trainer.steps_per_epoch=8", "trainer.patience=12"]
    arguments += ["hparams_search=random", "hydra.sweeper.n_trials=3", "model.width=8", "model.blocks=1"]
    arguments += ["loss=hinge", "trainer.weight_decay=0", "trainer.learning_rate=interval(1e-3, 1e-2)"]
    process = start(*arguments)

    def epochs(run: Any) -> int:
        return len(client.get_metric_history(run.info.run_id, TRAIN_LOSS))

    def second_at_epoch_three() -> list[Any]:
        begun = begun_in(client)
        return [run for run in begun if len(begun) == 2 and run.info.status == "RUNNING" and epochs(run) >= 3]

    (running,) = wait(process, second_at_epoch_three)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (killed,), steps = sweeps(client), epochs(running)
    assert steps < 12
    assert {run.info.status for run in children(client, killed)} == {"FINISHED", "RUNNING"}

    process = start(*arguments)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    (parent,) = sweeps(client)
    assert (parent.info.run_id, parent.info.status) == (killed.info.run_id, "FINISHED")
    runs = {run.info.run_id: run.info.status for run in children(client, parent)}
    assert list(runs.values()) == ["FINISHED"] * 3
    assert running.info.run_id in runs
    assert f"epoch {steps + 2} of 12" in output
    assert "epoch 1 of 12" in output  # of those that had not begun


@pytest.mark.slow
@pytest.mark.parametrize("parent", [False, True])
def test_a_sweep_whose_process_died_is_continued(parent: bool, start: Start, client: MlflowClient) -> None:
    """The training of the worker that died resumes from its checkpoint, with its run; workers end with the parent."""
    arguments = ["seed=0,1", *launcher("joblib"), "trainer.max_epochs=12", "trainer.steps_per_epoch=8"]
    process = start(*arguments)
    running = wait(process, lambda: [run for run in begun_in(client) if TRAIN_LOSS in run.data.metrics])
    workers = psutil.Process(process.pid).children(recursive=True)
    (process if parent else max(workers, key=lambda worker: worker.cpu_times().user)).kill()
    _, errors = process.communicate(timeout=300)
    assert process.returncode == (-signal.SIGKILL if parent else 1)
    if parent:
        assert {run.info.status for run in begun_in(client)} == {"RUNNING"}
    else:
        assert re.search("^error: seed=[01]: interrupted$", errors, re.MULTILINE)
        assert "the same command continues with the remaining jobs" in errors
    process = start(*arguments)
    output, errors = process.communicate()
    assert process.returncode == 0, output + errors
    (sweep,) = sweeps(client)
    assert [row["state"] for row in jobs(client, sweep)] == ["finished"] * 2
    runs = {run.info.run_id: run.info.status for run in children(client, sweep)}
    assert list(runs.values()) == ["FINISHED"] * 2
    assert running[0].info.run_id in runs


def begun_in(client: MlflowClient) -> list[Any]:
    """Return the child runs of the sweep, none before it has begun."""
    return [run for parent in sweeps(client) for run in children(client, parent)]
