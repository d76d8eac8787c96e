"""Child process that measures the layouts of one program."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.data.collection import Collection
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import SEARCHES, Layouts, configuration_name
from hlorank.hlo.reader import Record, featurize
from hlorank_collect import record
from hlorank_collect.compiled_layouts import CompiledLayouts, captured, configurable
from hlorank_collect.program import Program, SkippedError
from hlorank_collect.task import LayoutTask, Progress, Report
from hlorank_collect.timing import Float64, Rounds

_COMPILE_SHARE = 0.7  # of the time limit; the rest is for measuring


def _measure(
    task: LayoutTask, program: Program, module: HloModuleProto, inputs: list[Any], report: Report
) -> tuple[Layouts, Float64, dict[str, Any]]:
    """Return configurations, the default first, their times (rounds, configurations), and what is known of them."""
    start = time.monotonic()
    space = configurable(module)
    share = itertools.count(step=0.5 / task.configurations)

    def before(name: str | None) -> None:
        report(Progress("compile", name, next(share)))

    deadline, fast = start + _COMPILE_SHARE * task.time_limit, task.fast_compile
    compiled = CompiledLayouts(module, space, inputs, task.platform, before, task.left_out, deadline, fast_compile=fast)
    rng = task.rng(program.name)
    search = SEARCHES[Collection.parse(task.collection).search or ""]
    found = search(space, task.configurations, rng, lambda batch: compiled.quick(batch, rng))
    kept = [compiled.executable(configuration) is not None for configuration in found]
    left_out = {name: compiled.left_out[name] for name in map(configuration_name, found[np.logical_not(kept)])}
    if sum(kept) < 2:
        raise SkippedError(f"only its default configuration works: {next(iter(left_out.values()), 'no other found')}")
    ready = time.monotonic()
    times = compiled.measure(found[kept], rng, Rounds.up_to(task.rounds), start + task.time_limit, report, 0.5)
    seconds = {"compile": round(ready - start, 2), "measure": round(time.monotonic() - ready, 2)}
    return found[kept], times, {"left_out": left_out, "recompiled": len(compiled.recompiled), "seconds": seconds}


def measure_layouts(task: LayoutTask, report: Report) -> dict[str, Any]:
    """Measure layouts of one program in this process, write its npz and JSON files, and return the latter's content."""
    load = os.getloadavg()[0]
    report(Progress("trace"))
    program = task.load()
    module, inputs = captured(program, task.platform)
    layouts, times, known = _measure(task, program, module, inputs, report)
    npz = task.npz(program.name)
    unmeasured, _ = featurize(Record(program.name, npz, "", module, None), "layout")
    graph, configurations = unmeasured.graph, unmeasured.configurations
    assert isinstance(configurations, LayoutConfigurations)
    about = {
        "name": program.name,
        "family": program.family,
        **{key: value for key, value in dataclasses.asdict(task).items() if key not in ("left_out", "output")},
        "program": Path(task.program).name if task.is_file else task.program,  # not a folder of this machine
        "fingerprint": task.fingerprint,
        "nodes": graph.nodes,
        "configurable_nodes": len(configurations.node_ids),
        **known,
        **record.quality(times),
        **record.conditions(task.platform, load),
    }
    measured = LayoutConfigurations.from_chunks(configurations.node_ids, [layouts])
    record.write(npz, MeasuredGraph(program.name, graph, measured, record.measurements(times)), about)
    return about
