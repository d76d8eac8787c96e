"""What a child process does: it runs a tuned program beside the compiler's default, and measures both anew."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from hlorank_collect.autotune.autotune_task import AgainTask
from hlorank_collect.autotune.significance import speedup
from hlorank_collect.autotune.tuned import Tuned
from hlorank_collect.layouts import measure_program as child
from hlorank_collect.task import Progress, Report
from hlorank_collect.timing import Rounds, measure


def run_again(task: AgainTask, report: Report) -> dict[str, Any]:
    """Runs and measures.

    Args:
        task: which program, and how often.
        report: called before each step that may take long.

    Returns:
        `tuned`, whether the program has a configuration of its own; `speedup` with estimate, low and high; and
        `runtime_ns` of `default` and `tuned`, medians over rounds.

    Raises:
        SkippedError: the program or its configuration does not work any more.
        ConfigError: there is no such program.
        DataError: the file is damaged, or another program.
    """
    report(Progress("compile"))
    tuned = Tuned(Path(task.saved))
    rows = np.stack([tuned.space.default, tuned.configuration])
    rng = np.random.default_rng(task.seed)
    rounds = Rounds(least=task.rounds, most=task.rounds)

    def heartbeat(done: int) -> None:
        report(Progress("measure", share=done / task.rounds))

    times = measure(tuned.candidates.timer(rows), len(rows), rng, rounds, heartbeat=heartbeat)
    default, own = np.median(times, axis=0).tolist()
    return {
        "tuned": bool((tuned.configuration != -1).any()),
        "speedup": dataclasses.asdict(speedup(times, 1, rng)),
        "runtime_ns": {"default": default, "tuned": own},
    }


if __name__ == "__main__":
    child.main(AgainTask, run_again)
