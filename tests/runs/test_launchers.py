"""Sweeps of real trainings: by each launcher that starts processes, and killed ones."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import psutil
import pytest
from mlflow.tracking import MlflowClient

import hlorank
from hlorank.config import Config
from hlorank.files import flatten
from hlorank.metrics import TRAIN_LOSS
from tests.runs.conftest import children, jobs, sweeps
from tests.warm import warm_programs

pytestmark = pytest.mark.slow
ROOT = Path(hlorank.__file__).parents[2]
COLD = Path(sys.executable)
Start = Callable[..., subprocess.Popen[str]]

LAUNCHERS = {
    "joblib": ("joblib", ["hydra.launcher.n_jobs=2"]),
    "submitit_local": ("submitit", []),
    "ray": ("ray", ["+hydra.launcher.ray.init.num_cpus=2", "+hydra.launcher.ray.init.include_dashboard=false"]),
}


@pytest.fixture(scope="module")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Python for sweeps that nothing kills: the processes that launchers start take long enough."""
    folder = tmp_path_factory.mktemp("programs") / "bin"
    with warm_programs(folder, ROOT / "src"):
        yield folder / "python"


@pytest.fixture
def start(config: Config, tmp_path: Path, warm_python: Path) -> Start:
    """Return a function that starts the stage train in a project folder of its own, with a training of seconds."""
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    subtrees = {name: getattr(config, name).model_dump(mode="json") for name in ("paths", "trainer", "tracking")}
    fixed = [f"{name}={value}" for name, value in flatten(subtrees).items() if value is not None]
    fixed += [f"collection={config.collection}", f"sweep.storage={config.sweep.storage}", "model.width=8"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_TR", "HYDRA"))}
    # Ray keeps a token in the home folder.
    environment |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    environment |= {"MPLCONFIGDIR": mpl.get_configdir()}  # fonts are searched once
    environment |= {"RAY_worker_niceness": "0"}  # by default workers starve beside other tests

    def started(*arguments: str, python: Path = warm_python) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [python, "-m", "hlorank.stages.train", "-m", *fixed, *arguments],
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


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher(name: str, start: Start, client: MlflowClient) -> None:
    """Jobs find their sweep; a failure is reported and stops no other job."""
    process = start("method=unknown,gst", *launcher(name))
    _, errors = process.communicate()
    assert process.returncode == 1, errors
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert line.split(": ")[1:3] == ["method=unknown", "ConfigError"]
    (parent,) = sweeps(client)
    assert parent.info.status == "FAILED"
    statuses = {run.info.run_id: run.info.status for run in children(client, parent)}
    rows = {row["method"]: (row["state"], statuses[row["run_id"]]) for row in jobs(client, parent)}
    assert rows == {"gst": ("finished", "FINISHED"), "unknown": ("failed", "FAILED")}


@pytest.mark.parametrize("search", [False, True])
def test_a_killed_sweep_is_resumed(search: bool, start: Start, client: MlflowClient, config: Config) -> None:
    """A killed sweep resumes its second training from its checkpoint."""
    arguments = ["sweep.name=k", "trainer.max_epochs=25", "trainer.steps_per_epoch=8", "trainer.patience=25"]
    if search:
        arguments += ["hparams_search=random", "hydra.sweeper.n_trials=3", "model.width=8", "model.blocks=1"]
        arguments += ["loss=hinge", "trainer.weight_decay=0", "trainer.learning_rate=interval(1e-3, 1e-2)"]
    else:
        arguments += ["method=gst", "seed=0,1,2"]
    process = start(*arguments, python=COLD)

    def epochs(run: Any) -> int:
        return len(client.get_metric_history(run.info.run_id, TRAIN_LOSS))

    def second_at_epoch_three() -> list[Any]:
        begun = begun_in(client)
        return [run for run in begun if len(begun) == 2 and run.info.status == "RUNNING" and epochs(run) >= 3]

    (running,) = wait(process, second_at_epoch_three)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (killed,), steps = sweeps(client), epochs(running)
    assert steps < 25
    assert {run.info.status for run in children(client, killed)} == {"FINISHED", "RUNNING"}

    process = start(*arguments)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    (parent,) = sweeps(client)
    assert (parent.info.run_id, parent.info.status) == (killed.info.run_id, "FINISHED")
    runs = {run.info.run_id: run.info.status for run in children(client, parent)}
    assert list(runs.values()) == ["FINISHED"] * 3
    assert running.info.run_id in runs
    assert f"epoch {steps + 2} of 25" in output
    assert "epoch 1 of 25" in output  # of those that had not begun
    if not search:
        assert output.count("has finished this training") == 1


def test_the_same_command_continues_a_sweep_whose_worker_died(start: Start, client: MlflowClient) -> None:
    """The training of the worker that died resumes from its checkpoint, with its run."""
    arguments = ["seed=0,1", *launcher("joblib"), "trainer.max_epochs=20", "trainer.steps_per_epoch=8"]
    process = start(*arguments, python=COLD)
    running = wait(process, lambda: [run for run in begun_in(client) if TRAIN_LOSS in run.data.metrics])
    workers = psutil.Process(process.pid).children(recursive=True)
    max(workers, key=lambda worker: worker.cpu_times().user).kill()
    _, errors = process.communicate()
    assert process.returncode == 1
    assert re.search("^error: seed=[01]: interrupted$", errors, re.MULTILINE)
    assert "the same command continues with the remaining jobs" in errors
    process = start(*arguments)
    output, errors = process.communicate()
    assert process.returncode == 0, output + errors
    (parent,) = sweeps(client)
    assert [row["state"] for row in jobs(client, parent)] == ["finished"] * 2
    runs = {run.info.run_id: run.info.status for run in children(client, parent)}
    assert list(runs.values()) == ["FINISHED"] * 2
    assert running[0].info.run_id in runs


def begun_in(client: MlflowClient) -> list[Any]:
    """Return the child runs of the sweep, none before it has begun."""
    return [run for parent in sweeps(client) for run in children(client, parent)]
