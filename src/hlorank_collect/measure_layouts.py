"""Child process that measures the layouts of one program, or has the compiler estimate them."""

import dataclasses
import itertools
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import DRAWN, SEARCHES, Layouts, LayoutSpace
from hlorank.hlo.reader import Record, featurize
from hlorank_collect import record, xla
from hlorank_collect.compiled_layouts import Attempts, CompiledLayouts, captured, compile_constrained, configurable
from hlorank_collect.program import Program, SkippedError
from hlorank_collect.task import LayoutTask, Progress, Report, Task
from hlorank_collect.timing import Float64, Rounds
from hlorank_collect.tpu.estimated_layouts import EstimatedLayouts, TpuProgram

_COMPILE_SHARE = 0.7  # of the time limit; the rest is for measuring

TriedLayouts = CompiledLayouts | EstimatedLayouts


def opened(
    task: Task,
    program: Program,
    fingerprint: str | None = None,
    memory: Callable[[HloModuleProto], Path | None] = lambda _: None,
) -> tuple[HloModuleProto, LayoutSpace, Callable[..., TriedLayouts]]:
    """Return a program before layout assignment, its layouts, what tries them; `memory` gives a file of estimates."""
    if task.platform in xla.TPUS:
        own = TpuProgram(program, task.platform)
        estimated = partial(EstimatedLayouts, own, memory(own.module), code_seconds=task.code_seconds)
        return own.module, own.space, estimated
    if task.platform == "tpu":
        if (found := xla.device_name("tpu")) != (wanted := xla.device_name(task.source)):
            raise ConfigError(f"{task.collection}: this machine has a {found}, not a {wanted}")
        own = TpuProgram(program, task.source, attached=True)
        return own.module, own.space, partial(CompiledLayouts, own.compiled, own.space, own.inputs())
    module, inputs = captured(program, task.platform, fingerprint)
    space = configurable(module)
    compile_one = partial(compile_constrained, module, space, task.platform)
    return module, space, partial(CompiledLayouts, compile_one, space, inputs)


def _measure(
    task: LayoutTask, name: str, space: LayoutSpace, try_layouts: Callable[..., TriedLayouts], report: Report
) -> tuple[Layouts, Float64, dict[str, Any]]:
    """Return configurations, the default first, their times (rounds, configurations), and what else is known."""
    start, rng = time.monotonic(), task.rng(name)
    search = SEARCHES[Collection.parse(task.collection).search or ""]
    estimated = task.platform in xla.TPUS
    share, limit = (1.0, 1.0) if estimated else (0.5, _COMPILE_SHARE)
    deadline = start + limit * task.time_limit
    tried = try_layouts(Attempts.reported(report, share, task.configurations, task.left_out, deadline))
    # Estimated layouts that do not compile, which is known only then, are replaced; a search that measures has more.
    spare = task.configurations // (1 if search in DRAWN else 4) if estimated else 0
    drawn = search(space, task.configurations + spare, rng, lambda batch: tried.quick(batch, rng))
    works = (configuration for configuration in drawn if tried.result(configuration) is not None)
    kept = np.stack([*itertools.islice(works, task.configurations)])
    if len(kept) < 2:
        raise SkippedError(f"only its default configuration works: {[*tried.left_out.values(), 'no other found'][0]}")
    ready = time.monotonic()
    times = tried.measure(kept, rng, Rounds(max=task.rounds), start + task.time_limit, report, 0.5)
    seconds = {"compile": round(ready - start, 2), "measure": round(time.monotonic() - ready, 2)}
    about = tried.about(kept) if isinstance(tried, EstimatedLayouts) else {}
    return kept, times, {"left_out": tried.left_out, "seconds": seconds, **about}


def measure_layouts(task: LayoutTask, report: Report) -> dict[str, Any]:
    """Measure layouts of one program in this process, write its npz and JSON files, and return the latter's content."""
    load = os.getloadavg()[0]
    report(Progress("trace"))
    program = task.load()
    module, space, try_layouts = opened(task, program, memory=lambda _: task.memory(program.name))
    layouts, times, known = _measure(task, program.name, space, try_layouts, report)
    npz, program_file = task.npz(program.name), Path(task.program)
    unmeasured, _ = featurize(Record(program.name, npz, "", module, None), "layout")
    graph, configurations = unmeasured.graph, unmeasured.configurations
    assert isinstance(configurations, LayoutConfigurations)
    about = {
        "name": program.name,
        "family": program.family,
        **{key: value for key, value in dataclasses.asdict(task).items() if key not in ("left_out", "output")},
        "program": program_file.name if program_file.is_file() else task.program,  # not a folder of this machine
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
