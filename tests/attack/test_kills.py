"""Attack of the pipeline by kills and full disks: a clone that continues after each ends with the right bytes."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from hlorank.files import sha256_file
from hlorank.runs.store import FINGERPRINT
from tests.test_pipeline import Project

FOLDERS = ("data/raw", "data/features", "data/segments", "models", "reports")
UNTRACKED = ("run.json", ".gitignore")  # the first one has the id of the run
KILLS = ("database", "all", "dvc")
"""What is killed: all processes while MLflow's database is made, all at a random moment, or dvc alone."""


def start(place: Path, max_file_bytes: int | None = None) -> subprocess.Popen[str]:
    """Start the pipeline in a process group of its own, with files bounded in size, as on a full disk."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_TR")}
    own = {"PYTHONPATH": str(place / "src"), "OMP_NUM_THREADS": "1", "DVC_NO_ANALYTICS": "1"}
    own["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    limit = [] if max_file_bytes is None else ["prlimit", f"--fsize={max_file_bytes}:"]
    return subprocess.Popen(
        [*limit, sys.executable, "-m", "dvc", "repro", "-q"], cwd=place, env=kept | own, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def digests(place: Path) -> dict[str, str]:
    """Return the digest of each output by its path."""
    files = [file for folder in FOLDERS for file in (place / folder).rglob("*") if file.is_file()]
    return {str(file.relative_to(place)): sha256_file(file) for file in files if file.name not in UNTRACKED}


def finished_runs(place: Path) -> Counter[str]:
    """Return the number of finished runs of each training."""
    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return Counter(run.data.tags[FINGERPRINT] for run in runs if run.info.status == "FINISHED")


@pytest.mark.slow
def test_a_killed_pipeline_ends_with_the_same_bytes_and_then_has_nothing_to_do(tmp_path: Path) -> None:
    whole, killed, rng = tmp_path / "whole", tmp_path / "killed", random.Random(0)
    project, _ = Project(whole), Project(killed)
    begun = time.monotonic()
    process = start(whole)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    seconds = time.monotonic() - begun
    assert project.changes() == {}
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
