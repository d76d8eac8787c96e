"""Ranks of a training as forks of the test's process, which has imported all that they need."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import hlorank
from hlorank.config import Config
from hlorank.stages.train import train
from hlorank.training.process_group import ProcessGroup, process_group

STAGE = ("-m", "hlorank.stages.train", "--config-dir", ".", "--config-name", "params")


def start(folder: Path, config: Config, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start Python in a folder with conf/ and a configuration in params.yaml; arguments end with `STAGE`."""
    root = Path(hlorank.__file__).parents[2]
    shutil.copytree(root / "conf", folder / "conf", dirs_exist_ok=True)
    OmegaConf.save(config.model_dump(mode="json"), folder / "params.yaml")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment |= {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stderr=subprocess.PIPE, start_new_session=True
    )


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


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
