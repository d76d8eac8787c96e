"""What a child process does: it tunes one program."""

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
from hlorank.hlo.layout_space import LayoutSpace, Rows, name_of, to_plain
from hlorank.hlo.reader import Record, featurize
from hlorank.metrics import ranking
from hlorank.serving.ranker import Ranker
from hlorank_collect import xla
from hlorank_collect.autotune.autotune_task import TuneTask
from hlorank_collect.autotune.propose import Adapted, Priority, propose
from hlorank_collect.autotune.significance import winner
from hlorank_collect.autotune.tuned import digest
from hlorank_collect.layouts import measure_program as child
from hlorank_collect.layouts import record
from hlorank_collect.layouts.capture import captured, configurable
from hlorank_collect.layouts.compiled_layouts import Candidates, SkippedError
from hlorank_collect.task import Progress, Report
from hlorank_collect.timing import Float64, Rounds, measure

_FINALISTS = 5
_FINAL_ROUNDS = 10  # whatever the time limit: half of them choose, and fewer than five others make no interval
_PROPOSE_SHARE = 0.7  # of the time limit; the rest is for measuring the finalists
_COMPILE_SHARE = 0.8  # of the work, as the progress shows it


class Pool:
    """The candidates of one program, and what a model makes of them.

    Args:
        module: captured before layout assignment.
        space: of this module.
        task: says how many, by which search, and which model ranks them.
        rng: draws them.

    Attributes:
        rows: (candidates, configurable nodes, 18) int8, without the default.
        scores: (candidates,), larger = slower; in the order drawn without a model.
        priority: which to measure next.

    Raises:
        SkippedError: the program has one configuration only.
        DataError: the model's folder is damaged, or the model ranks tiles.
    """

    def __init__(self, module: HloModuleProto, space: LayoutSpace, task: TuneTask, rng: np.random.Generator) -> None:
        unmeasured, _ = featurize(Record(task.program, Path(task.program), "", module, None), "layout")
        self._graph, self._space = unmeasured.graph, space
        self._ranker = None if task.model is None else Ranker(Path(task.model))
        search = SEARCHES[Collection.parse(task.collection).search or ""]
        drawn = search(space, task.configurations + 1, rng, self._score)
        if len(drawn) < 2:
            raise SkippedError("it has one configuration only")
        self.rows = drawn[1:]
        # The default comes along: what a model makes of a configuration may depend on what is usual.
        self.scores = self._score(drawn)[1:]
        self.priority: Priority = lambda _: self.scores
        if self._ranker is not None:
            self.priority = Adapted(self.scores, self._ranker.embed(self._graph, self._layouts(drawn))[1:])

    def _layouts(self, rows: Rows) -> LayoutConfigurations:
        return LayoutConfigurations.from_chunks(self._space.node_ids, [rows])

    def _score(self, rows: Rows) -> Float64:
        if self._ranker is None:
            return np.arange(len(rows), dtype=np.float64)
        return self._ranker.score(self._graph, self._layouts(rows))


def _final(
    candidates: Candidates, finalists: Rows, task: TuneTask, rng: np.random.Generator, deadline: float, report: Report
) -> Float64:
    """(rounds, 1 + finalists) times, the default first."""

    def heartbeat(done: int) -> None:
        report(Progress("measure", share=_COMPILE_SHARE + (1 - _COMPILE_SHARE) * done / task.rounds))

    rounds = Rounds(least=task.rounds, most=task.rounds, certain=_FINAL_ROUNDS)
    return measure(candidates.timer(finalists), len(finalists), rng, rounds, deadline=deadline, heartbeat=heartbeat)


def tune(task: TuneTask, report: Report) -> dict[str, Any]:
    """Tunes one program in this process, and writes its JSON file.

    Args:
        task: which, and how.
        report: called before each step that may take long.

    Returns:
        what the JSON file holds.

    Raises:
        SkippedError: this program can't be tuned.
        ConfigError: there is no such program.
        DataError: there is no such model.
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
    candidates = Candidates(
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
        lambda chosen: candidates.quick(pool.rows[chosen], rng),
        batch=task.batch,
        budget=task.budget,
        in_time=lambda: time.monotonic() < deadline,
    )
    measured = {one: relative for one, relative in tried.items() if np.isfinite(relative)}
    about = {
        "name": program.name,
        "program": task.program,
        "arguments": task.arguments,
        "platform": task.platform,
        "collection": task.collection,
        "model": task.reference,
        "seed": task.seed,
        "candidates": len(pool.rows),
        "batch": task.batch,
        "budget": task.budget,
        "measured": [
            {"configuration": name_of(pool.rows[one]), "score": float(pool.scores[one]), "relative_runtime": relative}
            for one, relative in measured.items()
        ],
        "left_out": candidates.left_out,
        "module": digest(module),
        "winner": "default",
        "configuration": {},
        "speedup": None,
        "device": xla.device_name(task.platform),
        **record.environment(),
    }
    if measured:
        fastest = list(measured)
        best = [fastest[place] for place in ranking(list(measured.values()))[:_FINALISTS]]
        finalists = np.stack([space.default, *pool.rows[best]])
        times = _final(candidates, finalists, task, rng, start + task.time_limit, report)
        column, speedup = winner(times, rng)
        about["speedup"] = dataclasses.asdict(speedup)
        about["rounds"] = len(times)
        if speedup.real:
            about["winner"] = name_of(finalists[column])
            about["configuration"] = to_plain(space, finalists[column])
    about["seconds"] = {"rank": round(ranked - start, 2), "all": round(time.monotonic() - start, 2)}
    write_json(task.saved(program.name), about)
    return about


if __name__ == "__main__":
    child.main(TuneTask, tune)
