r"""Kendall tau of experiments by cross-validation over model families, and which of each two is ahead.

A cell is an experiment on a collection with one fold left out and one seed. It is trained on the other folds but one;
its epoch, and the settings of boosted trees, are chosen on that one, the fold before; its figures are those of the fold
left out. The folds of data/sample and data/models are those of their split files, 15 and 18 families in five folds; the
generated graphs of layout/synthetic/random are each a family. In tile/xla one of 15 kernels is left out at a time, and
three others choose; a kernel is a family there.

Boosted trees (gradient_boosting, lightgbm, xgboost) have their settings chosen in each fold by the search of
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
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import comparison  # type: ignore[import-not-found] # same folder
import experiments  # type: ignore[import-not-found] # as above
import numpy as np
from command_line import Parser, expect, output_file, positive  # type: ignore[import-not-found] # as above
from command_line import run as run_command
from rows import append_row, read_rows  # type: ignore[import-not-found] # as above

from hlorank.config import ConfigError, Split
from hlorank.data.collection import Collection, graph_files, measured_family
from hlorank.data.splits import SplitFile, family, make_folds
from hlorank.files import fingerprint, read_json, shared_dir, write_json
from hlorank.terminal import min_int

RESULTS = Path(__file__).parent / "results" / "folds.csv"
COLLECTIONS = {
    "layout/cpu/random": 100.0,
    "layout/cpu/default": 100.0,
    "layout/cpu/models": 100.0,
    "layout/synthetic/random": 100.0,
    "tile/cpu": 60.0,
    "tile/xla": 10.0,
}
"""CPU time of a training on each collection, in seconds."""
KERNELS = Path("data/official/op_tuning_data.pb")
FOLDS = 5
TREES = ("gradient_boosting", "lightgbm", "xgboost")
RULES = ("linear_ranking", "analytical", "default_configuration", "random")
STAYING, MARGIN = 5, 0.05
"""Networks that stay after the first folds, at most, and how far behind the best valid tau they may be."""
FIRST = {"tile/xla": 3}
"""Number of the first folds, where it is not 1."""
_VARIANT = "featurize.prune_hops"
CELL = ("collection", "experiment", "fold", "seed")
COLUMNS = (*CELL, "split", "fingerprint", "parameters", "steps", "cpu_seconds", "valid_tau", "settings")
FIGURES = ("kendall_tau", "opa", "slowdown_1", "slowdown_5", "noise_ceiling")
GRAPH_COLUMNS = ("fingerprint", "graph", "family", *FIGURES)

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Fold:
    """One way to divide the graphs of a collection.

    Attributes:
        collection: path of the collection.
        number: number of the fold, from 0.
        root: the tree of the graphs.
        splits: the split of each graph; test is the fold left out.
        families: the family of each graph.
    """

    collection: str
    number: int
    root: Path
    splits: Mapping[str, Split]
    families: Mapping[str, str]

    def data(self, work: Path) -> tuple[str, ...]:
        """Write the fold's split file, unless it is there, and return the overrides with which fetch reads it."""
        path = work / self.collection / f"fold-{self.number}.json"
        numbers = {"valid": 0, "test": 1, "train": 2}
        fold_of = {graph: numbers[split] for graph, split in self.splits.items()}
        content = SplitFile(folds=3, collections={str(Collection.parse(self.collection)): fold_of})
        write_json(path, content.model_dump(exclude_unset=True))
        values = {"root": self.root, "split_file": path, "folds": 3, "fold": 0}
        return "data=local", *(f"data.local.{key}={value}" for key, value in values.items())


class Wanted(NamedTuple):
    """A cell that is asked for; `split` is the one that is scored, test or valid."""

    fold: Fold
    experiment: str
    overrides: tuple[str, ...]
    seed: int
    split: Split


class Search(NamedTuple):
    """Search for the settings of boosted trees on the valid of a fold.

    Attributes:
        wanted: a cell of the fold.
        variants: the folder of the data of each override of features, to choose among.
        data: overrides for the origin.
        file: JSON file of the result.
    """

    wanted: Wanted
    variants: Mapping[str, Path]
    data: tuple[str, ...]
    file: Path

    @property
    def label(self) -> str:
        """What it is, for messages."""
        return f"{self.wanted.fold.collection} {self.wanted.experiment} {self.wanted.fold.number} settings"


class Cell(NamedTuple):
    """A row of the results, to be computed.

    Attributes:
        training: its training, with the key of the row.
        wanted: what is asked for.
        settings: what the search chose, as overrides.
        search_seconds: CPU time of the search.
    """

    training: experiments.Training
    wanted: Wanted
    settings: tuple[str, ...]
    search_seconds: float

    @property
    def label(self) -> str:
        """What it is, for messages."""
        training = self.training
        return f"{training.collection} {training.experiment} {self.wanted.fold.number} {training.seed}"


Task = TypeVar("Task", Search, Cell)


def folds_of(collection: str, work: Path) -> list[Fold]:
    """Return the folds of a collection; what is generated or converted is written into `work` first."""
    if collection == "tile/xla":
        return _one_kernel_each(collection, work / "kernels")
    address = Collection.parse(collection)
    if address.source == "synthetic":
        root = work / "generated"
        experiments.fetch(experiments.composed(collection, (f"paths.raw={root}",), 0, work))
        names = [file.stem for split in ("train", "valid", "test") for file in graph_files(root, address, split)]
        families = {name: name for name in names}
        number_of = make_folds(families, FOLDS)
    else:
        root = experiments.ROOT / "data" / ("models" if address.search == "models" else "sample")
        files = graph_files(root, address, None)
        families = {file.stem: measured_family(file) or family(file.stem) for file in files}
        number_of = SplitFile(**read_json(root / "split.json")).families

    def split_of(name: str, left_out: int) -> Split:
        splits: dict[int, Split] = {left_out: "test", (left_out - 1) % FOLDS: "valid"}
        return splits.get(number_of[name], "train")

    return [
        Fold(collection, number, root, {graph: split_of(name, number) for graph, name in families.items()}, families)
        for number in range(FOLDS)
    ]


def _one_kernel_each(collection: str, root: Path) -> list[Fold]:
    """Leave out each kernel in turn, and choose on the three of another of five groups."""
    from hlorank.hlo.convert import convert

    names = [path.stem for path in convert(shared_dir() / KERNELS, root / collection, "tile")]
    families = {name: name for name in names}
    group_of = make_folds(families, FOLDS)
    folds = []
    for number, left_out in enumerate(sorted(names, key=lambda name: (group_of[name], name))):
        valid = (group_of[left_out] - 1) % FOLDS
        splits: dict[str, Split] = {name: "valid" if group_of[name] == valid else "train" for name in names}
        folds.append(Fold(collection, number, root, {**splits, left_out: "test"}, families))
    return folds


@cache
def prepared(fold: Fold, overrides: tuple[str, ...], work: Path) -> tuple[Path, str]:
    """Featurize and partition the graphs of a fold; return the folder, and the fingerprint of the data."""
    data, place = fold.data(work), work / fold.collection / f"fold-{fold.number}"
    config = experiments.composed(fold.collection, overrides, 0, place, data)
    place /= fingerprint(config.model_dump(mode="json", include={"featurize", "partition"}))[:12]
    place.mkdir(parents=True, exist_ok=True)
    config = experiments.composed(fold.collection, overrides, 0, place, data)
    experiments.fetch(config)
    return place, fingerprint([experiments.featurize(config), dict(fold.splits)])


def search_of(wanted: Wanted, work: Path) -> Search | None:
    """Return the search that a cell needs, after its data are prepared; None for a cell that needs none."""
    if wanted.experiment not in TREES:
        return None
    layouts = wanted.fold.collection.startswith("layout")
    hops = ("null", "1") if layouts else ("null",)
    variants = {f"{_VARIANT}={one}": prepared(wanted.fold, (f"{_VARIANT}={one}",), work) for one in hops}
    key = fingerprint([wanted.experiment, {name: data for name, (_, data) in variants.items()}, _search_settings()])
    places = {name: place for name, (place, _) in variants.items()}
    return Search(wanted, places, wanted.fold.data(work), work / "searches" / f"{key}.json")


@cache
def _search_settings() -> dict[str, Any]:
    from omegaconf import OmegaConf

    settings = OmegaConf.load(experiments.ROOT / "conf/hparams_search/trees.yaml").hydra.sweeper
    found: dict[str, Any] = OmegaConf.to_container(settings)  # type: ignore[assignment] # a mapping
    return found


def run_search(search: Search) -> float:
    """Choose settings by validation Kendall tau, write them, and return the CPU time."""
    import logging

    import optuna
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from hlorank.sweeps.search import Search as OptunaSearch
    from hlorank.sweeps.search import SearchSettings
    from hlorank.sweeps.space import split
    from hlorank.training.baselines.train_baseline import RECIPES, train_baseline

    logging.disable(logging.WARNING)  # the cells repeat what is to be known about the graphs
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    settings = dict(_search_settings())
    read = {f"baseline.{key}" for key in RECIPES[search.wanted.experiment].settings}
    texts = [f"{key}={value}" for key, value in settings.pop("params").items() if key in read]
    texts.append(f"{_VARIANT}={','.join(name.removeprefix(f'{_VARIANT}=') for name in search.variants)}")
    fixed, space = split(OverridesParser.create().parse_overrides([f"method={search.wanted.experiment}", *texts]))

    def launch(jobs: list[list[str]]) -> list[float | None]:
        return [train_baseline(*_of_trial(search, job)) for job in jobs]

    study = optuna.create_study(direction="maximize")
    OptunaSearch(study, SearchSettings(**settings), fixed, space).run(launch)
    best = [*fixed, *(f"{key}={value}" for key, value in study.best_params.items())]
    write_json(search.file, {"settings": best, "cpu_seconds": time.process_time()})
    return time.process_time()


def _of_trial(search: Search, job: Sequence[str]) -> tuple[Any, Path]:
    """Return the configuration and the model folder of a trial."""
    (place,) = (search.variants[one] for one in job if one in search.variants)
    config = experiments.composed(search.wanted.fold.collection, job, 0, place, search.data)  # one search for all seeds
    return config, place / f"trial-{search.wanted.experiment}"


def cell_of(wanted: Wanted, search: Search | None, work: Path) -> Cell:
    """Return a cell after its data are prepared and its search is done."""
    found: dict[str, Any] = {"settings": (), "cpu_seconds": 0.0}
    if search is not None:
        found |= read_json(search.file)
    fold, settings = wanted.fold, tuple(found["settings"])
    overrides = (*(settings or wanted.overrides), f"evaluate.splits=[{wanted.split}]")
    place, data = prepared(fold, overrides, work)
    config = experiments.composed(fold.collection, overrides, wanted.seed, place, fold.data(work))
    key = experiments.training_key(config, data, ignored=("data", "compute"))
    training = experiments.Training(
        fold.collection, wanted.experiment, overrides, wanted.seed, place, key, fold.data(work)
    )
    return Cell(training, wanted, settings, found["cpu_seconds"])


def run_cell(cell: Cell) -> tuple[Row, list[Row], float]:
    """Train and evaluate; return the cell's row, one for each graph of the fold, and the CPU time of all."""
    found, graphs = experiments.run(cell.training)
    row = {
        **{column: found[column] for column in COLUMNS if column in found},
        "fold": cell.wanted.fold.number,
        "split": cell.wanted.split,
        "cpu_seconds": round(found["cpu_seconds"] + cell.search_seconds, 1),
        "valid_tau": found.get("valid/kendall_tau"),
        "settings": " ".join(cell.settings),
    }
    families = cell.wanted.fold.families
    named = [
        {"family": families[graph["graph"]], **{key: graph[key] for key in GRAPH_COLUMNS if key in graph}}
        for graph in graphs
    ]
    return row, named, time.process_time()


def graphs_file(results: Path) -> Path:
    """Return the file of the figures of graphs that belongs to a file of results."""
    return results.with_name(f"{results.stem}_graphs.csv")


class Computation:
    """Searches and cells in processes of their own, kept as soon as they are done.

    Args:
        arguments: results, jobs, hours.
        work: the working folder.
    """

    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self.arguments, self.work, self._spent = arguments, work, 0.0
        output_file(arguments.results)
        self.known: dict[str, Row] = {row["fingerprint"]: row for row in read_rows(arguments.results)}

    def rows(self, wanted: Sequence[Wanted]) -> list[Row]:
        """Return the rows of cells, in order; those that the time did not suffice for are missing."""
        searches = {one: search_of(one, self.work) for one in wanted}
        missing = {search.file: search for search in searches.values() if search and not search.file.exists()}
        for search, seconds in self._run(run_search, list(missing.values())):
            self._spent += seconds
            self._say(f"{search.label}: chosen")
        ready = [one for one, search in searches.items() if search is None or search.file.exists()]
        cells = [cell_of(one, searches[one], self.work) for one in ready]
        for cell, (row, graphs, seconds) in self._run(
            run_cell, [cell for cell in cells if cell.training.key not in self.known]
        ):
            self._spent += seconds
            for graph in graphs:  # before the row, without which they do not count
                append_row(graphs_file(self.arguments.results), GRAPH_COLUMNS, graph)
            append_row(self.arguments.results, COLUMNS, row)
            self.known[row["fingerprint"]] = row
            self._say(f"{cell.label}: valid {row['valid_tau']}")
        return [self.known[cell.training.key] for cell in cells if cell.training.key in self.known]

    def _run(self, function: Callable[[Task], Any], tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        # A process for each, so that none inherits the memory of another.
        with ProcessPoolExecutor(self.arguments.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
            futures = {pool.submit(function, task): task for task in tasks}
            for future in as_completed(futures):
                if future.cancelled():
                    continue
                if (
                    error := future.exception()
                ) is not None:  # the others are worth having; the same command tries again
                    self._say(f"{futures[future].label}: failed: {error!r}")
                else:
                    yield futures[future], future.result()
                if self._spent + time.process_time() > self.arguments.hours * 3600:
                    for other in futures:
                        other.cancel()

    def _say(self, text: str) -> None:
        hours = (self._spent + time.process_time()) / 3600
        print(f"[{hours:.2f} CPU h] {text}", file=sys.stderr, flush=True)


def chosen(arguments: argparse.Namespace, collection: str) -> dict[str, tuple[str, ...]]:
    """Return the overrides of each experiment that is asked for on a collection, by its name."""
    names = experiments.fitting([collection], None)[collection]
    if arguments.experiment:
        names = [name for name in arguments.experiment if name in names]
    seconds = arguments.cpu_seconds or COLLECTIONS[collection]
    budget = experiments.budget_of(seconds)
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
        return computation.rows(wanted)
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
    counts = Counter((row["collection"], int(row["fold"])) for row in rows)
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
