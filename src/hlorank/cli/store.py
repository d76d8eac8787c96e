"""`hlorank best` and `hlorank register`: the best trainings of the MLflow store, and its registered models."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hlorank.config import ConfigError
from hlorank.files import fingerprint
from hlorank.terminal import Column, add_table_options, cells, print_result

if TYPE_CHECKING:
    from hlorank.runs.registry import Registration

_TRAININGS = {
    "collection": Column("collection"),
    "method": Column("method", 1),
    "experiment": Column("experiment", 2),
    "folds": Column("folds", 3, number=True),
    "seeds": Column("seeds", 3, number=True),
    "valid_kendall_tau": Column("valid\ntau", number=True, form=".4f"),
    "standard_deviation": Column("standard\ndeviation", 4, number=True, form=".4f"),
    "features": Column("features", 5),
    "seed": Column("best\nseed", 5, number=True),
    "name": Column("name of the best", 6),
    "run_id": Column("run_id"),
    "model": Column("model", 7),
}
_SHOWN = 8  # characters of a fingerprint
_REGISTERED = {
    "model": Column("model"),
    "version": Column("version", number=True),
    "champion": Column("champion"),
    "method": Column("method", 1),
    "seed": Column("seed", 4, number=True),
    "evaluate": Column("valid tau\n(evaluate)", 2, number=True, form=".4f"),
    "training": Column("valid tau\n(training)", 3, number=True, form=".4f"),
    "data": Column("data", 5),
}


def add_best(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `hlorank best`."""
    parser = commands.add_parser(
        "best",
        help="show the settings with the best trained models of each collection",
        description="Shows the settings with the best validation Kendall tau of each collection, the mean over seeds "
        "and folds, with the run of the best of their trainings, from the MLflow store that MLFLOW_TRACKING_URI "
        "names, else from mlflow.db in the current folder. A collection has one row for each of its features, and "
        "each set of them as folds, as scores are comparable only on the same features.",
    )
    parser.add_argument("--collection", metavar="ADDRESS", help="only this collection, such as layout:cpu:random")
    parser.add_argument("--sweep", metavar="NAME", help="only trainings of the sweep with this name")
    add_table_options(parser, "row")
    parser.set_defaults(run=_best)


def _best(arguments: argparse.Namespace) -> int:
    """Print a table with one row for each training, or JSON."""
    from hlorank.runs.find import best_runs

    found = best_runs(arguments.collection, arguments.sweep)
    columns, folds = dict(_TRAININGS), [row["features"].split(", ") for row in found]
    if len({row["collection"] for row in found}) < len(found):  # the features tell rows apart
        columns["features"] = replace(columns["features"], rank=0)
    names = [one[0] if len(one) == 1 else fingerprint(one) for one in folds]
    rows = [{**row, "features": name[:_SHOWN]} for row, name in zip(found, names, strict=True)]
    print_result(arguments, found, [*columns.values()], [cells(columns, row) for row in rows])
    return 0


def add_register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `hlorank register`."""
    parser = commands.add_parser(
        "register",
        help="register trained models in MLflow and choose the champion",
        description="Registers trained models as versions of their collection's model, such as layout.cpu.random, "
        "each with everything that serving needs. The alias champion moves to a version that is better than the "
        "champion on the same valid data. A model that is registered already gets no second version. The registry is "
        "that of MLFLOW_TRACKING_URI, by default mlflow.db in the current folder.",
    )
    parser.add_argument(
        "model",
        nargs="+",
        metavar="MODEL",
        help="a model folder, an MLflow run id, or a registered version, as models:/NAME/VERSION",
    )
    parser.add_argument("--champion", action="store_true", help="make the model the champion in any case")
    add_table_options(parser, "model")
    parser.set_defaults(run=_register)


def _register(arguments: argparse.Namespace) -> int:
    """Register models up to the first that cannot be registered, and print a row or a JSON object for each."""
    if arguments.champion and len(arguments.model) > 1:
        raise ConfigError(f"--champion: expected one model, found {len(arguments.model)}")
    from hlorank.runs.registry import register

    done: list[Registration] = []
    try:
        done.extend(register(model, arguments.champion) for model in arguments.model)
    finally:  # also of the models before one that cannot be registered
        rows: list[Sequence[str] | str] = []
        for model in (registrations := _final(done)):
            shown = asdict(model) | model.valid_tau | {"champion": "yes" if model.champion else "no"}
            rows += [cells(_REGISTERED, shown), f"  {'' if model.new else 'registered before; '}{model.reason}"]
        if done:
            print_result(arguments, [*map(asdict, registrations)], [*_REGISTERED.values()], rows)
    return 0


def _final(registrations: Sequence[Registration]) -> list[Registration]:
    """Return registrations as they are after the last one: a champion may have lost its alias to a later model."""
    champions = {version.model: version.version for version in registrations if version.champion}
    return [
        replace(earlier, champion=False, reason=f"{earlier.reason}; then version {latest} became the champion")
        if earlier.champion and earlier.version != (latest := champions[earlier.model])
        else earlier
        for earlier in registrations
    ]
