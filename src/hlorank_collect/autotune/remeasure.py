"""Child process that measures a tuned program again next to the compiler's default."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from hlorank_collect.autotune.autotune_tasks import RemeasureTask
from hlorank_collect.autotune.significance import speedup
from hlorank_collect.autotune.tuned import Tuned
from hlorank_collect.child_process import run_child
from hlorank_collect.task import Progress, Report
from hlorank_collect.timing import Rounds, measure


def remeasure(task: RemeasureTask, report: Report) -> dict[str, Any]:
    """Run and measure a tuned program.

    Args:
        task: the program, and the number of rounds.
        report: called before each step that may take long.

    Returns:
        `tuned`, False where the default won; `speedup` with estimate, low and high; and `runtime_ns` of `default` and
        `tuned`, medians over rounds.

    Raises:
        SkippedError: the program does not compile, or its configuration no longer works.
        ConfigError: the saved program is neither a file nor importable.
        DataError: the file is damaged, or belongs to another program.
    """
    report(Progress("compile"))
    tuned = Tuned(Path(task.saved))
    configurations = np.stack([tuned.space.default, tuned.configuration])
    rng = np.random.default_rng(task.seed)

    def heartbeat(done: int) -> None:
        report(Progress("measure", share=done / task.rounds))

    timer = tuned.compiled.timer(configurations)
    times = measure(timer, len(configurations), rng, Rounds(task.rounds, task.rounds), heartbeat=heartbeat)
    default, own = np.median(times, axis=0).tolist()
    return {
        "tuned": bool((tuned.configuration != -1).any()),
        "speedup": dataclasses.asdict(speedup(times, 1, rng)),
        "runtime_ns": {"default": default, "tuned": own},
    }


if __name__ == "__main__":
    run_child(RemeasureTask, remeasure)
