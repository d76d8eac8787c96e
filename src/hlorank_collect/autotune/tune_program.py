"""Child process that tunes one program."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.files import write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import LayoutSpace, configuration_name
from hlorank.hlo.reader import Record, featurize
from hlorank.metrics import ranking
from hlorank_collect.autotune.search import Candidates, RandomCandidates, propose, ranked_candidates, winner
from hlorank_collect.autotune.tuned import TuneTask
from hlorank_collect.compiled_layouts import CompiledLayouts, captured, configurable
from hlorank_collect.task import Progress, Report
from hlorank_collect.timing import Rounds, measure

_FINALISTS = 5
_FINAL_ROUNDS = 10  # measured even after the time limit: half of them select, and the interval needs five more
_PROPOSE_SHARE = 0.7  # of the time limit; the rest is for measuring the finalists
_COMPILE_SHARE = 0.8  # of the work, in the shown progress


def find_candidates(module: HloModuleProto, space: LayoutSpace, task: TuneTask, rng: np.random.Generator) -> Candidates:
    """Return the configurations of a program among which tuning chooses."""
    if task.model is None:
        return RandomCandidates(space, task.configurations, rng)
    graph = featurize(Record("program", Path(task.program), "", module, None), "layout")[0].graph
    return ranked_candidates(Path(task.model), graph, space, task.configurations, task.budget, rng)


def tune(task: TuneTask, report: Report) -> dict[str, Any]:
    """Tune one program in this process, write its JSON file, and return its content."""
    import torch

    torch.set_num_threads(1)  # the process has one core
    start = time.monotonic()
    report(Progress("trace"))
    program = task.load()
    module, inputs = captured(program, task.platform)
    space = configurable(module)
    rng = task.rng(program.name)
    report(Progress("rank"))
    candidates = find_candidates(module, space, task, rng)
    ranked = time.monotonic()
    deadline = start + _PROPOSE_SHARE * task.time_limit
    share = itertools.count(step=_COMPILE_SHARE / (task.budget + 1))

    def before(name: str | None) -> None:
        report(Progress("compile", name, min(next(share), _COMPILE_SHARE)))

    compiled = CompiledLayouts(module, space, inputs, task.platform, before, task.left_out, deadline)
    tried = propose(
        candidates.choose, lambda chosen: compiled.quick(candidates.layouts[chosen], rng), task.budget, deadline
    )
    measured = {candidate: relative for candidate, relative in tried.items() if np.isfinite(relative)}
    best, outcome = _final(compiled, candidates, measured, task, rng, start + task.time_limit, report)
    outcome["seconds"] = {"rank": round(ranked - start, 2), "all": round(time.monotonic() - start, 2)}
    about = task.result(program.name, module, candidates.layouts[best], outcome, candidates.score(best))
    write_json(task.saved(program.name), about)
    return about


def _final(
    compiled: CompiledLayouts,
    candidates: Candidates,
    measured: dict[int, float],
    task: TuneTask,
    rng: np.random.Generator,
    deadline: float,
    report: Report,
) -> tuple[int, dict[str, Any]]:
    """Measure the fastest candidates next to the default; return the winner, 0 for the default, and the outcome."""
    layouts = candidates.layouts
    outcome: dict[str, Any] = {
        "candidates": len(layouts) - 1,
        "budget": task.budget,
        "measured": [
            {
                "configuration": configuration_name(layouts[candidate]),
                "score": candidates.score(candidate),
                "relative_runtime": relative,
            }
            for candidate, relative in measured.items()
        ],
        "left_out": compiled.left_out,
        "speedup": None,
        "rounds": 0,
    }
    if not measured:
        return 0, outcome
    known = [*measured]
    finalists = [0, *(known[place] for place in ranking([*measured.values()])[:_FINALISTS])]

    def heartbeat(done: int) -> None:
        report(Progress("measure", share=_COMPILE_SHARE + (1 - _COMPILE_SHARE) * done / task.rounds))

    rounds = Rounds(min=task.rounds, max=task.rounds, certain=_FINAL_ROUNDS)
    timer = compiled.timer(layouts[finalists])
    times = measure(timer, len(finalists), rng, rounds, deadline=deadline, heartbeat=heartbeat)
    column, speedup = winner(times, rng)
    outcome |= {"speedup": dataclasses.asdict(speedup), "rounds": len(times)}
    return finalists[column] if speedup.real else 0, outcome
