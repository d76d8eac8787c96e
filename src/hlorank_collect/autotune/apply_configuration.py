"""Child process that measures one given configuration of a program next to the compiler's default."""

from __future__ import annotations

import dataclasses
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.config.section import read_section
from hlorank.files import DataError, write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_json import EXPECTED, ModuleConfiguration, module_layouts
from hlorank.hlo.layout_space import configuration_name, to_json
from hlorank_collect import machine, xla
from hlorank_collect.autotune.autotune_tasks import ApplyTask
from hlorank_collect.autotune.significance import speedup
from hlorank_collect.autotune.tuned import digest
from hlorank_collect.child_process import run_child
from hlorank_collect.layouts.compiled_layouts import CompiledLayouts, captured, configurable
from hlorank_collect.program import SkippedError
from hlorank_collect.task import Progress, Report
from hlorank_collect.timing import Rounds, measure

_MIN_ROUNDS = 10  # measured even after the time limit


def apply(task: ApplyTask, report: Report) -> dict[str, Any]:
    """Measure a configuration in this process, and write the JSON file of a tuned program.

    Args:
        task: the program, the configuration and the settings.
        report: called before each step that may take long.

    Returns:
        The content of the JSON file; a configuration that compiles to the program of the default is not measured.

    Raises:
        SkippedError: the program cannot be measured, or the configuration fails.
        ConfigError: `task.program` is neither a file nor importable.
        DataError: the file of the configuration is damaged, or belongs to another module.
    """
    start = time.monotonic()
    configuration = read_section(ModuleConfiguration, Path(task.applied), EXPECTED)
    report(Progress("trace"))
    program = task.load()

    def fits(found: HloModuleProto) -> bool:
        try:
            module_layouts(found, configuration)
        except DataError:
            return False
        return True

    module, inputs = captured(program, task.platform, wanted=fits)
    space = configurable(module)
    try:
        layouts = module_layouts(module, configuration)
    except DataError as error:
        if task.scale_batch is None:
            raise
        hint = f"--scale-batch {task.scale_batch} makes another module than the one that was ranked: leave it out"
        raise SkippedError(f"{error}; {hint}") from None
    name = configuration_name(layouts)
    rng = np.random.default_rng([task.seed, zlib.crc32(program.name.encode())])
    times, found, differs = np.zeros((0, 2)), None, False
    if (layouts != space.default).any():
        compiled = CompiledLayouts(
            module,
            space,
            inputs,
            task.platform,
            forbidden=task.left_out,
            before=lambda one: report(Progress("compile", one, 0.0 if one is None else 0.3)),
        )
        chosen, default = compiled.executable(layouts), compiled.executable(space.default)
        if chosen is None or default is None:
            raise SkippedError(f"the configuration of {task.applied} fails: {compiled.left_out[name]}")
        differs = xla.canonical_text(chosen.module()) != xla.canonical_text(default.module())
    if differs:
        times = measure(
            compiled.timer(np.stack([space.default, layouts])),
            2,
            rng,
            Rounds(min=task.rounds, max=task.rounds, certain=_MIN_ROUNDS),
            deadline=start + task.time_limit,
            heartbeat=lambda done: report(Progress("measure", share=0.6 + 0.4 * done / task.rounds)),
        )
        found = speedup(times, 1, rng)
    wins = found is not None and found.real
    about = {
        "name": program.name,
        "program": task.program,
        "arguments": task.arguments,
        "scale_batch": task.scale_batch,
        "platform": task.platform,
        "collection": task.collection,
        "model": configuration.model,
        "applied": task.applied,
        "seed": task.seed,
        "candidates": 1,
        "budget": 1,
        "measured": []
        if found is None
        else [{"configuration": name, "score": configuration.score, "relative_runtime": 1 / found.estimate}],
        "left_out": {},
        "module": digest(module),
        "winner": name if wins else "default",
        "configuration": to_json(space, layouts) if wins else {},
        "speedup": None if found is None else dataclasses.asdict(found),
        "rounds": len(times),
        "seconds": {"all": round(time.monotonic() - start, 2)},
        "device": xla.device_name(task.platform),
        **machine.description(),
    }
    write_json(task.saved(program.name), about)
    return about


if __name__ == "__main__":
    run_child(ApplyTask, apply)
