"""Tracking and searches in a PostgreSQL server, as docs/how-to/tracking-server.md sets it up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

import hlorank
from hlorank.config import Config
from hlorank.files import flatten
from hlorank.runs.search import open_study
from hlorank.runs.store import check_server
from tests.docs.blocks import PAGES
from tests.postgresql import postgresql

pytestmark = pytest.mark.slow
ROOT = Path(hlorank.__file__).parents[2]
_OPEN_A_RUN = (
    "import sys\n"
    "from hlorank.config import TrackingConfig\n"
    "from hlorank.runs.store import open_run\n"
    "config = TrackingConfig(uri=sys.argv[1], experiment='at once', artifacts='artifacts')\n"
    "with open_run(config, 'name', {}):\n    pass"
)


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    pytest.importorskip("psycopg", reason="needs psycopg (extra postgresql)")
    with postgresql() as variables:
        yield variables


@pytest.fixture(scope="module")
def shell(server: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function that runs a part of the page, with this server and a training of seconds."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "conf", folder / "conf")
    prelude = 'sudo() { shift 2; "$@"; }\npython() { command python "$@" $TINY; }\n'
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_TR", "HYDRA"))}
    environment |= server | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
    }

    def run(script: str, **variables: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", prelude + script.replace("database.example.org", "127.0.0.1")],
            cwd=folder,
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def addresses(server: dict[str, str], shell: Callable[[str], str]) -> dict[str, str]:
    """Create the databases as the page does, and return their addresses with the password."""
    create, _ = part()
    shell(create)
    (password,) = re.findall("PASSWORD '(.*)'", create)
    user = f"hlorank:{password}@127.0.0.1:{server['PGPORT']}"
    return {name: f"postgresql+psycopg://{user}/{name}" for name in ("mlflow", "optuna")}


def part() -> tuple[str, str]:
    """Return the commands of the page's part on PostgreSQL: those that create the databases, and those that train."""
    text = PAGES["docs/how-to/tracking-server.md"].read_text(encoding="utf-8").partition("## Use PostgreSQL")[2]
    create, train = re.findall(r"^```sh\n(.*?)^```$", text.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    return create, train


def connected(addresses: dict[str, str]) -> MlflowClient:
    check_server(addresses["mlflow"])
    return MlflowClient(addresses["mlflow"])


def test_processes_that_start_at_once_share_one_new_database(addresses: dict[str, str], tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _OPEN_A_RUN, addresses["mlflow"]],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    errors = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    client = connected(addresses)
    (experiment,) = [one for one in client.search_experiments() if one.name == "at once"]
    assert experiment.artifact_location == (tmp_path / "artifacts").as_uri()
    runs = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED"] * 2


def test_a_wrong_password_is_refused_at_once(addresses: dict[str, str]) -> None:
    wrong = addresses["mlflow"].replace("hlorank:", "hlorank:wrong")
    with pytest.raises(ConnectionError, match="password authentication failed") as raised:
        check_server(wrong)
    assert raised.value.filename == re.sub("//.*@", "//***@", wrong)


def test_four_processes_train_a_search_of_eight(
    addresses: dict[str, str], shell: Callable[..., str], settings: Callable[..., Config]
) -> None:
    """Each trial is one run of the sweep, finished, with a model; the values are the trial's."""
    config = settings()
    searched = ("model.width", "model.blocks", "trainer.learning_rate", "trainer.weight_decay")
    subtrees = {name: getattr(config, name).model_dump(mode="json") for name in ("paths", "trainer")}
    tiny = {name: value for name, value in flatten(subtrees).items() if value is not None and name not in searched}
    tiny["collection"] = config.collection
    shell(part()[1], TINY=" ".join(f"{name}={value}" for name, value in tiny.items()))

    search = config.sweep.model_copy(update={"name": "shared", "storage": addresses["optuna"]})
    trials = open_study(search, "", create=False).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 8

    client = connected(addresses)
    (experiment,) = [one for one in client.search_experiments() if one.name == "hlorank"]
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert (parent.info.run_name, parent.info.status) == ("sweep shared", "FINISHED")
    children = [run for run in runs if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert [run.info.status for run in children] == ["FINISHED"] * 8
    by_tau = {run.data.metrics["valid/best_kendall_tau"]: run.data.params for run in children}
    for trial in trials:
        assert trial.value is not None
        logged = by_tau[trial.value]
        for name in searched:
            assert logged[name] == str(trial.params[name])
    assert len({run.data.params["trainer.learning_rate"] for run in children}) == 8
    for run in children:
        files = {artifact.path for artifact in client.list_artifacts(run.info.run_id, "model")}
        assert "model/weights.safetensors" in files
        history = client.get_metric_history(run.info.run_id, "curves/train_loss")
        assert len(history) == config.trainer.max_epochs
