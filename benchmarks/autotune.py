"""Speedup of autotuning on programs outside the training data: top 1, top 5, and as many at random.

For each program the candidates of the strategies are compiled and measured together with the compiler's default, in
one process: each strategy then chooses by every other round, the default among its choices, and its speedup is
estimated on the rounds between. No measurement of the training data is used. Results are
appended to benchmarks/results/autotune.csv program by program; programs in it are not measured again.

All programs take about ten minutes on a quiet machine; there is no quick form, but programs can be named. `make repro`
trains the model.

    python benchmarks/autotune.py --model models/layout/cpu/random/gst
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import zlib
from itertools import islice
from pathlib import Path

import numpy as np
from command_line import Parser, expect, layout_model, output_file, run  # type: ignore[import-not-found] # same folder
from rows import append_row, read_rows  # type: ignore[import-not-found] # same folder

from hlorank.files import read_json
from hlorank.metrics import ranking
from hlorank.terminal import min_int
from hlorank_collect.autotune.autotune_tasks import TuneTask
from hlorank_collect.autotune.propose import propose
from hlorank_collect.autotune.tune_program import Pool
from hlorank_collect.child_process import environment
from hlorank_collect.layouts.compiled_layouts import CompiledLayouts, captured, configurable
from hlorank_collect.machine import require_quiet
from hlorank_collect.timing import Float64, Rounds, measure
from hlorank_collect.zoo import programs

RESULTS = Path(__file__).parent / "results" / "autotune.csv"
SAMPLE = Path(__file__).parents[1] / "data" / "sample"
TEST_FOLD = 1  # conf/data/sample.yaml: fold 0 is valid
RANDOM = 10
STRATEGIES = ("top_1", "top_5", "adaptive_10", "random_1", "random_5", "random_10", "best")
COLUMNS = ("program", "model", "candidates", "rounds", "left_out", *STRATEGIES, "default_ms")


def chosen_speedup(times: Float64, columns: list[int]) -> float:
    """Return the speedup on odd rounds of the best of some columns and the default on even rounds."""
    logs = np.log(times) - np.log(times[:, :1])
    options = [0, *columns]
    best = options[int(np.argmin(np.median(logs[::2, options], axis=0)))]
    return float(np.exp(-np.median(logs[1::2, best])))


def mean_over_draws(times: Float64, columns: list[int], count: int, rng: np.random.Generator) -> float:
    """Return the geometric mean of `chosen_speedup` over random choices of some columns."""
    draws = [rng.choice(columns, size=min(count, len(columns)), replace=False).tolist() for _ in range(200)]
    return math.exp(float(np.mean([math.log(chosen_speedup(times, draw)) for draw in draws])))


def measured(task: TuneTask, seed: int) -> dict[str, object]:
    """Measure one row of the results."""
    program = task.load()
    module, inputs = captured(program, task.platform)
    space = configurable(module)
    rng = np.random.default_rng([seed, zlib.crc32(program.name.encode())])
    pool = Pool(module, space, task, rng)
    compiled = CompiledLayouts(module, space, inputs, task.platform)

    def works(one: int) -> bool:
        return compiled.executable(pool.candidates[one]) is not None

    top = [*islice(filter(works, ranking(pool.scores).tolist()), 5)]
    random = [*islice(filter(works, rng.permutation(len(pool.candidates)).tolist()), RANDOM)]
    tried = propose(pool.priority, lambda chosen: compiled.quick(pool.candidates[chosen], rng), batch=5, budget=10)
    adaptive = [one for one, runtime in tried.items() if math.isfinite(runtime)]
    every = list(dict.fromkeys([*top, *adaptive, *random]))
    column = {one: 1 + place for place, one in enumerate(every)}
    finalists = np.stack([space.default, *pool.candidates[every]])
    times = measure(compiled.timer(finalists), len(finalists), rng, Rounds(min=task.rounds, max=task.rounds))

    def of(some: list[int]) -> float:
        return chosen_speedup(times, [column[one] for one in some])

    draws = [column[one] for one in random]
    found = {
        "top_1": of(top[:1]),
        "top_5": of(top),
        "adaptive_10": of(adaptive),
        **{f"random_{count}": mean_over_draws(times, draws, count, rng) for count in (1, 5, 10)},
        "best": of(every),
    }
    return {
        "program": program.name,
        "model": task.model,
        "candidates": len(pool.candidates),
        "rounds": len(times),
        "left_out": len(compiled.left_out),
        **{name: round(value, 4) for name, value in found.items()},
        "default_ms": round(float(np.median(times[:, 0])) / 1e6, 3),
    }


def test_programs() -> list[str]:
    """Return the forward programs of the test families of the sample, up to a few thousand nodes."""
    folds = read_json(SAMPLE / "split.json")["families"]
    return [
        program.name
        for program in programs().values()
        if folds[program.family] == TEST_FOLD and program.name.endswith(".forward") and "deep" not in program.name
    ]


def settings(program: str, arguments: argparse.Namespace) -> TuneTask:
    return TuneTask(
        program=program,
        arguments=None,
        collection=f"layout:cpu:{arguments.search}",
        output="",
        configurations=arguments.candidates,
        seed=arguments.seed,
        rounds=arguments.rounds,
        fast_compile=False,
        time_limit=math.inf,
        core=None,
        model=str(arguments.model),
    )


def summarize(rows: list[dict[str, str]]) -> str:
    """Return geometric means over programs as a Markdown table."""
    models = sorted({row["model"] for row in rows})
    lines = [f"| model | programs | {' | '.join(STRATEGIES)} |", "|---" * (2 + len(STRATEGIES)) + "|"]
    for model in models:
        some = [row for row in rows if row["model"] == model]
        means = [math.exp(np.mean([math.log(float(row[name])) for row in some])) for name in STRATEGIES]
        lines.append(f"| {model} | {len(some)} | {' | '.join(f'{mean:.3f}' for mean in means)} |")
    return "\n".join(lines)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("program", nargs="*", help="names of the zoo (default: the test families' forward programs)")
    parser.add_argument(
        "--model", type=layout_model, required=True, metavar="FOLDER", help="a trained model of layouts"
    )
    parser.add_argument(
        "--search", choices=("random", "default"), default="random", help="origin of candidates (default: random)"
    )
    parser.add_argument(
        "--candidates", type=min_int(1), default=256, metavar="N", help="ranked configurations (default: 256)"
    )
    parser.add_argument("--rounds", type=min_int(4), default=40, metavar="N", help="of measurement (default: 40)")
    parser.add_argument("--seed", type=min_int(0), default=1, metavar="N", help="of candidates (default: 1)")
    parser.add_argument(
        "--results", type=output_file, default=RESULTS, metavar="CSV",
        help="rows (default: benchmarks/results/autotune.csv)",
    )  # fmt: skip
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    expect("program", arguments.program, programs())
    if arguments.one:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print(json.dumps(measured(settings(arguments.program[0], arguments), arguments.seed)))
        return
    require_quiet()
    done = {(row["program"], row["model"]) for row in read_rows(arguments.results)}
    for program in arguments.program or test_programs():
        if (program, str(arguments.model)) in done:
            continue
        options = ["--model", str(arguments.model), "--search", arguments.search]
        options += [f"--{name}={getattr(arguments, name)}" for name in ("candidates", "rounds", "seed")]
        command = [sys.executable, __file__, program, *options, "--one"]
        result = subprocess.run(command, env=environment("cpu"), stdout=subprocess.PIPE, text=True, check=False)
        if result.returncode:
            print(f"{program}: failed with status {result.returncode}", flush=True)
            continue
        row = json.loads(result.stdout.splitlines()[-1])
        append_row(arguments.results, COLUMNS, row)
        print(row, flush=True)
    print(summarize(read_rows(arguments.results)))


if __name__ == "__main__":
    run(main)
