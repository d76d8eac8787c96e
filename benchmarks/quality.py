r"""Kendall tau of experiments by cross-validation over model families, and which of each two is ahead.

A cell is an experiment on a collection with one fold left out and one seed. It is trained on the other folds but one;
its epoch, and the settings of boosted trees, are chosen on that one, the fold before; its figures are those of the fold
left out. The folds of data/sample and data/models are those of their split files, 15 and 18 families in five folds; the
generated graphs of layout/synthetic/random are each a family. In tile/xla one of 15 kernels is left out at a time, and
three others choose; a kernel is a family there. layout/joined/random is the three collections of layout/cpu in one, on
which one model trains; the tables of these have its figures, too, as those of "..., joined".

Boosted trees (gradient_boosting, xgboost) have their settings chosen in each fold by the search of
conf/hparams_search/trees.yaml, once for all seeds, for layouts on pruned and whole graphs. Networks have those of their
file.

The first fold is done first, with one seed. Networks that are not among the first five on its valid, or are more than
0.05 behind the best, leave; the table says so. Valid decides, so no fold that is reported is looked at. Then the rest,
all folds with one seed, then with the next. A seed counts when it has all of an experiment's folds.

--try and --ablation are for choosing: they score the graphs of valid, not those left out.

A finished cell is a row of the results, by default benchmarks/results/folds.csv, whose key is its settings and a
fingerprint of its data; the figures of its graphs are rows of folds_graphs.csv next to it. It is not computed again.
Everything takes at most 15 hours of CPU time on two cores; --hours ends it earlier, after the cells that have begun.
There is no quick form: a fold of tile/cpu with --experiment random takes half a minute.

    python benchmarks/quality.py
    python benchmarks/quality.py --show --plot quality.svg
    python benchmarks/quality.py --collection tile/cpu --experiment best_tile \
        --fold 2 --seed 1 --results again.csv
    python benchmarks/quality.py --collection layout/cpu/random --ablation
    python benchmarks/quality.py --collection layout/cpu/random \
        --experiment best_layout --try loss=hinge model.width=32
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import comparison  # type: ignore[import-not-found] # same folder
import experiments  # type: ignore[import-not-found] # as above
import numpy as np
from cells import CELL, FIGURES, TREES, Computation, Row, Wanted, graphs_file  # type: ignore[import-not-found] # as above
from command_line import Parser, expect, output_file, positive  # type: ignore[import-not-found] # as above
from command_line import run as run_command
from cpu_budget import budget_of  # type: ignore[import-not-found] # as above
from folds import JOINED, KERNELS, PARTS, Fold, folds_of  # type: ignore[import-not-found] # as above
from rows import read_rows  # type: ignore[import-not-found] # as above

from hlorank.config import ConfigError, Split
from hlorank.data.collection import Collection
from hlorank.files import shared_dir
from hlorank.terminal import min_int

RESULTS = Path(__file__).parent / "results" / "folds.csv"
COLLECTIONS = {
    "layout/cpu/random": 100.0,
    "layout/cpu/default": 100.0,
    "layout/cpu/models": 100.0,
    JOINED: 100.0,
    "layout/synthetic/random": 100.0,
    "tile/cpu": 60.0,
    "tile/xla": 10.0,
}
"""CPU time of a training on each collection, in seconds."""
RULES = ("linear_ranking", "analytical", "default_configuration", "random")
STAYING, MARGIN = 5, 0.05
"""Networks that stay after the first folds, at most, and how far behind the best valid tau they may be."""
FIRST = {"tile/xla": 3}
"""Number of the first folds, where it is not 1."""


def chosen(arguments: argparse.Namespace, collection: str) -> dict[str, tuple[str, ...]]:
    """Return the overrides of each experiment that is asked for on a collection, by its name."""
    names = experiments.fitting([collection], None)[collection]
    if arguments.experiment:
        names = [name for name in arguments.experiment if name in names]
    seconds = arguments.cpu_seconds or COLLECTIONS[collection]
    budget = budget_of(seconds)
    if arguments.tried and names:
        tries = ([], *arguments.tried)
        return {" ".join([names[0], *tried]): (f"experiment={names[0]}", *budget, *tried) for tried in tries}
    if arguments.ablation:
        best = f"best_{Collection.parse(collection).kind}"
        variants = {"": (), **experiments.ABLATIONS[best]}
        return {f"{best} {name}".strip(): (f"experiment={best}", *budget, *of) for name, of in variants.items()}
    return {name: experiments.overrides_of(name, seconds) for name in names}


def scored(arguments: argparse.Namespace) -> Split:
    """Return the split whose graphs are scored: valid where something is chosen by it."""
    return "valid" if arguments.tried or arguments.ablation else "test"


def staying(valid_taus: Mapping[str, float]) -> list[str]:
    """Return the experiments that are continued after the first folds, by their mean Kendall tau on valid there.

    Networks stay if they are among the best and near the front; hlorank's own, trees and rules stay in any case.
    """
    others = (*TREES, *RULES)
    networks = sorted((name for name in valid_taus if name not in others), key=lambda name: -valid_taus[name])
    front = [name for name in networks[:STAYING] if valid_taus[name] >= max(valid_taus.values()) - MARGIN]
    return [name for name in valid_taus if name in (*others, *front) or name.startswith("best_")]


def computed(arguments: argparse.Namespace, work: Path) -> list[Row]:
    """Return the rows of all cells that are asked for, after those that are missing are done."""
    computation, rows = Computation(arguments, work), list[Row]()
    places = {collection: folds_of(collection, work) for collection in arguments.collection}
    seeds = [arguments.seed] if arguments.seed is not None else list(range(arguments.seeds))
    split = scored(arguments)
    if arguments.fold is not None:
        wanted = [
            Wanted(fold, name, overrides, seed, split)
            for collection, folds in places.items()
            for name, overrides in chosen(arguments, collection).items()
            for fold in folds
            for seed in seeds
            if fold.number == arguments.fold
        ]
        rows += computation.rows(wanted)
        return rows
    continued: list[tuple[Fold, str, tuple[str, ...]]] = []
    for collection, folds in places.items():
        names, first = chosen(arguments, collection), folds[: FIRST.get(collection, 1)]
        found = computation.rows(
            [Wanted(fold, name, overrides, seeds[0], split) for fold in first for name, overrides in names.items()]
        )
        rows += found
        taus: dict[str, list[float]] = {}
        for row in found:
            taus.setdefault(row["experiment"], []).append(float(row["valid_tau"] or "nan"))
        remaining = staying({name: mean(values) for name, values in taus.items()})
        continued += [(fold, name, names[name]) for fold in folds for name in remaining]
    for seed in seeds:
        done = {tuple(str(row[column]) for column in CELL) for row in rows}
        rows += computation.rows(
            [
                Wanted(fold, name, overrides, seed, split)
                for fold, name, overrides in continued
                if (fold.collection, name, str(fold.number), str(seed)) not in done
            ]
        )
    return rows


def recorded(arguments: argparse.Namespace) -> list[Row]:
    """Return the newest row of each cell that is asked for.

    Raises:
        ConfigError: there is none.
    """
    rows = (row for row in read_rows(arguments.results) if row["split"] == scored(arguments))
    newest = {tuple(row[column] for column in CELL): row for row in rows}
    wanted = {collection: chosen(arguments, collection) for collection in arguments.collection}
    found = [
        row
        for (collection, experiment, fold, seed), row in newest.items()
        if experiment in wanted.get(collection, {})
        and (arguments.fold is None or int(fold) == arguments.fold)
        and (int(seed) < arguments.seeds if arguments.seed is None else int(seed) == arguments.seed)
    ]
    if not found:
        raise ConfigError(f"{arguments.results}: no row of what is asked for; without --show it is computed")
    return found


class Result(NamedTuple):
    """Figures of an experiment on the graphs of one collection, or several.

    Attributes:
        folds: number of the folds that were left out.
        seeds: (seeds,) Kendall tau, the mean over the graphs of a collection, then over collections.
        taus: Kendall tau of each graph, the mean over seeds.
        figures: means over graphs and seeds of the other figures that are known.
        cpu_seconds: mean over cells.
        valid_tau: the same.
    """

    folds: int
    seeds: np.ndarray[Any, np.dtype[np.float64]]
    taus: dict[comparison.Graph, float]
    figures: dict[str, float]
    cpu_seconds: float
    valid_tau: float


def results_of(
    rows: Sequence[Row], graphs: Sequence[Row]
) -> tuple[dict[str, dict[str, Result]], dict[comparison.Graph, str]]:
    """Return the results by collection and experiment, the best first, and the family of each graph."""
    of_cell: dict[str, dict[str, Row]] = {}
    for graph in graphs:
        of_cell.setdefault(graph["fingerprint"], {})[graph["graph"]] = graph
    rows = [part for row in rows for part in _of_parts(row, of_cell)]
    found: dict[str, dict[str, Result]] = {}
    families: dict[comparison.Graph, str] = {}
    for collection, experiment in dict.fromkeys((row["collection"], row["experiment"]) for row in rows):
        cells = [row for row in rows if (row["collection"], row["experiment"]) == (collection, experiment)]
        folds = {str(cell["fold"]) for cell in cells}
        finished = [seed for seed, count in Counter(str(cell["seed"]) for cell in cells).items() if count == len(folds)]
        cells = [cell for cell in cells if str(cell["seed"]) in finished]
        of_graph: dict[comparison.Graph, list[float]] = {}
        of_seed: dict[str, list[float]] = {}
        for cell in cells:
            for name, graph in of_cell.get(cell["fingerprint"], {}).items():
                if graph["kendall_tau"]:
                    families[collection, name] = graph["family"]
                    of_graph.setdefault((collection, name), []).append(float(graph["kendall_tau"]))
                    of_seed.setdefault(str(cell["seed"]), []).append(float(graph["kendall_tau"]))
        every = [graph for cell in cells for graph in of_cell.get(cell["fingerprint"], {}).values()]
        known = {figure: [float(graph[figure]) for graph in every if graph[figure]] for figure in FIGURES}
        found.setdefault(collection, {})[experiment] = Result(
            len(folds),
            np.array([mean(values) for values in of_seed.values()]),
            {graph: mean(values) for graph, values in of_graph.items()},
            {figure: mean(values) for figure, values in known.items() if values},
            mean(float(cell["cpu_seconds"]) for cell in cells),
            mean(float(cell["valid_tau"] or "nan") for cell in cells),
        )
    ordered = {place: dict(sorted(some.items(), key=lambda one: -one[1].seeds.mean())) for place, some in found.items()}
    return ordered, families


def _of_parts(row: Row, of_cell: dict[str, dict[str, Row]]) -> list[Row]:
    """Return a row, or for joined collections a row for each, whose graphs are added to `of_cell`."""
    if row["collection"] != JOINED:
        return [row]
    parts = []
    for part in PARTS:
        prefix, key = f"{Collection.parse(part).model_name}.", f"{row['fingerprint']} {part}"
        own = {name: graph for name, graph in of_cell.get(row["fingerprint"], {}).items() if name.startswith(prefix)}
        of_cell[key] = {name.removeprefix(prefix): graph for name, graph in own.items()}
        named = {"collection": part, "experiment": f"{row['experiment']}, joined", "fingerprint": key}
        parts.append({**row, **named, "valid_tau": "nan"})  # that of all parts
    return parts


def averaged(found: Mapping[str, Mapping[str, Result]]) -> dict[str, dict[str, Result]]:
    """Return the means over all collections of layouts, of the experiments that were continued in each."""
    places = {place: continued(some) for place, some in found.items() if place.startswith("layout")}
    if len(places) < 2:
        return {}
    common = set.intersection(*(set(some) for some in places.values()))
    means = {}
    for name in common:
        each = [some[name] for some in places.values()]
        count = min(len(one.seeds) for one in each)
        means[name] = Result(
            sum(one.folds for one in each),
            np.mean([one.seeds[:count] for one in each], axis=0),
            {graph: tau for one in each for graph, tau in one.taus.items()},
            {key: mean(one.figures[key] for one in each) for key in FIGURES if all(key in one.figures for one in each)},
            mean(one.cpu_seconds for one in each),
            mean(one.valid_tau for one in each),
        )
    ordered = dict(sorted(means.items(), key=lambda one: -one[1].seeds.mean()))
    return {f"mean of {len(places)} collections of layouts": ordered}


def continued(found: Mapping[str, Result]) -> dict[str, Result]:
    """Return the experiments with as many folds as any."""
    most = max(one.folds for one in found.values())
    return {name: one for name, one in found.items() if one.folds == most}


def table(place: str, found: Mapping[str, Result]) -> str:
    """Return the figures of experiments as Markdown, with those that left, or are not finished, at the end."""
    lines = [
        f"| {place} | folds | seeds | tau | slowdown@1, % | @5, % | valid tau | CPU s |",
        "|---" * 8 + "|",
    ]
    whole = continued(found)
    most = max(one.folds for one in found.values())
    for name, one in [*whole.items(), *((name, one) for name, one in found.items() if name not in whole)]:
        spread = f" ± {one.seeds.std(ddof=1):.3f}" if len(one.seeds) > 1 else ""
        slowdowns = [f"{100 * one.figures[key]:.1f}" if key in one.figures else "" for key in FIGURES[2:4]]
        cells = [name, f"{one.folds} of {most}", str(len(one.seeds)), f"{one.seeds.mean():.3f}{spread}", *slowdowns]
        lines.append(f"| {' | '.join([*cells, f'{one.valid_tau:.3f}', f'{one.cpu_seconds:.0f}'])} |")
    ceilings = [one.figures["noise_ceiling"] for one in whole.values() if "noise_ceiling" in one.figures]
    return "\n".join([*lines, *([f"\nNoise ceiling: {mean(ceilings):.3f}"] if ceilings else [])])


def looks(results: Path, collections: Sequence[str]) -> str:
    """Return how many models were scored on each fold left out, by any experiment of the results."""
    rows = (row for row in read_rows(results) if row["split"] == "test")
    counts = Counter(
        (place, int(row["fold"]))
        for row in rows
        for place in (PARTS if row["collection"] == JOINED else [row["collection"]])
    )
    lines = ["Models scored on each fold left out, of all rows of the results:"]
    for collection in collections:
        numbers = [f"{counts[place]} on {place[1]}" for place in sorted(counts) if place[0] == collection]
        lines.append(f"- {collection}: {', '.join(numbers)}")
    return "\n".join(lines)


def report(rows: Sequence[Row], arguments: argparse.Namespace) -> str:
    """Return the tables of figures and verdicts, and draw them where asked."""
    found, families = results_of(rows, read_rows(graphs_file(arguments.results)))
    parts, drawn = list[str](), {}
    for place, some in {**found, **averaged(found)}.items():
        whole = continued(some)
        pairs = comparison.compare({name: one.taus for name, one in whole.items()}, families)
        parts += [table(place, some), comparison.verdicts([*whole], pairs)]
        drawn[place] = [*whole], {name: one.seeds for name, one in whole.items()}, pairs
    if arguments.plot:
        comparison.draw(drawn, arguments.plot)
    return "\n\n".join([*parts, looks(arguments.results, [*found])])


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--collection", nargs="+", default=[*COLLECTIONS], metavar="PATH",
        help=f"some of {', '.join(COLLECTIONS)} (default: all)",
    )  # fmt: skip
    experiments.add_training_options(parser, RESULTS, "100, 60 on tile/cpu, 10 on tile/xla", "quality")
    parser.add_argument("--fold", type=min_int(0), metavar="N", help="only this fold, of every experiment")
    parser.add_argument("--seed", type=min_int(0), metavar="N", help="only this seed")
    parser.add_argument("--hours", type=positive, default=15.0, metavar="H", help="CPU hours at most (default: 15)")
    parser.add_argument("--ablation", action="store_true", help="the best experiment without one ingredient each")
    parser.add_argument("--try", dest="tried", nargs="+", action="append", default=[], metavar="KEY=VALUE",
                        help="the first experiment with these overrides; may be repeated")  # fmt: skip
    parser.add_argument("--plot", type=output_file, metavar="SVG", help="draw what is shown")
    arguments = parser.parse_args()
    arguments.collection = [*experiments.fitting(arguments.collection, arguments.experiment)]
    expect("--collection", arguments.collection, COLLECTIONS)
    if not arguments.show and "tile/xla" in arguments.collection and not (shared_dir() / KERNELS).is_file():
        print(f"skipped tile/xla: there is no {shared_dir() / KERNELS}", file=sys.stderr)
        arguments.collection.remove("tile/xla")
    rows = recorded(arguments) if arguments.show else computed(arguments, arguments.work.resolve())
    print(report(rows, arguments))


if __name__ == "__main__":
    run_command(main)
