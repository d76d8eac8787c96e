"""Child process that measures one given configuration of a program next to the compiler's default."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from hlorank.files import DataError, write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_json import ModuleConfiguration, module_layouts
from hlorank.hlo.layout_space import Layouts, configuration_name
from hlorank_collect import xla
from hlorank_collect.autotune.search import speedup
from hlorank_collect.autotune.tuned import ApplyTask
from hlorank_collect.compiled_layouts import CompiledLayouts, captured, configurable
from hlorank_collect.program import SkippedError
from hlorank_collect.task import Progress, Report
from hlorank_collect.timing import Float64, Rounds, measure

_MIN_ROUNDS = 10  # measured even after the time limit


def _configuration(task: ApplyTask, chosen: ModuleConfiguration, module: HloModuleProto) -> Layouts:
    try:
        return module_layouts(module, chosen)
    except DataError as error:
        if task.scale_batch is None or task.again:
            raise
        hint = f"--scale-batch {task.scale_batch} makes another module than the one that was ranked: leave it out"
        raise SkippedError(f"{error}; {hint}") from None


def _measured(task: ApplyTask, compiled: CompiledLayouts, both: Layouts, deadline: float, report: Report) -> Float64:
    """Return (rounds, 2) times of the default and of a configuration, (rounds, 1) if they are the same program."""
    texts = []
    for configuration in both:
        if (executable := compiled.executable(configuration)) is None:
            why = compiled.left_out[configuration_name(configuration)]
            raise SkippedError(f"the configuration of {task.applied} fails: {why}")
        texts.append(xla.text(executable.module(), canonical=True))
    different = both[: len({*texts})]
    if len(different) == 1 and not task.again:
        return np.zeros((0, 1))

    def heartbeat(done: int) -> None:
        report(Progress("measure", share=0.6 + 0.4 * done / task.rounds))

    timer, rng = compiled.timer(different), task.rng(task.program)
    rounds = Rounds(min=task.rounds, max=task.rounds, certain=_MIN_ROUNDS)
    return measure(timer, len(different), rng, rounds, deadline=deadline, heartbeat=heartbeat)


def apply(task: ApplyTask, report: Report) -> dict[str, Any]:
    """Measure a configuration in this process, write the JSON file of a tuned program, and return its content.

    A configuration that compiles to the program of the default is not measured; for that of a tuned program, the
    default is measured then.
    """
    start = time.monotonic()
    chosen = task.chosen()
    report(Progress("trace"))
    program = task.load()
    module, inputs = captured(program, task.platform, chosen.fingerprint)
    layouts, space = _configuration(task, chosen, module), configurable(module)

    def before(name: str | None) -> None:
        report(Progress("compile", name, 0.0 if name is None else 0.3))

    compiled = CompiledLayouts(module, space, inputs, task.platform, before, task.left_out)
    times = _measured(task, compiled, np.stack([space.default, layouts]), start + task.time_limit, report)
    found = speedup(times, 1, task.rng(program.name)) if times.shape[1] == 2 else None
    outcome: dict[str, Any] = {
        "applied": task.applied,
        "candidates": 1,
        "budget": 1,
        "measured": [],
        "left_out": {},
        "speedup": None,
        "rounds": len(times),
        "seconds": {"all": round(time.monotonic() - start, 2)},
    }
    if len(times):
        outcome["runtime_ns"] = dict(zip(("default", "tuned"), np.median(times, axis=0).tolist(), strict=False))
    if found is not None:
        measured = {"configuration": configuration_name(layouts), "score": chosen.score}
        outcome["measured"] = [{**measured, "relative_runtime": 1 / found.estimate}]
        outcome["speedup"] = asdict(found)
    wins = found is not None and found.real
    task = replace(task, reference=chosen.model)
    about = task.result(program.name, module, layouts if wins else space.default, outcome, chosen.score)
    if not task.again:
        write_json(task.saved(program.name), about)
    return about
