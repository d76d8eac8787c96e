"""Child process that tunes one program."""

from __future__ import annotations

import dataclasses
import itertools
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.data.collection import Collection
from hlorank.data.graph import LayoutConfigurations
from hlorank.files import write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_search import SEARCHES
from hlorank.hlo.layout_space import Layouts, LayoutSpace, configuration_name, to_json
from hlorank.hlo.reader import Record, featurize
from hlorank.metrics import ranking
from hlorank.serving.ranker import Ranker
from hlorank_collect import machine, xla
from hlorank_collect.autotune.autotune_tasks import TuneTask
from hlorank_collect.autotune.propose import Adapted, Priority, propose
from hlorank_collect.autotune.significance import winner
from hlorank_collect.autotune.tuned import digest
from hlorank_collect.child_process import run_child
from hlorank_collect.layouts.compiled_layouts import CompiledLayouts, captured, configurable
from hlorank_collect.program import SkippedError
from hlorank_collect.task import Progress, Report
from hlorank_collect.timing import Float64, Rounds, measure

_FINALISTS = 5
_FINAL_ROUNDS = 10  # measured even after the time limit: half of them select, and the interval needs five more
_PROPOSE_SHARE = 0.7  # of the time limit; the rest is for measuring the finalists
_COMPILE_SHARE = 0.8  # of the work, in the shown progress


class Pool:
    """Candidates of one program, with the scores of a model.

    Args:
        module: captured before layout assignment.
        space: its configurable layouts.
        task: number of candidates, search, and model.
        rng: draws the candidates.

    Attributes:
        candidates: (candidates, configurable nodes, 18) int8, without the default.
        scores: (candidates,), larger = slower; increasing in the order drawn where there is no model.
        priority: decides which candidates are measured next.

    Raises:
        SkippedError: the program has one configuration only.
        DataError: the folder of the model is damaged, or the model ranks tiles.
    """

    def __init__(self, module: HloModuleProto, space: LayoutSpace, task: TuneTask, rng: np.random.Generator) -> None:
        unmeasured, _ = featurize(Record("program", Path(task.program), "", module, None), "layout")
        self._graph, self._space = unmeasured.graph, space
        self._ranker = None if task.model is None else Ranker(Path(task.model))
        search = SEARCHES[Collection.parse(task.collection).search or ""]
        drawn = search(space, task.configurations + 1, rng, self._score)
        if len(drawn) < 2:
            raise SkippedError("it has one configuration only")
        self.candidates = drawn[1:]
        # With the default: a score may depend on the other configurations of the graph.
        self.scores = self._score(drawn)[1:]
        self.priority: Priority = lambda _: self.scores
        if self._ranker is not None:
            self.priority = Adapted(self.scores, self._ranker.embed(self._graph, self._configurations(drawn))[1:])

    def _configurations(self, layouts: Layouts) -> LayoutConfigurations:
        return LayoutConfigurations.from_chunks(self._space.node_ids, [layouts])

    def _score(self, layouts: Layouts) -> Float64:
        if self._ranker is None:
            return np.arange(len(layouts), dtype=np.float64)
        return self._ranker.score(self._graph, self._configurations(layouts))


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
        ConfigError: `task.program` is neither in the zoo nor importable.
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
    pool = Pool(module, space, task, rng)
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
        pool.priority,
        lambda chosen: compiled.quick(pool.candidates[chosen], rng),
        batch=task.batch,
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
        "candidates": len(pool.candidates),
        "batch": task.batch,
        "budget": task.budget,
        "measured": [
            {
                "configuration": configuration_name(pool.candidates[one]),
                "score": float(pool.scores[one]),
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
        finalists = np.stack([space.default, *pool.candidates[best]])
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
