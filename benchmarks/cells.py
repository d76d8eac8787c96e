"""Cells of the cross-validation: the search for settings of trees, a training with its scores, and kept rows."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import experiments  # type: ignore[import-not-found] # same folder
from command_line import output_file  # type: ignore[import-not-found] # as above
from folds import Fold, prepared  # type: ignore[import-not-found] # as above
from rows import append_row, read_rows  # type: ignore[import-not-found] # as above

from hlorank.config import Split
from hlorank.files import fingerprint, read_json, write_json

TREES = ("gradient_boosting", "xgboost")
CELL = ("collection", "experiment", "fold", "seed")
COLUMNS = (*CELL, "split", "fingerprint", "parameters", "steps", "cpu_seconds", "valid_tau", "settings")
FIGURES = ("kendall_tau", "opa", "slowdown_1", "slowdown_5", "noise_ceiling")
GRAPH_COLUMNS = ("fingerprint", "graph", "family", *FIGURES)
_VARIANT = "featurize.prune_hops"

Row = dict[str, Any]


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

    from hlorank.runs.search import Search as OptunaSearch
    from hlorank.runs.search import SearchSettings, split
    from hlorank.stages.train import train
    from hlorank.training.baselines.fit_baseline import RECIPES

    logging.disable(logging.WARNING)  # the cells repeat what is to be known about the graphs
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    settings = dict(_search_settings())
    read = {f"baseline.{key}" for key in RECIPES[search.wanted.experiment].settings}
    texts = [f"{key}={value}" for key, value in settings.pop("params").items() if key in read]
    texts.append(f"{_VARIANT}={','.join(name.removeprefix(f'{_VARIANT}=') for name in search.variants)}")
    fixed, space = split(OverridesParser.create().parse_overrides([f"method={search.wanted.experiment}", *texts]))

    def launch(jobs: list[list[str]]) -> list[float | None]:
        return [train(*_of_trial(search, job)) for job in jobs]

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
    key = experiments.training_key(config, data, overrides, ignored=("data", "compute"))
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
