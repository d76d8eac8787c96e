"""`hlorank register`: register trained models, and choose the champion of each collection."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hlorank.config import ConfigError
from hlorank.terminal import Column, add_table_options, print_table

if TYPE_CHECKING:
    from hlorank.runs.registry import Registration

_COLUMNS = (
    Column("model"),
    Column("version", number=True),
    Column("champion"),
    Column("method", 1),
    Column("seed", 4, number=True),
    Column("valid tau\n(evaluate)", 2, number=True),
    Column("valid tau\n(training)", 3, number=True),
    Column("data", 5),
)


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "register",
        help="register trained models in MLflow and choose the champion",
        description=(
            "Registers trained models as versions of their collection's model, such as layout.cpu.random, each with "
            "everything that serving needs. The alias champion moves to a version that is better than the champion on "
            "the same valid data. A model that is registered already gets no second version. The registry is that of "
            "MLFLOW_TRACKING_URI, by default mlflow.db in the current folder."
        ),
    )
    parser.add_argument(
        "model",
        nargs="+",
        metavar="MODEL",
        help="a model folder, an MLflow run id, or a registered version, as models:/NAME/VERSION",
    )
    parser.add_argument("--champion", action="store_true", help="make the model the champion in any case")
    add_table_options(parser, "model")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Register models, and print a table with one row for each, or JSON.

    Raises:
        ConfigError: --champion is given with several models.
        DataError: a model cannot be registered; the models before it are registered.
    """
    if arguments.champion and len(arguments.model) > 1:
        raise ConfigError(f"--champion: expected one model, found {len(arguments.model)}")
    from hlorank.runs.registry import MEASURES, register

    registrations = _final([register(model, arguments.champion) for model in arguments.model])
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(registration) for registration in registrations], indent=2) + "\n")
    else:
        rows: list[Sequence[str] | str] = []
        for one in registrations:
            taus = [f"{one.valid_tau[measure]:.4f}" if measure in one.valid_tau else "" for measure in MEASURES]
            champion = "yes" if one.champion else "no"
            rows.append([one.model, str(one.version), champion, one.method, one.seed, *taus, one.data])
            rows.append(f"  {'' if one.new else 'registered before; '}{one.reason}")
        print_table(_COLUMNS, rows, arguments.wide)
    return 0


def _final(registrations: Sequence[Registration]) -> list[Registration]:
    """Return registrations as they are after the last one: a champion may have lost its alias to a later model."""
    champions = {one.model: one.version for one in registrations if one.champion}
    return [
        replace(one, champion=False, reason=f"{one.reason}; then version {champions[one.model]} became the champion")
        if one.champion and one.version != champions[one.model]
        else one
        for one in registrations
    ]
