"""Attack of the pipeline by kills and full disks: a clone that continues after each ends with the right bytes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from mlflow.tracking import MlflowClient
from omegaconf import OmegaConf

from hlorank.runs.store import FINGERPRINT

ROOT = Path(__file__).parents[2]
FOLDERS = ("data/raw", "data/features", "data/segments", "models", "reports")
UNTRACKED = ("run.json", "report.html", ".gitignore")  # the first two have ids and times
SMALL = {
    "pipeline": {"layout": ["layout/synthetic/random"], "methods": ["gst"], "tile": []},
    "data": {"synthetic": {"train": 2, "valid": 1, "test": 1, "min_nodes": 60, "max_nodes": 90, "configurations": 24}},
    "compute": {"form": "serial"},
    "partition": {"max_nodes": 30},
    "model": {"width": 8, "blocks": 1},
    "trainer": {"max_epochs": 4, "steps_per_epoch": 20, "configs_per_step": 4},
}
"""Settings of a pipeline of one training, on the experiment `synthetic`."""
KILLS = ("database", "all", "dvc", "all")
"""What is killed: all processes while MLflow's database is made, all at a random moment, or dvc alone."""


@pytest.fixture
def clone(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that makes a fresh clone of the project with a small pipeline."""

    def make(name: str) -> Path:
        place = tmp_path / name
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for file in filter(None, tracked.split("\0")):
            if (ROOT / file).is_file():
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, place / file)
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            small = OmegaConf.merge(compose("config", overrides=["experiment=synthetic"]), SMALL)
        OmegaConf.save(small, place / "params.yaml", resolve=True)
        subprocess.run(["git", "init", "-q"], cwd=place, check=True)
        return place

    return make


def start(place: Path, max_file_bytes: int | None = None) -> subprocess.Popen[str]:
    """Start the pipeline in a process group of its own, with files bounded in size, as on a full disk."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_TR")}
    own = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(place / "src"),
        "OMP_NUM_THREADS": "1",
        "DVC_NO_ANALYTICS": "1",
    }
    limit = None
    if max_file_bytes is not None:
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (max_file_bytes, resource.RLIM_INFINITY))
    return subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", "-q"], cwd=place, env=kept | own, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True, preexec_fn=limit,
    )  # fmt: skip


def digests(place: Path) -> dict[str, str]:
    """Return the digest of each output by its path."""
    files = [file for folder in FOLDERS for file in sorted((place / folder).rglob("*")) if file.is_file()]
    return {
        str(file.relative_to(place)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.name not in UNTRACKED
    }


def finished_runs(place: Path) -> Counter[str]:
    """Return the number of finished runs of each training."""
    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return Counter(run.data.tags[FINGERPRINT] for run in runs if run.info.status == "FINISHED")


@pytest.mark.slow
def test_a_killed_pipeline_ends_with_the_same_bytes(clone: Callable[[str], Path]) -> None:
    whole, killed, rng = clone("whole"), clone("killed"), random.Random(0)
    begun = time.monotonic()
    process = start(whole)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    seconds = time.monotonic() - begun
    for kind in KILLS:
        process = start(killed)
        if kind == "database":
            while process.poll() is None and not [*killed.glob("mlflow.db*")]:
                time.sleep(0.002)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, 0.5 if kind == "database" else seconds / 2))
        if kind == "dvc":
            process.kill()  # its stage continues, and the next call waits for it
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            assert "Traceback" not in process.communicate()[0]
    assert "Traceback" not in start(killed, max_file_bytes=20_000).communicate()[0]
    last = start(killed)
    output, _ = last.communicate()
    assert last.returncode == 0, output
    assert digests(killed) == digests(whole)
    assert finished_runs(killed) == finished_runs(whole)
    assert set(finished_runs(whole).values()) == {1}
