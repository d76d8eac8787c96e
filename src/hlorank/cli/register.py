"""`hlorank register`: puts trained models into the registry, and chooses each collection's champion."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hlorank.cli.table import print_table
from hlorank.config import ConfigError

if TYPE_CHECKING:
    from hlorank.serving.registry import Registration


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "register",
        help="put trained models into the MLflow registry and choose the champion",
        description=(
            "Registers trained models as versions of their collection's model, such as layout.cpu.random, each with "
            "all that serving needs. The alias champion moves to a version that is better on valid than the champion "
            "and was trained on the same data. A model that is registered already gets no second version. The registry "
            "is that of MLFLOW_TRACKING_URI, by default mlflow.db in the current folder."
        ),
    )
    parser.add_argument(
        "model",
        nargs="+",
        metavar="MODEL",
        help="a model folder, an MLflow run id, or a version that is registered, as models:/NAME/VERSION",
    )
    parser.add_argument("--champion", action="store_true", help="make the model the champion in any case")
    parser.add_argument("--json", action="store_true", help="print a JSON list with one object a model")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Registers, and prints a table with one row a model, or JSON.

    Raises:
        ConfigError: wrong usage.
        DataError: a model cannot be registered; those before it are.
    """
    if arguments.champion and len(arguments.model) > 1:
        raise ConfigError(f"--champion: expected one model, found {len(arguments.model)}")
    from hlorank.serving.registry import register

    registrations = [register(model, arguments.champion) for model in arguments.model]
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(one) for one in registrations], indent=2) + "\n")
    else:
        _print_table(registrations)
    return 0


def _print_table(registrations: list[Registration]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE)
    for title in ("model", "version", "", "method", "seed", "data", "valid tau", "champion"):
        table.add_column(title, justify="right" if title in ("version", "seed") else "left", overflow="fold")
    for one in registrations:
        taus = "\n".join(f"{tau:.4f} ({measure})" for measure, tau in one.valid_tau.items())
        champion = f"{'yes' if one.champion else 'no'}: {one.reason}"
        state = "new" if one.new else "registered before"
        table.add_row(one.model, str(one.version), state, one.method, one.seed, one.data, taus, champion)
    print_table(table)
