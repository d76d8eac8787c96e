r"""Kendall tau and slowdown of experiments on real TPU programs, of which one is left out of the training data.

Two programs and 15 kernels are published with their runtimes outside the archives of TpuGraphs; that is far too little
for a claim beyond the number.

In layout/xla/default, unet3d is trained on and unet_3d.4x4.bf16 is ranked. 84 % of its 1,965 configurations are within
0.01 % of the fastest, so that its slowdown says little.

In tile/xla, 14 kernels of op_tuning_data.pb are trained on and the 15th is ranked, each in turn. Six of them have but
two or three configurations. Three of these six have configurations with equal features, so that every ranking of them
has a tau of 0, and no mean is above 0.8.

The ranked graphs are in the split test and none in valid, so that no epoch is chosen on them: a training keeps the one
with the smallest training loss. Each ranking is a row of benchmarks/results/real.csv as soon as it is done, and is not
computed again as long as neither its configuration nor its data change; but another kind of CPU may round embeddings
of opcodes differently, and rankings that use these are computed again there. The table has means over the ranked
graphs, with mean and standard deviation over seeds; a training has a budget of process CPU time.

All rankings take about 13 hours on two cores, the quick form about a minute.

    python benchmarks/real.py
    python benchmarks/real.py --collection tile/xla \
        --experiment kaggle_1_tile best_tile --seeds 1
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import experiments  # type: ignore[import-not-found] # same folder
from command_line import Parser, output_file  # type: ignore[import-not-found] # same folder
from command_line import run as run_command
from rows import append_row, read_rows  # type: ignore[import-not-found] # same folder

from hlorank.config import ConfigError
from hlorank.data.collection import Collection, graph_files
from hlorank.fetch.hlo import convert
from hlorank.files import fingerprint, shared_dir
from hlorank.terminal import min_int

RESULTS = Path(__file__).parent / "results" / "real.csv"
GRAPHS, KERNELS = Path("data/tpugraphs/npz"), Path("data/official/op_tuning_data.pb")
CPU_SECONDS = {"layout/xla/default": experiments.CPU_SECONDS, "tile/xla": 10.0}
TRAIN_TAU = "train/kendall_tau"
FIGURES = (TRAIN_TAU, *(f"test/{metric}" for metric in ("kendall_tau", "opa", "slowdown_1", "slowdown_5")))
COLUMNS = (
    *("collection", "experiment", "seed", "fingerprint", "graph", "parameters", "steps", "cpu_seconds"),
    *FIGURES,
)


class Fold(NamedTuple):
    """Graphs that are trained on, and the one that is ranked."""

    train: list[Path]
    ranked: Path

    def lay_out(self, folder: Path) -> None:
        """Write links where the stage fetch writes the graphs of a collection."""
        for split, files in (("train", self.train), ("test", [self.ranked])):
            (folder / split).mkdir(parents=True, exist_ok=True)
            for file in files:
                link = folder / split / file.name
                if not link.is_symlink():
                    link.symlink_to(file.resolve())


class Ranking(NamedTuple):
    """One row of the results, to be computed."""

    graph: str
    training: experiments.Training


def folds_of(collection: Collection, work: Path) -> list[Fold]:
    if collection.kind == "tile":
        kernels = sorted(convert(shared_dir() / KERNELS, work / "kernels", "tile"))
        return [Fold([other for other in kernels if other != kernel], kernel) for kernel in kernels]
    root = shared_dir() / GRAPHS
    return [Fold(graph_files(root, collection, "train"), file) for file in graph_files(root, collection, "valid")]


def waiting(arguments: argparse.Namespace, work: Path) -> Iterator[Ranking]:
    """Prepare the data of all trainings that are asked for, and return these."""
    tracking = (f"tracking.uri=sqlite:///{work}/mlflow.db", f"tracking.artifacts={work}/artifacts")
    for address, names in experiments.fitting(arguments.collection, arguments.experiment).items():
        collection = Collection.parse(address)
        folds = folds_of(collection, work)[: arguments.folds]
        for name in names:
            overrides = (
                *experiments.overrides_of(name, arguments.cpu_seconds or CPU_SECONDS[address]),
                *("evaluate.splits=[train,test]", *tracking),
            )
            configs = [experiments.composed(address, overrides, seed, work) for seed in range(arguments.seeds)]
            for fold in folds:
                place = work / fingerprint([fold.ranked.stem, experiments.data_key(configs[0])])[:12]
                fold.lay_out(place / "raw" / collection.path)
                folders = {part: str(place / part) for part in ("raw", "features", "segments")}
                paths = configs[0].paths.model_copy(update=folders)
                data = experiments.featurize(configs[0].model_copy(update={"paths": paths}))
                for seed, config in enumerate(configs):
                    key = experiments.training_key(config, data, overrides)
                    yield Ranking(fold.ranked.stem, experiments.Training(address, name, overrides, seed, place, key))


def run(ranking: Ranking) -> dict[str, Any]:
    """One training and its evaluation, as a row."""
    row, graphs = experiments.run(ranking.training)
    trained = [float(graph["kendall_tau"]) for graph in graphs if graph["split"] == "train" and graph["kendall_tau"]]
    found = {"graph": ranking.graph, TRAIN_TAU: round(mean(trained), 4), **row}
    return {column: found[column] for column in COLUMNS}


def mean_over_graphs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each experiment and seed."""
    identity = ("collection", "experiment", "seed")
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[column]) for column in identity), []).append(row)
    return [
        dict(zip(identity, group, strict=True))
        | {column: mean(float(row[column]) for row in some) for column in ("cpu_seconds", *FIGURES)}
        for group, some in groups.items()
    ]


def computed(arguments: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """Return the rows of all rankings that are asked for, after those that are missing are done."""
    output_file(arguments.results)
    rankings = list(waiting(arguments, work))
    known: dict[str, dict[str, Any]] = {row["fingerprint"]: row for row in read_rows(arguments.results)}
    missing = [ranking for ranking in rankings if ranking.training.key not in known]
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
        futures = [pool.submit(run, ranking) for ranking in missing]
        for number, future in enumerate(as_completed(futures), 1):
            row = future.result()
            known[row["fingerprint"]] = row
            append_row(arguments.results, COLUMNS, row)
            print(f"[{number}/{len(futures)}] {row['experiment']} {row['seed']} {row['graph']}: "
                  f"tau {row['test/kendall_tau']}", file=sys.stderr, flush=True)  # fmt: skip
    return [known[ranking.training.key] for ranking in rankings]


def show(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Mean and standard deviation of some columns over seeds, as Markdown."""
    lines = [f"| collection | experiment | seeds | CPU s | {' | '.join(names)} |", "|---" * (4 + len(names)) + "|"]
    for collection, experiment in dict.fromkeys((row["collection"], row["experiment"]) for row in rows):
        some = [row for row in rows if (row["collection"], row["experiment"]) == (collection, experiment)]

        def cell(name: str, some: list[dict[str, Any]] = some) -> str:
            values = [float(row[name]) for row in some if row.get(name) not in (None, "")]
            if not values:
                return ""
            return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")

        cells = [collection, experiment, str(len(some)), cell("cpu_seconds"), *map(cell, names)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def recorded(results: Path, wanted: Sequence[tuple[str, str]], seeds: int) -> list[dict[str, Any]]:
    """Return the newest row of each seed, and graph where there are several, of collections and experiments.

    Raises:
        ConfigError: there is none.
    """
    columns = ("collection", "experiment", "seed", "graph")
    known = {tuple(row.get(column) for column in columns): row for row in read_rows(results)}
    rows = [row for pair in wanted for key, row in known.items() if key[:2] == pair and int(row["seed"]) < seeds]
    if not rows:
        raise ConfigError(f"{results}: no row of what is asked for; without --show it is computed")
    return rows


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--collection", nargs="+", default=[*CPU_SECONDS], choices=CPU_SECONDS, metavar="PATH",
        help=f"{' or '.join(CPU_SECONDS)} (default: both)",
    )  # fmt: skip
    budget = ", ".join(f"{seconds:g} for {collection}" for collection, seconds in CPU_SECONDS.items())
    experiments.add_training_options(parser, RESULTS, budget, "real")
    parser.add_argument("--folds", type=min_int(1), metavar="N", help="only the first N kernels (default: all)")
    parser.add_argument("--quick", action="store_true", help="one CPU second for each of two rankings, kept in --work")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    if arguments.quick:
        arguments.experiment, arguments.results = ["best_layout", "best_tile"], work / "quick.csv"
        arguments.collection, arguments.seeds, arguments.folds, arguments.cpu_seconds = [*CPU_SECONDS], 1, 1, 1.0
    chosen = experiments.fitting(arguments.collection, arguments.experiment)
    if arguments.show:
        wanted = [(collection, name) for collection, names in chosen.items() for name in names]
        rows = recorded(arguments.results, wanted, arguments.seeds)
    elif not (shared_dir() / KERNELS).is_file():
        print(f"skipped: there is no {shared_dir() / KERNELS}")
        return
    else:
        rows = computed(arguments, work)
    print(show(mean_over_graphs(rows), FIGURES))


if __name__ == "__main__":
    run_command(main)
