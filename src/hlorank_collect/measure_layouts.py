"""Child process that measures the layouts of one program, or has the compiler estimate them."""

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
from hlorank.hlo.layout_space import DRAWN, SEARCHES, Layouts, Search, configuration_name
from hlorank.hlo.reader import Record, featurize
from hlorank_collect import record, xla
from hlorank_collect.compiled_layouts import Attempts, CompiledLayouts, captured, configurable
from hlorank_collect.program import Program, SkippedError
from hlorank_collect.task import LayoutTask, Progress, Report
from hlorank_collect.timing import Float64, Rounds
from hlorank_collect.tpu.estimated_layouts import EstimatedLayouts, TpuProgram

_COMPILE_SHARE = 0.7  # of the time limit; the rest is for measuring


Result = tuple[HloModuleProto, Layouts, Float64, dict[str, Any]]
"""Captured module, configurations, the default first, their times (rounds, configurations), and what else is known."""


def _search(task: LayoutTask) -> Search:
    return SEARCHES[Collection.parse(task.collection).search or ""]


def _measure(task: LayoutTask, program: Program, report: Report) -> Result:
    module, inputs = captured(program, task.platform)
    start = time.monotonic()
    space = configurable(module)
    deadline = start + _COMPILE_SHARE * task.time_limit
    attempts = Attempts.reported(report, 0.5, task.configurations, task.left_out, deadline)
    compiled = CompiledLayouts(module, space, inputs, task.platform, attempts)
    rng = task.rng(program.name)
    found = _search(task)(space, task.configurations, rng, lambda batch: compiled.quick(batch, rng))
    kept = [compiled.result(configuration) is not None for configuration in found]
    left_out = {name: compiled.left_out[name] for name in map(configuration_name, found[np.logical_not(kept)])}
    if sum(kept) < 2:
        raise SkippedError(f"only its default configuration works: {next(iter(left_out.values()), 'no other found')}")
    ready = time.monotonic()
    times = compiled.measure(found[kept], rng, Rounds.up_to(task.rounds), start + task.time_limit, report, 0.5)
    seconds = {"compile": round(ready - start, 2), "measure": round(time.monotonic() - ready, 2)}
    known = {"left_out": left_out, "seconds": seconds}
    return module, found[kept], times, known


def _estimate(task: LayoutTask, program: Program, report: Report) -> Result:
    start = time.monotonic()
    compiled = TpuProgram(program, task.platform)
    deadline = start + task.time_limit
    attempts = Attempts.reported(report, 1.0, task.configurations, task.left_out, deadline)
    memory = task.memory(program.name)
    memory.parent.mkdir(parents=True, exist_ok=True)
    estimated = EstimatedLayouts(compiled, attempts, memory)
    # Layouts that do not compile, which is known only then, are replaced; a search that measures compiles all of them.
    spare = task.configurations // (1 if _search(task) in DRAWN else 4)
    rng = task.rng(program.name)
    drawn = _search(task)(compiled.space, task.configurations + spare, rng, estimated.runtimes)
    works = (configuration for configuration in drawn if estimated.result(configuration) is not None)
    kept = np.stack([*itertools.islice(works, task.configurations)])
    if len(kept) < 2:
        raise SkippedError(f"only its default configuration compiles: {[*estimated.left_out.values()][-1]}")
    known = {"left_out": estimated.left_out, "seconds": {"compile": round(time.monotonic() - start, 2)}}
    return compiled.module, kept, estimated.runtimes(kept)[None], known | estimated.about(kept)


def measure_layouts(task: LayoutTask, report: Report) -> dict[str, Any]:
    """Measure layouts of one program in this process, write its npz and JSON files, and return the latter's content."""
    load = os.getloadavg()[0]
    report(Progress("trace"))
    program = task.load()
    module, layouts, times, known = (_estimate if task.platform in xla.TPUS else _measure)(task, program, report)
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
    task.memory(program.name).unlink(missing_ok=True)
    return about
