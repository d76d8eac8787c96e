"""The pipeline at the full size of TpuGraphs, simulated: time, memory and disk of each stage of each collection.

Writes generated graphs with the published numbers of graphs, nodes, edges, configurable nodes and configurations
(published_sizes.py), and runs the commands of dvc.yaml on them, each in a process of its own: fetch from the generated
files; then featurize, partition, 2,000 steps of training (of each member of an ensemble) and evaluate over valid and
test, for gst on whole graphs in segments of 500 nodes and for best_layout on the default reduction of graphs, or for
best_tile. A row per stage is added to the figures: wall and CPU time with children, the peak resident memory of all
processes together, of the largest one, the bytes that it wrote, and a digest of the code.

A call that was interrupted or killed continues at its stage, which begins again; rows that are there are kept. One
collection after the other takes disk space, as its files are deleted at its end.

    python benchmarks/full_size.py --json rows.json --collection tile/xla
    python benchmarks/full_size.py --json rows.json --configurations 0.03
    python benchmarks/full_size.py --json rows.json --show

With gst, layout/nlp/random took an hour on two cores that were shared, and the other layouts half of it or less.
The quick form takes three minutes.
"""

from __future__ import annotations

import ctypes
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from harness import Parser, positive
from harness import run as run_command
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from published_sizes import PUBLISHED, graph_sizes, write_sized_graph

from hlorank.compute import SERIAL, map_graphs
from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.files import code_digest, read_json, write_json
from hlorank.terminal import min_int

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ("data=local", "data.local.root=generated", "partition.max_nodes=500")
STEPS, EPOCHS = 2_000, 10
TRAININGS = ("gst", "best_layout", "best_tile")
QUICK = {"configurations": 1 / 200, "nodes": 0.1, "graphs": 0.05}
_SAMPLE_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_FOLDERS = {
    "generate": "generated",
    "fetch": "data/raw",
    "featurize": "data/features",
    "partition": "data/segments",
    "train": "models",
    "evaluate": "reports",
}


class Stage(NamedTuple):
    """A stage of a collection."""

    name: str  # of an entry of dvc.yaml, or `generate`
    training: str = ""  # what is trained; empty for generate and fetch
    overrides: tuple[str, ...] = ()  # of the training
    method: str = ""

    @property
    def outputs(self) -> list[str]:
        """Folders that the stage writes, that of its results first."""
        return [_FOLDERS[self.name]] + [f"state/{self.training}"] * (self.name == "train")


class Size(NamedTuple):
    """Shares of the published numbers of configurations, nodes and graphs."""

    configurations: float
    nodes: float
    graphs: float


def stages(collection: Collection, steps: int, chosen: Sequence[str] = TRAININGS) -> list[Stage]:
    """Return the stages of a collection, in their order, with the chosen trainings, each of `steps` steps."""
    epochs = min(steps, EPOCHS)
    length = (
        f"trainer.max_epochs={epochs}",
        f"trainer.steps_per_epoch={steps // epochs}",
        f"trainer.patience={epochs}",
    )
    trainings: list[tuple[str, tuple[str, ...], str]] = [("best_tile", ("experiment=best_tile",), "full")]
    if collection.kind == "layout":
        whole = ("method=gst", "featurize.prune_hops=null")
        trainings = [("gst", whole, "gst"), ("best_layout", ("experiment=best_layout",), "full")]
    own = [
        Stage(stage, name, (*overrides, *length, *_tracking(name)), method)
        for name, overrides, method in trainings
        if name in chosen
        for stage in ("featurize", "partition", "train", "evaluate")
    ]
    return [Stage("generate"), Stage("fetch"), *own]


def _tracking(training: str) -> tuple[str, ...]:
    """Return the overrides with which a training has a store and a state of its own, which can be deleted."""
    state = f"state/{training}"
    return f"paths.state={state}", f"tracking.uri=sqlite:///{state}/mlflow.db", f"tracking.artifacts={state}/artifacts"


class Run:
    """The pipeline of one collection in a folder of its own, whose file `done` lists the finished stages."""

    def __init__(self, collection: Collection, size: Size, place: Path) -> None:
        self.collection, self.size, self.place = collection, size, place
        self._done = place / "done"
        place.mkdir(parents=True, exist_ok=True)
        (place / "conf").unlink(missing_ok=True)  # an earlier call may have been one of another checkout
        (place / "conf").symlink_to(ROOT / "conf")

    def is_done(self, stage: Stage) -> bool:
        """Return whether the outputs of a stage are complete."""
        return self._done.exists() and f"{stage.name} {stage.training}" in self._done.read_text().splitlines()

    def run(self, stage: Stage) -> dict[str, Any]:
        """Run a stage from its beginning, and return its figures."""
        for output in stage.outputs if stage.name != "generate" else []:
            shutil.rmtree(self.place / output, ignore_errors=True)
        if stage.name == "generate":  # graphs that are there are kept: this is no stage whose time matters
            start = time.perf_counter()
            self._generate()
            figures: dict[str, Any] = {"wall_seconds": round(time.perf_counter() - start, 1)}
        else:
            figures = measured(self._command(stage), self.place)
        figures["bytes"] = sum(map(size_on_disk, (self.place / output for output in stage.outputs[:1])))
        with self._done.open("a") as done:
            done.write(f"{stage.name} {stage.training}\n")
        return figures

    def _generate(self) -> None:
        sizes = graph_sizes(self.collection, **self.size._asdict())
        write = partial(write_sized_graph, collection=self.collection, root=self.place / "generated")
        compute = SERIAL.model_copy(update={"form": "processes", "workers": "auto", "retries": 2})
        for _ in map_graphs(write, sizes, compute, f"generate {self.collection}"):
            pass

    def _command(self, stage: Stage) -> list[str]:
        """Compose params.yaml, and return the stage's command in dvc.yaml."""
        # As `dvc exp run` composes it; not by DVC, whose import takes memory that a child would count as its own.
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            composed = compose("config", overrides=[*SETTINGS, f"collection={self.collection.path}", *stage.overrides])
        OmegaConf.save(composed, self.place / "params.yaml", resolve=True)
        pipeline: Any = OmegaConf.load(ROOT / "dvc.yaml")
        entry = OmegaConf.to_container(pipeline.stages[stage.name], resolve=False)
        assert isinstance(entry, dict)
        command = entry.get("do", entry)["cmd"]
        values = {"entry": pipeline.vars[0].entry, "item.collection": self.collection.path, "item.method": stage.method}
        for key, value in values.items():
            command = command.replace(f"${{{key}}}", str(value))
        python, *arguments = shlex.split(command)
        assert python == "python"
        return [sys.executable, *arguments]


def measured(command: Sequence[str], place: Path) -> dict[str, Any]:
    """Run a command in a folder to its end, and return its figures.

    Returns:
        wall_seconds; cpu_seconds, with children; peak_bytes, the largest sum of the resident memory of all processes,
        shared pages counted once, sampled; and largest_process_bytes, exact.
    """
    start = time.perf_counter()
    peak = 0
    with (place / "output").open("w+") as output:
        process = subprocess.Popen(command, cwd=place, stdout=output, stderr=output, preexec_fn=_end_with_parent)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, _resident_bytes(process.pid))
            time.sleep(_SAMPLE_SECONDS)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - start
        output.seek(0)
        lines = output.read().strip().splitlines()
    if process.returncode:
        raise ConfigError(f"{shlex.join(command)}: status {process.returncode}: {lines[-1] if lines else 'no output'}")
    return {
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_bytes": max(peak, usage.ru_maxrss * 1024),
        "largest_process_bytes": usage.ru_maxrss * 1024,
    }


def _end_with_parent() -> None:
    """End this process when its parent is killed: a later call would delete the files that it writes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _resident_bytes(pid: int) -> int:
    """Return the proportional set size of a process and its descendants together."""
    total = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has just ended
            continue
    return total


def size_on_disk(folder: Path) -> int:
    """Return the bytes of the files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(
    collection: Collection, size: Size, steps: int, trainings: Sequence[str], work: Path, results: Path
) -> None:
    """Run the stages of a collection whose rows are missing, add the rows, and delete the files at the end."""
    cores = len(os.sched_getaffinity(0))
    own = {"collection": str(collection), **size._asdict(), "steps": steps, "cores": cores}
    known = {_key(row) for row in _rows(results)}
    chosen = stages(collection, steps, trainings)
    if {_key({**own, "stage": stage.name, "training": stage.training}) for stage in chosen} <= known:
        return
    place = work / "-".join([*collection.parts, *map(str, size), f"{steps}", f"{cores}"])
    run = Run(collection, size, place)
    for stage in chosen:
        row = {**own, "stage": stage.name, "training": stage.training, "code": code_digest("hlorank")[:16]}
        if not (run.is_done(stage) and _key(row) in known):
            row |= run.run(stage)
            write_json(results, {"stages": [*(old for old in _rows(results) if _key(old) != _key(row)), row]})
            print(line(row), flush=True)
        if stage.name == "fetch":
            shutil.rmtree(place / "generated", ignore_errors=True)  # there is a copy
    shutil.rmtree(place)


def _rows(results: Path) -> list[dict[str, Any]]:
    return list(read_json(results)["stages"]) if results.exists() else []


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("collection", *Size._fields, "steps", "cores", "stage", "training"))


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of a table."""
    share = "x".join(f"{row[name]:g}" for name in Size._fields)
    memory = f"{row['peak_bytes'] / 1e9:6.2f} GB peak" if "peak_bytes" in row else " " * 14
    return (
        f"{row['collection']:19} {share:12} {row['cores']} cores  {row['stage']:9} {row['training']:11}"
        f" {row['wall_seconds']:9.1f} s {row.get('cpu_seconds', math.nan):9.1f} s CPU {memory} {row['bytes']:15,} bytes"
    )


def main() -> None:
    parser = Parser(__doc__)
    parser.add_json("rows of the stages, also those of earlier calls (default: full_size.json in the folder of --work)")
    parser.add_argument(
        "--collection", action="append", type=Collection.parse, metavar="ADDRESS",
        help="only this collection; may be repeated",
    )  # fmt: skip
    for name in Size._fields:
        parser.add_argument(f"--{name}", type=positive, default=1.0, metavar="SHARE", help=f"share of the {name}")
    parser.add_argument(
        "--steps", type=min_int(1), default=STEPS, metavar="N", help=f"of each training (default: {STEPS:,})"
    )
    parser.add_argument("--training", action="append", choices=TRAININGS, help="only this training; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few small graphs, 1/200 of their configurations, 2 steps")
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".hlorank" / "full_size", metavar="FOLDER",
        help="files of the pipeline, deleted after each collection (default: .hlorank/full_size)",
    )  # fmt: skip
    parser.add_argument("--show", action="store_true", help="only print the rows")
    options = parser.parse_args()
    results = options.json or options.work / "full_size.json"
    for collection in options.collection or map(Collection.parse, PUBLISHED):
        if str(collection) not in PUBLISHED:
            raise ConfigError(f"--collection {collection}: expected one of {', '.join(PUBLISHED)}")
        if not options.show:
            size = Size(**QUICK) if options.quick else Size(options.configurations, options.nodes, options.graphs)
            steps, trainings = 2 if options.quick else options.steps, options.training or TRAININGS
            measure(collection, size, steps, trainings, options.work, results)
    if options.show:
        print(*map(line, _rows(results)), sep="\n")


if __name__ == "__main__":
    run_command(main)
