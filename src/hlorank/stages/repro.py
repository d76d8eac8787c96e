"""`make repro`: the pipeline of dvc.yaml, with independent stages at the same time.

DVC runs one stage after the other. It locks the project only between the commands of stages, and while a command runs,
only the files that the stage reads or writes; so several `dvc repro` work together if none writes what another one
reads. Each collection is prepared by a process of its own, and then each training; `dvc repro` alone gives the same.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from subprocess import PIPE, STDOUT, Popen, run
from threading import Event

from omegaconf import OmegaConf

_DVC = [sys.executable, "-m", "dvc"]
_STAGES = {"fetch", "featurize", "partition", "train", "evaluate"}
# Advice that each process of DVC repeats, and a warning of the segments of tiles, which are none.
_HINT = re.compile(
    r"\s*$|To (track|enable)|\s+(git add|dvc config)|Use `dvc push`|Updating lock file|.*didn't change|.*' is empty\.$"
)


def reproduce(jobs: int) -> int:
    """Run all stages whose inputs have changed, and print their output with the name of the collection or training.

    After a failure the stages that are running are completed, and no other one begins.

    Args:
        jobs: the largest number of stages that run at the same time.

    Returns:
        The exit status: 0 if all stages are up to date.
    """
    if run([*_DVC, "status", "--quiet"], check=False).returncode == 0:  # noqa: S603 - fixed words
        sys.stdout.write("Data and pipelines are up to date.\n")
        return 0
    pipeline = OmegaConf.load("params.yaml").pipeline
    methods = [*pipeline.methods, *pipeline.tile_methods]
    failed = Event()

    def prepare(collection: str) -> None:
        _repro(failed, collection, f"partition@{collection}")

    def train(name: str, prepared: Future[None]) -> None:
        prepared.result()
        # The stages alone: DVC would lock the files of the stages before them, which other trainings read.
        _repro(failed, name, "--single-item", f"train@{name}", f"evaluate@{name}")

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        # Submitted before the trainings, which wait for them.
        prepared = {collection: pool.submit(prepare, collection) for collection in pipeline.collections}
        # The first methods of all collections first: baselines, which are quick, come last.
        trainings = sorted(pipeline.trainings.items(), key=lambda item: methods.index(item[1].method))
        trained = [pool.submit(train, name, prepared[training.collection]) for name, training in trainings]
        for future in [*prepared.values(), *trained]:
            future.result()
    if OmegaConf.load("dvc.yaml").stages.keys() - _STAGES:
        _repro(failed, "pipeline")  # all stages, as others than these five were added
    return int(failed.is_set())


def _repro(failed: Event, name: str, *arguments: str) -> None:
    if failed.is_set():
        return
    # Several processes wait for each other's changes of dvc.lock, however long these take.
    command = [*_DVC, "--wait-for-lock", "repro", *arguments]
    with Popen(command, stdout=PIPE, stderr=STDOUT, text=True, errors="replace") as process:  # noqa: S603 - no shell
        for line in process.stdout or ():
            if not _HINT.match(line):
                sys.stdout.write(f"{name} | {line}")
                sys.stdout.flush()
    if process.returncode != 0:
        failed.set()
        sys.stdout.write(f"{name} | failed\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the pipeline in the current folder."""
    parser = argparse.ArgumentParser(description="Run the pipeline of dvc.yaml, independent stages at the same time.")
    parser.add_argument(
        "--jobs", type=int, default=3, metavar="N", help="stages that run at the same time (default: 3)"
    )
    jobs = parser.parse_args(arguments).jobs
    try:
        sys.exit(reproduce(jobs))
    except KeyboardInterrupt:  # the stages got it too, and have ended
        sys.exit(130)


if __name__ == "__main__":
    main()
