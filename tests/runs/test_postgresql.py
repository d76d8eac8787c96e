"""Tracking and searches in a PostgreSQL server, as docs/how-to/tracking-server.md sets it up."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

import hlorank
from hlorank.config import Config
from hlorank.files import flatten
from hlorank.runs.search import open_study
from hlorank.runs.store import check_server
from tests.docs.blocks import PAGES
from tests.servers import postgresql

ROOT = Path(hlorank.__file__).parents[2]
_OPEN_A_RUN = (
    "from hlorank.config import TrackingConfig\n"
    "from hlorank.runs.store import open_run\n"
    "config = TrackingConfig(uri='sqlite:///none.db', experiment='at once', artifacts='artifacts')\n"
    "with open_run(config, 'name', {}):\n    pass"
)


def part() -> tuple[str, str]:
    """Return the commands of the page's part on PostgreSQL: those that create the databases, and those that train."""
    text = PAGES["docs/how-to/tracking-server.md"].read_text(encoding="utf-8").partition("## Use PostgreSQL")[2]
    create, train = re.findall(r"^```sh\n(.*?)^```$", text.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    return create, train


def open_runs_at_once(address: str, folder: Path) -> None:
    """Open runs in two processes, in a database without MLflow's tables."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_TR", "HYDRA"))}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "MLFLOW_TRACKING_URI": address}
    settings: dict[str, Any] = {"env": environment, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", _OPEN_A_RUN]
    started = [subprocess.Popen(command, cwd=folder, text=True, **settings) for _ in range(2)]
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    client = MlflowClient(address)
    (experiment,) = [one for one in client.search_experiments() if one.name == "at once"]
    assert experiment.artifact_location == (folder / "artifacts").as_uri()
    assert [run.info.status for run in client.search_runs([experiment.experiment_id])] == ["FINISHED"] * 2


@pytest.mark.slow
def test_processes_that_start_at_once_share_one_new_store(tmp_path: Path) -> None:
    """Without the database, and without the experiment."""
    open_runs_at_once(f"sqlite:///{tmp_path}/mlflow.db", tmp_path)


@pytest.mark.slow
def test_four_processes_train_a_search_of_eight(settings: Callable[..., Config], tmp_path: Path) -> None:
    """Each trial is one run of the sweep, finished, with a model; the values are the trial's."""
    pytest.importorskip("psycopg", reason="needs psycopg (extra postgresql)")
    config, (create, train) = settings(), part()
    searched = ("model.width", "model.blocks", "trainer.learning_rate", "trainer.weight_decay")
    subtrees = {name: getattr(config, name).model_dump(mode="json") for name in ("paths", "trainer")}
    tiny = {name: value for name, value in flatten(subtrees).items() if value is not None and name not in searched}
    tiny["collection"] = config.collection
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    prelude = 'sudo() { shift 2; "$@"; }\npython() { command python "$@" $TINY; }\n'
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_TR", "HYDRA"))}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    environment |= {"OMP_NUM_THREADS": "1", "TINY": " ".join(f"{name}={value}" for name, value in tiny.items())}
    with postgresql() as server:

        def shell(script: str) -> None:
            command = ["bash", "-ec", prelude + script.replace("database.example.org", "127.0.0.1")]
            done = subprocess.run(command, cwd=tmp_path, env=environment | server, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr

        shell(create)
        (password,) = re.findall("PASSWORD '(.*)'", create)
        address = f"postgresql+psycopg://hlorank:{password}@127.0.0.1:{server['PGPORT']}"
        open_runs_at_once(f"{address}/mlflow", tmp_path)
        with pytest.raises(ConnectionError, match="password authentication failed"):
            check_server(f"{address}/mlflow".replace("hlorank:", "hlorank:wrong"))

        shell(train)
        search = config.sweep.model_copy(update={"name": "shared", "storage": f"{address}/optuna"})
        trials = open_study(search, "", create=False).trials
        assert [trial.state.name for trial in trials] == ["COMPLETE"] * 8
        client = MlflowClient(f"{address}/mlflow")
        (experiment,) = [one for one in client.search_experiments() if one.name == "hlorank"]
        runs = client.search_runs([experiment.experiment_id])
        (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        assert (parent.info.run_name, parent.info.status) == ("sweep shared", "FINISHED")
        children = [run for run in runs if run is not parent]
        assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
        assert [run.info.status for run in children] == ["FINISHED"] * 8
        by_tau = {run.data.metrics["valid/best_kendall_tau"]: run for run in children}
        for trial in trials:
            assert trial.value is not None
            run = by_tau[trial.value]
            assert [run.data.params[name] for name in searched] == [str(trial.params[name]) for name in searched]
            files = {artifact.path for artifact in client.list_artifacts(run.info.run_id, "model")}
            assert "model/weights.safetensors" in files
        assert len({run.data.params["trainer.learning_rate"] for run in children}) == 8
