"""Gain of the autotuner's ten measurements against that of 200 random ones, on programs outside the training data.

In one process for each program, the autotuner chooses and measures its candidates, and then random configurations are
measured. The best five of both and the compiler's default are measured anew in interleaved rounds. By the first two
thirds of the rounds each side decides as the autotuner does: for its fastest, or for the default if that is not slower
beyond noise. The speedup of what it decides for is estimated on the last third; 1 is the default. The last line has the
gain of the ten as a share of that of random, of geometric means.

A program takes the time of 220 compilations: two minutes for the smallest, half an hour for those of a thousand nodes.
Results are written to benchmarks/results/autotune_gain.json program by program, and those in it are not measured again,
so the run can be interrupted. `--random 20 --rounds 10` is quick. `make repro` trains a model, better is the best one:

    python -m hlorank.stages.train experiment=best_layout
    python benchmarks/autotune_gain.py --model models/layout/cpu/random/full
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from command_line import Parser, expect, layout_model, output_file, positive, run  # type: ignore[import-not-found] # same
from numpy.typing import NDArray

from hlorank.files import read_json, write_json
from hlorank.hlo.layout_search import random
from hlorank.hlo.layout_space import Layouts
from hlorank.metrics import ranking
from hlorank.terminal import min_int
from hlorank_collect import machine
from hlorank_collect.autotune.autotune_tasks import TuneTask
from hlorank_collect.autotune.propose import propose
from hlorank_collect.autotune.significance import speedup, winner
from hlorank_collect.autotune.tune_program import Candidates
from hlorank_collect.child_process import environment
from hlorank_collect.layouts.compiled_layouts import CompiledLayouts, captured, configurable
from hlorank_collect.timing import Rounds, measure
from hlorank_collect.zoo import programs

Float64 = NDArray[np.float64]
RESULTS = Path(__file__).parent / "results" / "autotune_gain.json"
TEST_FOLD = 1  # of 5, the same families in both collections; fold 0 is valid
FINALISTS = 5
CHUNK = 20  # random configurations whose executables are in memory at once


def decided(times: Float64, columns: list[int], rng: np.random.Generator) -> dict[str, float]:
    """Return the speedup in the last third of the rounds, with its interval, of what the others decide for."""
    cut = len(times) * 2 // 3
    best = 0
    if columns:
        column, found = winner(times[:cut, [0, *columns]], rng)
        best = columns[column - 1] if found.real else 0
    return {key: round(value, 4) for key, value in dataclasses.asdict(speedup(times[cut:], best, rng)).items()}


def fastest(layouts: Layouts, relative: Float64) -> Layouts:
    """Return the configurations of the smallest relative runtimes, without those that failed."""
    measured = np.flatnonzero(np.isfinite(relative))
    return layouts[measured[ranking(relative[measured])[:FINALISTS]]]


def measured(task: TuneTask, draws: int) -> dict[str, Any]:
    """Measure one program."""
    start = time.monotonic()
    program = task.load()
    module, inputs = captured(program, task.platform)
    space = configurable(module)
    rng = np.random.default_rng([task.seed, zlib.crc32(program.name.encode())])

    def compiled() -> CompiledLayouts:
        return CompiledLayouts(module, space, inputs, task.platform)

    candidates, own = Candidates(module, space, task, rng), compiled()
    tried = propose(candidates.choose, lambda some: own.quick(candidates.layouts[some], rng), budget=task.budget)
    ten = fastest(candidates.layouts[[*tried]], np.array([*tried.values()]))
    tuned = time.monotonic()
    drawn = random(space, draws + 1, rng, lambda _: np.zeros(0))[1:]
    relative = np.full(len(drawn), np.inf)
    for first in range(0, len(drawn), CHUNK):
        if time.monotonic() - tuned > task.time_limit:
            break
        relative[first : first + CHUNK] = compiled().quick(drawn[first : first + CHUNK], rng)
    best = fastest(drawn, relative)
    finalists = np.concatenate([space.default[None], ten, best])
    final = compiled()
    works = [final.executable(one) is not None for one in finalists]  # False where outputs are right at times only
    places = np.cumsum(works) - 1
    kept = finalists[works]
    times = measure(final.timer(kept), len(kept), rng, Rounds(min=task.rounds, max=task.rounds))

    def columns(first: int, stop: int) -> list[int]:
        return [int(places[one]) for one in range(first, stop) if works[one]]

    return {
        "program": program.name,
        "model": Path(task.model or "").name,
        "seed": task.seed,
        "configurable_nodes": space.nodes,
        "candidates": len(candidates.layouts) - 1,
        "measured": len(tried),
        "random_measured": int(np.isfinite(relative).sum()),
        "rounds": len(times),
        "default_ms": round(float(np.median(times[:, 0])) / 1e6, 3),
        "autotune": decided(times, columns(1, 1 + len(ten)), rng),
        "random": decided(times, columns(1 + len(ten), len(finalists)), rng),
        "seconds": {"autotune": round(tuned - start), "all": round(time.monotonic() - start)},
        **machine.description(),
    }


def test_programs() -> list[str]:
    """Return the measured programs of the test families, small ones first: of the sample, and of the models."""
    data = Path(__file__).parents[1] / "data"
    folds = read_json(data / "models" / "split.json")["families"]
    measured = {path.stem for path in data.glob("*/layout/cpu/*/*.npz")}
    names = [
        name for name, program in programs().items() if name in measured and folds.get(program.family) == TEST_FOLD
    ]
    return sorted(names, key=lambda name: (".full." in name, ".deep." in name, name.endswith(".train")))


def summarize(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table, with the geometric means and the share."""
    lines = [
        "| program | nodes | default, ms | ten measurements | random | of |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        ten, other = (
            f"{row[side]['estimate']:.3f} ({row[side]['low']:.3f} to {row[side]['high']:.3f})"
            for side in ("autotune", "random")
        )
        lines.append(
            f"| {row['program']} | {row['configurable_nodes']} | {row['default_ms']:.2f} | {ten} | {other} | "
            f"{row['random_measured']} |"
        )
    logs = [np.log([row[side]["estimate"] for row in rows]) for side in ("autotune", "random")]
    means = (f"**{math.exp(float(own.mean())):.3f}**" for own in logs)
    lines.append(f"| **geometric mean** | | | {' | '.join(means)} | |")
    gain, possible = (float(own.sum()) for own in logs)
    share = f"{gain / possible:.0%}" if possible > 0 else "any multiple"  # of nothing
    lines.append(f"\nThe ten measurements gain {share} of what random ones gain, on {len(rows)} programs.")
    return "\n".join(lines)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("program", nargs="*", help="names of the zoo (default: those of the test families)")
    parser.add_argument(
        "--model", type=layout_model, required=True, metavar="FOLDER", help="a trained model of layouts"
    )
    parser.add_argument(
        "--candidates", type=min_int(1), default=1024, metavar="N", help="scored configurations (default: 1024)"
    )
    parser.add_argument("--random", type=min_int(1), default=200, metavar="N", help="random ones (default: 200)")
    parser.add_argument("--rounds", type=min_int(6), default=60, metavar="N", help="of measurement (default: 60)")
    parser.add_argument("--seed", type=min_int(0), default=1, metavar="N", help="of all draws (default: 1)")
    parser.add_argument(
        "--seconds", type=positive, default=3600.0, metavar="S", help="of random measurements (default: 3600)"
    )
    parser.add_argument("--core", type=min_int(0), metavar="N", help="CPU core to measure on (default: the last one)")
    parser.add_argument("--allow-busy", action="store_true", help="measure on a busy machine, with a warning")
    parser.add_argument(
        "--json", type=output_file, default=RESULTS, metavar="FILE",
        help="results (default: benchmarks/results/autotune_gain.json)",
    )  # fmt: skip
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    expect("program", arguments.program, programs())
    if arguments.one:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0)) if arguments.core is None else arguments.core})
        task = TuneTask(
            program=arguments.program[0],
            arguments=None,
            collection="layout:cpu:random",
            output="",
            configurations=arguments.candidates,
            seed=arguments.seed,
            rounds=arguments.rounds,
            fast_compile=False,
            time_limit=arguments.seconds,
            core=None,
            model=str(arguments.model),
        )
        print(json.dumps(measured(task, arguments.random)))
        return
    if not arguments.allow_busy:
        machine.require_quiet()
    rows: list[dict[str, Any]] = read_json(arguments.json)["programs"] if arguments.json.exists() else []
    done = {(row["program"], row["model"], row["seed"]) for row in rows}
    own = [value for value in sys.argv[1:] if value not in arguments.program]
    for program in arguments.program or test_programs():
        if (program, arguments.model.name, arguments.seed) in done:
            continue
        command = [sys.executable, __file__, program, *own, "--one"]
        result = subprocess.run(command, env=environment("cpu"), stdout=subprocess.PIPE, text=True, check=False)
        if result.returncode:
            print(f"{program}: failed with status {result.returncode}", flush=True)
            continue
        rows.append(json.loads(result.stdout.splitlines()[-1]))
        write_json(arguments.json, {"programs": rows})
        print(summarize(rows[-1:]), flush=True)
    if rows:
        print(summarize(rows))


if __name__ == "__main__":
    run(main)
