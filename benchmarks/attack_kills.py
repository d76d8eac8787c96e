"""Attack of the pipeline by kills: a fresh clone's first `make repro`, killed at random moments until it is finished.

One clone runs undisturbed. Another one is killed with SIGKILL: while the database of MLflow is created, at random
moments, and dvc alone, whose stage then continues as an orphan; and its files are bounded in size, as on a full disk.
After each of these the next call continues. In the end the outputs of both must have equal bytes, no MLflow run may be
open, and each training must have one finished run.

    python benchmarks/attack_kills.py            # 20 kills and 4 full disks of the whole pipeline: an hour
    python benchmarks/attack_kills.py --quick    # a pipeline of one small training: minutes
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rows import run as run_command  # type: ignore[import-not-found] # same folder

from hlorank.files import write_json
from hlorank.tracking import FINGERPRINT

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "attack_kills.json"
FOLDERS = ("data/raw", "data/features", "data/segments", "models", "reports")
UNTRACKED = ("run.json", "report.html")  # which have ids and times
DATABASE = "database"
KINDS = ("all", "all", "all", "dvc")
"""Processes that a kill at a random moment ends: those of the call, or dvc alone."""
HANG = 20
"""Factor of the undisturbed time above which a call hangs."""
MEMORY = 2**30
SMALL: dict[str, Any] = {
    "pipeline": {"layout": ["layout/synthetic/random"], "methods": ["gst"], "tile": []},
    "data": {"synthetic": {"train": 2, "valid": 1, "test": 1, "min_nodes": 60, "max_nodes": 90, "configurations": 24}},
    "featurize": {"workers": 1},
    "partition": {"workers": 1, "max_nodes": 30},
    "model": {"width": 8, "blocks": 1},
    "trainer": {"max_epochs": 4, "steps_per_epoch": 20, "configs_per_step": 4},
}
"""Settings of the pipeline of one training, on the experiment `synthetic`."""


@dataclass
class Counts:
    """Counts of an attack; the last four must be 0."""

    attacked: int = 0
    accepted: int = 0
    clean_errors: int = 0
    tracebacks: int = 0
    hangs: int = 0
    memory_above_1_gb: int = 0
    wrong_content: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True if nothing that must not happen has happened."""
        return not (self.tracebacks or self.hangs or self.memory_above_1_gb or self.wrong_content)

    def note(self, name: str, text: str) -> None:
        """Count one more of `name`, with its description."""
        setattr(self, name, getattr(self, name) + 1)
        self.notes.append(f"{name}: {text}")


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
            [sys.executable, "-m", "hlorank.stages.repro", "--jobs", "3"],
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


def disturb(clone: Clone, rng: random.Random, kind: str, span: float, counts: Counts, limit: float) -> bool:
    """Start the pipeline and kill it; return True if it was finished before.

    Args:
        clone: the clone.
        rng: draws the moment.
        kind: `DATABASE`, an entry of `KINDS`, or `disk`: files bounded in size instead of a kill.
        span: seconds from which the moment of a kill is drawn.
        counts: counts of the attack.
        limit: seconds after which a call hangs.
    """
    counts.attacked += 1
    if kind == "disk":
        process = clone.start(max_file_bytes=int(10 ** rng.uniform(3, 6)))
        output = _finish(process, counts, limit)
        if process.returncode != 0 and "Traceback" not in output:
            counts.clean_errors += 1
        return process.returncode == 0
    database = [clone.place / f"mlflow.db{suffix}" for suffix in ("", ".partial")]
    if kind == DATABASE:  # nothing is finished yet: it is created once more
        for file in database:
            file.unlink(missing_ok=True)
    process = clone.start()
    while kind == DATABASE and process.poll() is None and not any(file.exists() for file in database):
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 1 if kind == DATABASE else span))
    if process.poll() is not None:
        _check(process.communicate()[0], counts)
        return process.returncode == 0
    if kind == "dvc":
        _kill_dvc(process.pid)  # the stages hold the pipe open, so that nothing is read
    else:
        os.killpg(process.pid, signal.SIGKILL)
        _check(process.communicate()[0], counts)
    process.wait()
    return False


def _kill_dvc(group: int) -> None:
    """Kill the command and its calls of DVC; the processes of the stages continue."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
            if os.getpgid(int(folder.name)) == group and ("stages.repro" in command or "\0-m\0dvc\0" in command):
                os.kill(int(folder.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended


def _finish(process: subprocess.Popen[str], counts: Counts, limit: float) -> str:
    """Return the output of a call."""
    try:
        output = process.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
        counts.note("hangs", f"a call of more than {limit:.0f} s")
    _check(output, counts)
    return output


def _check(output: str, counts: Counts) -> None:
    if "Traceback" in output:
        counts.note("tracebacks", output[output.index("Traceback") :][-2000:])


def attack(place: Path, *, kills: int, database_kills: int, disks: int, small: bool, seed: int) -> Counts:
    """Run both clones, and compare them.

    Args:
        place: folder of the clones.
        kills: kills in all.
        database_kills: those within the first second of the database's creation.
        disks: full disks.
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
    expected, limit = whole.digests(), max(10.0, HANG * seconds)

    later = [rng.choice(KINDS) for _ in range(kills - database_kills)] + ["disk"] * disks
    rng.shuffle(later)
    for kind in [DATABASE] * database_kills + later:
        span = min(seconds, 3 * seconds / max(1, len(later)))
        if disturb(clone, rng, kind, span, counts, limit):
            for folder in FOLDERS[3:]:  # finished: the trainings, which DVC takes from its cache, are evaluated again
                shutil.rmtree(clone.place / folder, ignore_errors=True)
    process = clone.start()
    output = _finish(process, counts, limit)
    if process.returncode == 0:
        counts.accepted += 1
    else:
        counts.note("wrong_content", f"the last call failed: {output[-2000:]}")
    found = clone.digests()
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            counts.note("wrong_content", f"{name} differs")
    runs = clone.runs()
    for run in runs:
        if run.info.status == "RUNNING":
            counts.note("wrong_content", f"run {run.info.run_name} is still open")
    finished = Counter(run.data.tags.get(FINGERPRINT) for run in runs if run.info.status == "FINISHED")
    trainings = {run.data.tags.get(FINGERPRINT) for run in whole.runs()}
    for key in sorted(trainings | finished.keys(), key=str):
        if finished[key] != (key in trainings):
            counts.note("wrong_content", f"training {key} has {finished[key]} finished runs")
    if resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 > MEMORY:
        counts.note("memory_above_1_gb", "a process of the pipeline")
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="kills (default: 20, with --quick 4)")
    parser.add_argument("--quick", action="store_true", help="a pipeline of one small training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="the record")
    arguments = parser.parse_args()
    start, count = time.monotonic(), arguments.count or (4 if arguments.quick else 20)
    with tempfile.TemporaryDirectory(prefix="hlorank-kills-") as folder:
        counts = attack(
            Path(folder),
            kills=count,
            database_kills=-(-count * 3 // 10),
            disks=-(-count // 5),
            small=arguments.quick,
            seed=arguments.seed,
        )
    names = [name for name in asdict(counts) if name != "notes"]
    print(" | ".join(names))
    print(" | ".join(str(getattr(counts, name)) for name in names))
    for note in counts.notes:
        print(note)
    if not arguments.quick:
        record = {"seed": arguments.seed, "seconds": round(time.monotonic() - start), **asdict(counts)}
        write_json(arguments.json, record)
    return 0 if counts.passed else 1


if __name__ == "__main__":
    run_command(lambda: sys.exit(main()))
