"""What a child process does: it measures the layouts of one program."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import resource
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO, TypeVar

import numpy as np

from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.data.graph import LayoutConfigurations, MeasuredGraph
from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_search import SEARCHES
from hlorank.hlo.layout_space import Rows, name_of
from hlorank.hlo.reader import Record, featurize
from hlorank_collect import xla
from hlorank_collect.layouts import record
from hlorank_collect.layouts.capture import captured, configurable
from hlorank_collect.layouts.compiled_layouts import Candidates, SkippedError
from hlorank_collect.program import Program
from hlorank_collect.task import Progress, Report, Task
from hlorank_collect.timing import Float64, Rounds, measure

_Task = TypeVar("_Task", bound=Task)
_COMPILE_SHARE = 0.7  # of the time limit; the rest is for measuring


@dataclass(frozen=True, eq=False)
class Measured:
    """Configurations with their times.

    Attributes:
        rows: (configurations, configurable nodes, 18) int8, the default first.
        times: (rounds, configurations) float64, nanoseconds.
        left_out: the configurations, by name, that have no times, with the reason.
        recompiled: how many were right only with fusion emitters.
        seconds: of compiling and of measuring.
    """

    rows: Rows
    times: Float64
    left_out: dict[str, str]
    recompiled: int
    seconds: dict[str, float]


def _measure(task: Task, program: Program, module: HloModuleProto, inputs: list[Any], report: Report) -> Measured:
    start = time.monotonic()
    space = configurable(module)
    share = itertools.count(step=0.5 / task.configurations)
    candidates = Candidates(
        module,
        space,
        inputs,
        task.platform,
        fast_compile=task.fast_compile,
        forbidden=task.left_out,
        before=lambda name: report(Progress("compile", name, next(share))),
        deadline=start + _COMPILE_SHARE * task.time_limit,
    )
    rng = np.random.default_rng([task.seed, zlib.crc32(program.name.encode())])
    search = SEARCHES[Collection.parse(task.collection).search or ""]
    rows = search(space, task.configurations, rng, lambda batch: candidates.quick(batch, rng))
    kept = [candidates.executable(row) is not None for row in rows]
    left_out = {name: candidates.left_out[name] for name in map(name_of, rows[np.logical_not(kept)])}
    if sum(kept) < 2:
        raise SkippedError(f"only its default configuration works: {next(iter(left_out.values()), 'no other found')}")
    compiled = time.monotonic()
    times = measure(
        candidates.timer(rows[kept]),
        sum(kept),
        rng,
        Rounds(least=min(Rounds.least, task.rounds), most=task.rounds),
        deadline=start + task.time_limit,
        heartbeat=lambda done: report(Progress("measure", share=0.5 + 0.5 * done / task.rounds)),
    )
    seconds = {"compile": round(compiled - start, 2), "measure": round(time.monotonic() - compiled, 2)}
    return Measured(rows[kept], times, left_out, len(candidates.recompiled), seconds)


def measure_layouts(task: Task, report: Report) -> dict[str, Any]:
    """Measures layouts of one program in this process, and writes its npz and JSON files.

    Args:
        task: which, and how.
        report: called before each step that may take long.

    Returns:
        what the JSON file holds.

    Raises:
        SkippedError: this program can't be measured.
        ConfigError: there is no such program.
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
        "fingerprint": task.fingerprint,
        "device": xla.device_name(task.platform),
        **record.environment(),
        **record.quality(measured.times),
        "nodes": graph.nodes,
        "configurable_nodes": len(configurations.node_ids),
        "measured": len(labels),
        "left_out": measured.left_out,
        "recompiled": measured.recompiled,
        "default": 0,
        "runtime_ns": {
            "default": int(labels.runtime[0]),
            "best": int(labels.runtime.min()),
            "worst": int(labels.runtime.max()),
        },
        "load": {"before": load, "after": os.getloadavg()[0]},
        "seconds": measured.seconds,
    }
    layouts = LayoutConfigurations.from_chunks(configurations.node_ids, [measured.rows])
    record.write(npz, MeasuredGraph(program.name, graph, layouts, labels), about)
    return about


def _limit_memory() -> None:
    """Makes allocations fail, rather than the machine, when a configuration asks for more than there is."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = total * 3 // 4
    resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _send(events: TextIO, message: dict[str, Any]) -> None:
    events.write(json.dumps(message) + "\n")
    events.flush()  # raises where the parent is gone: then there is nobody to work for


def main(kind: type[_Task], measure: Callable[[_Task, Report], dict[str, Any]]) -> None:
    """Reads a task of this kind as JSON from standard input, and writes events as JSON lines.

    The number of the file for the events is the first argument of the process.
    """
    task = kind(**json.load(sys.stdin))
    if task.core is not None:
        os.sched_setaffinity(0, {task.core})
    _limit_memory()
    with os.fdopen(int(sys.argv[1]), "w") as events:
        try:
            about = measure(task, lambda progress: _send(events, {"progress": dataclasses.asdict(progress)}))
        except (SkippedError, ConfigError, DataError) as error:
            _send(events, {"skipped": str(error)})
        else:
            _send(events, {"done": about})


if __name__ == "__main__":
    main(Task, measure_layouts)
