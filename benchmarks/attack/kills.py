"""Attack of the pipeline by kills and full disks: a clone that continues after each must end with the right bytes."""

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
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hlorank.runs.store import FINGERPRINT

from .counts import BYTES, SECONDS, Counts

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("data/raw", "data/features", "data/segments", "models", "reports")
UNTRACKED = ("run.json", "report.html")  # which have ids and times
DATABASE = "database"
KINDS = ("all", "all", "all", "dvc")
"""Processes that a kill at a random moment ends: those of the call, or dvc alone."""
HANG = 20
"""Factor of the undisturbed time above which a call hangs."""
SMALL: dict[str, Any] = {
    "pipeline": {"layout": ["layout/synthetic/random"], "methods": ["gst"], "tile": []},
    "data": {"synthetic": {"train": 2, "valid": 1, "test": 1, "min_nodes": 60, "max_nodes": 90, "configurations": 24}},
    "compute": {"form": "serial"},
    "partition": {"max_nodes": 30},
    "model": {"width": 8, "blocks": 1},
    "trainer": {"max_epochs": 4, "steps_per_epoch": 20, "configs_per_step": 4},
}
"""Settings of a pipeline of one training, on the experiment `synthetic`."""


def attack(place: Path, kills: int, *, small: bool, seed: int) -> Counts:
    """Run both clones, and compare them.

    Args:
        place: folder of the clones.
        kills: kills; 30 % of them within the first second of the database's creation, and there are 20 % as many full
            disks. A call that is finished before its kill is repeated.
        small: with the settings `SMALL`.
        seed: seed of the moments.
    """
    counts, rng = Counts(), random.Random(seed)
    whole, clone = (Clone(place / name, small=small) for name in ("whole", "killed"))
    start = time.monotonic()
    process = whole.start()
    output, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"the undisturbed pipeline failed:\n{output}")
    seconds = time.monotonic() - start
    limit = max(SECONDS, HANG * seconds)

    database_kills, disks = -(-kills * 3 // 10), -(-kills // 5)
    later = [rng.choice(KINDS) for _ in range(kills - database_kills)] + ["disk"] * disks
    rng.shuffle(later)
    for kind in [DATABASE] * database_kills + later:
        span = min(seconds, 3 * seconds / max(1, len(later)))
        while disturb(clone, rng, kind, span, counts, limit):
            for folder in FOLDERS[3:]:  # the trainings, which DVC takes from its cache, are evaluated again
                shutil.rmtree(clone.place / folder, ignore_errors=True)
            if kind == "disk":
                break
            span /= 2  # as these calls are shorter
    if not _finish(clone.start(), "the last call", counts, limit):
        counts.add("wrong content", "the last call", "it failed")
    compare(whole, clone, counts)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    counts.largest = (memory, "a process of the pipeline")
    if memory > BYTES:
        counts.add("memory", counts.largest[1], memory=memory)
    return counts


def disturb(clone: Clone, rng: random.Random, kind: str, span: float, counts: Counts, limit: float) -> bool:
    """Start the pipeline and kill it; return True if it is finished.

    Args:
        clone: the clone.
        rng: draws the moment.
        kind: `DATABASE`, an entry of `KINDS`, or `disk`: files bounded in size instead of a kill.
        span: seconds from which the moment of a kill is drawn.
        counts: counts of the attack.
        limit: seconds after which a call hangs.
    """
    if kind == "disk":
        return _finish(clone.start(max_file_bytes=int(10 ** rng.uniform(3, 6))), "a full disk", counts, limit)
    database = [clone.place / f"mlflow.db{suffix}" for suffix in ("", ".partial")]
    if kind == DATABASE:  # nothing is finished yet: it is created once more
        for file in database:
            file.unlink(missing_ok=True)
    process = clone.start()
    while kind == DATABASE and process.poll() is None and not any(file.exists() for file in database):
        time.sleep(0.002)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(rng.uniform(0, 1 if kind == DATABASE else span))
    if process.poll() is not None:
        return _finish(process, f"a call before its kill ({kind})", counts, limit)
    counts.attacked += 1
    if kind == "dvc":
        _kill_dvc(process.pid)  # the stages hold the pipe open, so that nothing is read
        process.wait()
        return False
    os.killpg(process.pid, signal.SIGKILL)
    output = process.communicate()[0]
    if "Traceback" in output:
        counts.add("tracebacks", f"a kill ({kind})", output[-2000:])
    return False


def compare(whole: Clone, clone: Clone, counts: Counts) -> None:
    """Count differences between the outputs of both clones, open runs, and trainings without one finished run."""
    expected, found = whole.digests(), clone.digests()
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            counts.add("wrong content", name, "its bytes differ")
    runs = clone.runs()
    for run in runs:
        if run.info.status == "RUNNING":
            counts.add("wrong content", f"run {run.info.run_name}", "it is still open")
    finished = Counter(run.data.tags.get(FINGERPRINT) for run in runs if run.info.status == "FINISHED")
    trainings = {run.data.tags.get(FINGERPRINT) for run in whole.runs()}
    for key in sorted(trainings | finished.keys(), key=str):
        if finished[key] != (key in trainings):
            counts.add("wrong content", f"training {key}", f"{finished[key]} finished runs")


def _finish(process: subprocess.Popen[str], name: str, counts: Counts, limit: float) -> bool:
    """Count the outcome of a call, and return True if the pipeline is finished."""
    start = time.monotonic()
    counts.attacked += 1
    try:
        output = process.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
        outcome = "hangs"
    else:
        outcome = "accepted" if process.returncode == 0 else "clean errors"
    if "Traceback" in output:
        outcome = "tracebacks"
    counts.add(outcome, name, output[-2000:], time.monotonic() - start)
    return process.returncode == 0


class Clone:
    """A fresh clone of the project, in which DVC runs with the environment of this process.

    Args:
        place: its folder, which must not exist.
        small: with the settings `SMALL`.
    """

    def __init__(self, place: Path, *, small: bool) -> None:
        self.place = place
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, tracked.split("\0")):
            if (ROOT / name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, place / name)
        if small:
            from hydra import compose, initialize_config_dir

            with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
                OmegaConf.save(
                    OmegaConf.merge(compose("config", overrides=["experiment=synthetic"]), SMALL),
                    place / "params.yaml",
                    resolve=True,
                )
        subprocess.run(["git", "init", "-q"], cwd=place, check=True)
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_TR")} | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(place / "src"),
            "OMP_NUM_THREADS": "1",
            "DVC_NO_ANALYTICS": "1",
        }

    def start(self, max_file_bytes: int | None = None) -> subprocess.Popen[str]:
        """Start the pipeline, as `make repro` does, in a process group of its own."""

        def bound() -> None:
            if max_file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, resource.RLIM_INFINITY))

        return subprocess.Popen(
            ["bash", "scripts/repro.sh", "3"],
            cwd=self.place,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=bound,
        )

    def digests(self) -> dict[str, str]:
        """Return the digest of each output by its path."""
        files = [file for folder in FOLDERS for file in sorted((self.place / folder).rglob("*")) if file.is_file()]
        return {
            str(file.relative_to(self.place)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
            if file.name not in UNTRACKED and file.name != ".gitignore"
        }

    def runs(self) -> list[Any]:
        """Return the MLflow runs."""
        from mlflow.tracking import MlflowClient

        client = MlflowClient(f"sqlite:///{self.place}/mlflow.db")
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        return list(client.search_runs(experiments))


def _kill_dvc(group: int) -> None:
    """Kill the command and its calls of DVC; the processes of the stages continue."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
            of_dvc = any(part in command for part in ("repro.sh\0", "pipefail\0", "/dvc\0"))
            if os.getpgid(int(folder.name)) == group and of_dvc:
                os.kill(int(folder.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
