"""Child process that tunes one program."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.data.configurations import LayoutConfigurations
from hlorank.files import write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_search import random
from hlorank.hlo.layout_space import Layouts, LayoutSpace, configuration_name, to_json
from hlorank.hlo.reader import Record, featurize
from hlorank.metrics import ranking
from hlorank.ranking.ranker import Ranker
from hlorank_collect import machine, xla
from hlorank_collect.autotune.acquisition import node_kinds
from hlorank_collect.autotune.autotune_tasks import TuneTask
from hlorank_collect.autotune.evolution import Evolution
from hlorank_collect.autotune.propose import Choose, batch_size, in_order, propose
from hlorank_collect.autotune.significance import winner
from hlorank_collect.autotune.tuned import digest
from hlorank_collect.child_process import run_child
from hlorank_collect.layouts.compiled_layouts import CompiledLayouts, captured, configurable
from hlorank_collect.task import Progress, Report
from hlorank_collect.timing import Float64, Rounds, measure

_FINALISTS = 5
_FINAL_ROUNDS = 10  # measured even after the time limit: half of them select, and the interval needs five more
_PROPOSE_SHARE = 0.7  # of the time limit; the rest is for measuring the finalists
_COMPILE_SHARE = 0.8  # of the work, in the shown progress


class Candidates:
    """Configurations of one program, and the choice of those to measure.

    Args:
        module: captured before layout assignment.
        space: its configurable layouts.
        task: number of configurations, and model.
        rng: draws the configurations.

    Attributes:
        choose: chooses configurations to measure, by their place in `layouts`.

    Raises:
        DataError: the folder of the model is damaged, or the model ranks tiles.
    """

    choose: Choose

    def __init__(self, module: HloModuleProto, space: LayoutSpace, task: TuneTask, rng: np.random.Generator) -> None:
        self._evolution: Evolution | None = None
        if task.model is None:
            self._drawn = random(space, task.configurations + 1, rng, lambda _: np.zeros(0))
            self.choose = in_order(len(self._drawn) - 1)
            return
        graph = featurize(Record("program", Path(task.program), "", module, None), "layout")[0].graph
        ranker = Ranker(Path(task.model))

        def score(layouts: Layouts) -> Float64:
            return ranker.score(graph, LayoutConfigurations.from_chunks(space.node_ids, [layouts]))

        kinds = node_kinds(graph, space.node_ids)
        batches = math.ceil(task.budget / batch_size(task.budget))
        self._evolution = Evolution(space, kinds, score, size=task.configurations + 1, batches=batches, rng=rng)
        self.choose = self._evolution.choose

    @property
    def layouts(self) -> Layouts:
        """(candidates + 1, configurable nodes, 18) int8, the default first; more may be added by `choose`."""
        return self._drawn if self._evolution is None else self._evolution.layouts

    def score(self, candidate: int) -> float | None:
        """Return the model's score relative to the default, larger = slower; None without a model."""
        return None if self._evolution is None else float(self._evolution.scores[candidate])


def _measure_finalists(
    compiled: CompiledLayouts,
    finalists: Layouts,
    task: TuneTask,
    rng: np.random.Generator,
    deadline: float,
    report: Report,
) -> Float64:
    """Return (rounds, finalists) times, the default first."""

    def heartbeat(done: int) -> None:
        report(Progress("measure", share=_COMPILE_SHARE + (1 - _COMPILE_SHARE) * done / task.rounds))

    rounds = Rounds(min=task.rounds, max=task.rounds, certain=_FINAL_ROUNDS)
    return measure(compiled.timer(finalists), len(finalists), rng, rounds, deadline=deadline, heartbeat=heartbeat)


def tune(task: TuneTask, report: Report) -> dict[str, Any]:
    """Tune one program in this process, and write its JSON file.

    Args:
        task: the program and the settings.
        report: called before each step that may take long.

    Returns:
        The content of the JSON file.

    Raises:
        SkippedError: the program cannot be tuned.
        ConfigError: `task.program` is neither a file nor importable.
        DataError: `task.model` is not the folder of a trained model.
    """
    import torch

    torch.set_num_threads(1)  # the process has one core
    start = time.monotonic()
    report(Progress("trace"))
    program = task.load()
    module, inputs = captured(program, task.platform)
    space = configurable(module)
    rng = np.random.default_rng([task.seed, zlib.crc32(program.name.encode())])
    report(Progress("rank"))
    candidates = Candidates(module, space, task, rng)
    ranked = time.monotonic()
    deadline = start + _PROPOSE_SHARE * task.time_limit
    share = itertools.count(step=_COMPILE_SHARE / (task.budget + 1))
    compiled = CompiledLayouts(
        module,
        space,
        inputs,
        task.platform,
        forbidden=task.left_out,
        before=lambda name: report(Progress("compile", name, min(next(share), _COMPILE_SHARE))),
        deadline=deadline,
    )
    tried = propose(
        candidates.choose,
        lambda chosen: compiled.quick(candidates.layouts[chosen], rng),
        budget=task.budget,
        in_time=lambda: time.monotonic() < deadline,
    )
    measured = {one: relative for one, relative in tried.items() if np.isfinite(relative)}
    about = {
        "name": program.name,
        "program": task.program,
        "arguments": task.arguments,
        "scale_batch": task.scale_batch,
        "platform": task.platform,
        "collection": task.collection,
        "model": task.reference,
        "seed": task.seed,
        "candidates": len(candidates.layouts) - 1,
        "budget": task.budget,
        "measured": [
            {
                "configuration": configuration_name(candidates.layouts[one]),
                "score": candidates.score(one),
                "relative_runtime": relative,
            }
            for one, relative in measured.items()
        ],
        "left_out": compiled.left_out,
        "module": digest(module),
        "winner": "default",
        "configuration": {},
        "speedup": None,
        "device": xla.device_name(task.platform),
        **machine.description(),
    }
    if measured:
        known = list(measured)
        best = [known[place] for place in ranking(list(measured.values()))[:_FINALISTS]]
        finalists = np.stack([space.default, *candidates.layouts[best]])
        times = _measure_finalists(compiled, finalists, task, rng, start + task.time_limit, report)
        column, speedup = winner(times, rng)
        about["speedup"] = dataclasses.asdict(speedup)
        about["rounds"] = len(times)
        if speedup.real:
            about["winner"] = configuration_name(finalists[column])
            about["configuration"] = to_json(space, finalists[column])
    about["seconds"] = {"rank": round(ranked - start, 2), "all": round(time.monotonic() - start, 2)}
    write_json(task.saved(program.name), about)
    return about


if __name__ == "__main__":
    run_child(TuneTask, tune)
