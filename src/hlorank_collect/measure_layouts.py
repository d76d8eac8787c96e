"""Child process that measures the layouts of one program."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.data.collection import Collection
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_search import SEARCHES
from hlorank.hlo.layout_space import Layouts, configuration_name
from hlorank.hlo.reader import Record, featurize
from hlorank_collect import record
from hlorank_collect.child_process import run_child
from hlorank_collect.compiled_layouts import CompiledLayouts, captured, configurable
from hlorank_collect.program import Program, SkippedError
from hlorank_collect.task import LayoutTask, Progress, Report
from hlorank_collect.timing import Float64, Rounds, measure

_COMPILE_SHARE = 0.7  # of the time limit; the rest is for measuring


@dataclass(frozen=True, eq=False)
class _Measured:
    """Configurations, the default first, with their times (rounds, configurations) in nanoseconds."""

    configurations: Layouts
    times: Float64
    left_out: dict[str, str]
    """Names of configurations without times -> reason."""
    recompiled: int
    """Number of configurations whose outputs were right only with fusion emitters."""
    seconds: dict[str, float]
    """Duration of compiling and of measuring."""


def _measure(
    task: LayoutTask, program: Program, module: HloModuleProto, inputs: list[Any], report: Report
) -> _Measured:
    start = time.monotonic()
    space = configurable(module)
    share = itertools.count(step=0.5 / task.configurations)
    compiled = CompiledLayouts(
        module,
        space,
        inputs,
        task.platform,
        fast_compile=task.fast_compile,
        forbidden=task.left_out,
        before=lambda name: report(Progress("compile", name, next(share))),
        deadline=start + _COMPILE_SHARE * task.time_limit,
    )
    rng = task.rng(program.name)
    search = SEARCHES[Collection.parse(task.collection).search or ""]
    found = search(space, task.configurations, rng, lambda batch: compiled.quick(batch, rng))
    kept = [compiled.executable(configuration) is not None for configuration in found]
    left_out = {name: compiled.left_out[name] for name in map(configuration_name, found[np.logical_not(kept)])}
    if sum(kept) < 2:
        raise SkippedError(f"only its default configuration works: {next(iter(left_out.values()), 'no other found')}")
    ready = time.monotonic()
    times = measure(
        compiled.timer(found[kept]),
        sum(kept),
        rng,
        Rounds.up_to(task.rounds),
        deadline=start + task.time_limit,
        heartbeat=lambda done: report(Progress("measure", share=0.5 + 0.5 * done / task.rounds)),
    )
    seconds = {"compile": round(ready - start, 2), "measure": round(time.monotonic() - ready, 2)}
    return _Measured(found[kept], times, left_out, len(compiled.recompiled), seconds)


def measure_layouts(task: LayoutTask, report: Report) -> dict[str, Any]:
    """Measure layouts of one program in this process, write its npz and JSON files, and return the latter's content.

    Raises:
        SkippedError: the program cannot be measured.
    """
    load = os.getloadavg()[0]
    report(Progress("trace"))
    program = task.load()
    module, inputs = captured(program, task.platform)
    measured = _measure(task, program, module, inputs, report)
    npz = task.npz(program.name)
    unmeasured, _ = featurize(Record(program.name, npz, "", module, None), "layout")
    graph, configurations = unmeasured.graph, unmeasured.configurations
    assert isinstance(configurations, LayoutConfigurations)
    labels = record.measurements(measured.times)
    about = {
        "name": program.name,
        "family": program.family,
        **{key: value for key, value in dataclasses.asdict(task).items() if key not in ("left_out", "output")},
        "program": Path(task.program).name if task.is_file else task.program,  # not a folder of this machine
        "fingerprint": task.fingerprint,
        "nodes": graph.nodes,
        "configurable_nodes": len(configurations.node_ids),
        "left_out": measured.left_out,
        "recompiled": measured.recompiled,
        **record.quality(measured.times),
        **record.conditions(task.platform, load),
        "seconds": measured.seconds,
    }
    layouts = LayoutConfigurations.from_chunks(configurations.node_ids, [measured.configurations])
    record.write(npz, MeasuredGraph(program.name, graph, layouts, labels), about)
    return about


if __name__ == "__main__":
    run_child(LayoutTask, measure_layouts)
