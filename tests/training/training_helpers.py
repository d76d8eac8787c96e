"""Helpers of the tests of trainings: interruptions, steps without a training, other processes, and ranks."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow.entities import Run
from omegaconf import OmegaConf

import hlorank
from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphLoader
from hlorank.stages.train import train
from hlorank.training.fit import build
from hlorank.training.methods import METHODS
from hlorank.training.process_group import ALONE, ProcessGroup, process_group
from hlorank.training.ranking_module import RankingModule
from hlorank.training.setup import Member, open_setup
from hlorank.training.step_data import StepData
from hlorank.training.step_plans import PlannedStep, Step, StepPlanner
from tests.servers import free_port

Settings = Callable[..., Config]
History = Callable[[Path], list[dict[str, str]]]
Runs = Callable[[Config], list[Run]]
CPU = torch.device("cpu")
WEIGHTS = "weights.safetensors"
DROPOUT = {"model__dropout": 0.2, "model__block": "[layer_norm,sage,gelu,dropout,residual]"}
STAGE = ("-m", "hlorank.stages.train", "--config-dir", ".", "--config-name", "params")


class Interrupted(Exception):
    """Raised in place of a crash."""


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int | None) -> list[Any]:
    """Raise from a method instead of running it at one of its calls; return a list that grows by one with each call."""
    plain, calls = getattr(owner, name), list[Any]()

    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls.append(None)
        if len(calls) - 1 == call:
            monkeypatch.setattr(owner, name, plain)
            raise Interrupted
        return plain(*arguments, **keywords)

    monkeypatch.setattr(owner, name, counted)
    return calls


def open_graphs(config: Config, whole: bool = False) -> GraphLoader:
    """Open the collection of a configuration, whole or cut into segments."""
    path = Collection.parse(config.collection).path
    return GraphLoader(Path(config.paths.features) / path, None if whole else Path(config.paths.segments) / path)


def open_data(config: Config) -> StepData:
    """Return the steps and rankings that a training of the configuration has."""
    return build(open_setup(config), Member(config.seed), ALONE)[1]


def planned(model: CostModel, method: str, step: Step) -> PlannedStep:
    """Return the step with the plans of a training of the method."""
    return StepPlanner.of(model, METHODS[method])(step)


def validate_with(monkeypatch: pytest.MonkeyPatch, taus: list[float]) -> dict[int, dict[str, torch.Tensor]]:
    """Make validation log these values, one in each epoch; return the weights that it is called with, by epoch."""
    seen: dict[int, dict[str, torch.Tensor]] = {}

    def validation_step(self: RankingModule, *_: Any) -> None:
        seen[self.current_epoch] = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.log("curves/valid_kendall_tau", torch.tensor(taus[self.current_epoch]), on_epoch=True, batch_size=1)

    monkeypatch.setattr(RankingModule, "validation_step", validation_step)
    return seen


def start(folder: Path, config: Config, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start Python in a folder with conf/ and a configuration in params.yaml; arguments end with `STAGE`."""
    root = Path(hlorank.__file__).parents[2]
    shutil.copytree(root / "conf", folder / "conf", dirs_exist_ok=True)
    OmegaConf.save(config.model_dump(mode="json"), folder / "params.yaml")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment |= {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", **variables}
    options: dict[str, Any] = {"text": True, "stderr": subprocess.PIPE, "start_new_session": True}
    return subprocess.Popen([sys.executable, *arguments], cwd=folder, env=environment, **options)


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a training that a process runs has written its first checkpoint into a folder."""
    end = time.monotonic() + 240
    while not list(folder.rglob("last.ckpt")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)


def fork_ranks(count: int, task: Callable[[], Any], results: int | None = None) -> list[Any]:
    """Run a task, which joins the group, on several ranks; return the result of each, or its error.

    Args:
        count: number of ranks.
        task: what each does.
        results: the ranks that have a result, all by default; the others are killed then.
    """
    fork = multiprocessing.get_context("fork")
    queue: Any = fork.Queue()
    variables = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}

    def rank(number: int) -> None:
        for name, value in {**variables, "RANK": number, "LOCAL_RANK": number}.items():
            os.environ[name] = str(value)
        try:
            result = task()
        except Exception as error:
            traceback.print_exc()  # pytest shows it if the test fails
            result = error
        queue.put((number, result))

    processes = [fork.Process(target=rank, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    found = dict(queue.get(timeout=300) for _ in range(results or count))
    for number, process in enumerate(processes):
        if number not in found:
            process.kill()
        process.join()
    return [found.get(number) for number in range(count)]


def run_ranks(config: Config, count: int, task: Callable[[ProcessGroup], Any], results: int | None = None) -> list[Any]:
    """Run a task on several ranks that have joined a group; see `fork_ranks`."""

    def joined() -> Any:
        with process_group(config.trainer) as ranks:
            return task(ranks)

    return fork_ranks(count, joined, results)


def train_with(count: int, config: Config, output: Path) -> list[Any]:
    """Train with several ranks."""
    return fork_ranks(count, lambda: train(config, output))
