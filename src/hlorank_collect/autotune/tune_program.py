"""Child processes that tune one program, or measure one given configuration of it, next to the compiler's default."""

import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.files import write_json
from hlorank.hlo.layout_json import module_layouts
from hlorank.hlo.layout_space import Layouts, configuration_name
from hlorank.hlo.reader import Record, featurize
from hlorank.metrics import ranking
from hlorank_collect.autotune.search import Candidates, find_candidates, propose, speedup, winner
from hlorank_collect.autotune.tuned import ApplyTask, TuneTask, read_chosen
from hlorank_collect.compiled_layouts import Attempts
from hlorank_collect.measure_layouts import TriedLayouts, opened
from hlorank_collect.program import SkippedError
from hlorank_collect.task import Progress, Report
from hlorank_collect.timing import Rounds

_FINALISTS = 5
_MIN_ROUNDS = 10  # measured even after the time limit: half of them select, and the interval needs five more
_PROPOSE_SHARE = 0.7  # of the time limit; the rest is for measuring the finalists
_COMPILE_SHARE = 0.8  # of the work, in the shown progress


def tune(task: TuneTask, report: Report) -> dict[str, Any]:
    """Tune one program in this process, unless it is already, write its JSON file, and return its content."""
    start = time.monotonic()
    report(Progress("trace"))
    program = task.load()
    module, space, compile_layouts = opened(task, program, memory=partial(task.memory, program.name))
    if (finished := task.finished(program.name, module)) is not None:
        return finished
    rng = task.rng(program.name)
    report(Progress("rank"))
    graph = featurize(Record("program", Path(task.program), "", module, None), "layout")[0].graph
    deadline = start + _PROPOSE_SHARE * task.time_limit
    attempts = Attempts.reported(report, _COMPILE_SHARE, task.budget + 1, task.left_out, deadline)
    with find_candidates(task.model, graph, space, task.configurations, task.budget, rng) as candidates:
        ranked = time.monotonic()
        compiled = compile_layouts(attempts)
        tried = propose(
            candidates.choose, lambda chosen: compiled.quick(candidates.layouts[chosen], rng), task.budget, deadline
        )
    measured = {candidate: relative for candidate, relative in tried.items() if np.isfinite(relative)}
    best, outcome = _final(compiled, candidates, measured, task, rng, start + task.time_limit, report)
    outcome["seconds"] = {"rank": round(ranked - start, 2), "all": round(time.monotonic() - start, 2)}
    about = task.result(program.name, module, candidates.layouts[best], outcome, candidates.score(best))
    write_json(task.saved(program.name), about)
    task.memory(program.name, module).unlink(missing_ok=True)
    return about


def _tried(layouts: Layouts, score: float | None, relative: float) -> dict[str, Any]:
    return {"configuration": configuration_name(layouts), "score": score, "relative_runtime": relative}


def _final(
    compiled: TriedLayouts,
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
        "measured": [_tried(layouts[row], candidates.score(row), relative) for row, relative in measured.items()],
        "left_out": compiled.left_out,
        "speedup": None,
        "rounds": 0,
    }
    if not measured:
        return 0, outcome
    known = [*measured]
    finalists = [0, *(known[place] for place in ranking([*measured.values()])[:_FINALISTS])]
    times = compiled.measure(layouts[finalists], rng, _rounds(task), deadline, report, _COMPILE_SHARE)
    column, found = winner(times, rng)
    outcome |= {"speedup": dataclasses.asdict(found), "rounds": len(times)}
    return finalists[column] if found.real else 0, outcome


def _rounds(task: TuneTask) -> Rounds:
    return Rounds(min=task.rounds, max=task.rounds, certain=_MIN_ROUNDS)


def apply(task: ApplyTask, report: Report) -> dict[str, Any]:
    """Measure a configuration unless it compiles to the default's program; write the JSON file and return it."""
    start = time.monotonic()
    chosen = read_chosen(Path(task.applied))
    report(Progress("trace"))
    program = task.load()
    module, space, compile_layouts = opened(task, program, chosen.fingerprint)
    layouts = module_layouts(module, chosen)
    compiled = compile_layouts(Attempts.reported(report, 0.6, 2, task.left_out))
    if compiled.result(layouts) is None:
        why = compiled.left_out[configuration_name(layouts)]
        raise SkippedError(f"the configuration of {task.applied} fails: {why}")
    both, times, deadline = np.stack([space.default, layouts]), np.zeros((0, 2)), start + task.time_limit
    if not compiled.same(both):
        times = compiled.measure(both, task.rng(task.program), _rounds(task), deadline, report, 0.6)
    outcome: dict[str, Any] = {"applied": task.applied, "candidates": 1, "budget": 1, "measured": [], "left_out": {}}
    seconds = {"all": round(time.monotonic() - start, 2)}
    outcome |= {"speedup": None, "rounds": len(times), "seconds": seconds}
    wins = False
    if len(times):
        outcome["runtime_ns"] = dict(zip(("default", "tuned"), np.median(times, axis=0).tolist(), strict=True))
        found = speedup(times, 1, task.rng(program.name))
        outcome["measured"] = [_tried(layouts, chosen.score, 1 / found.estimate)]
        outcome["speedup"], wins = dataclasses.asdict(found), found.real
    task = dataclasses.replace(task, reference=chosen.model)
    about = task.result(program.name, module, layouts if wins else space.default, outcome, chosen.score)
    write_json(task.saved(program.name), about)
    return about
