"""`hlorank register`: register trained models, and choose the champion of each collection."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hlorank.cli.terminal import make_table, print_table
from hlorank.config import ConfigError

if TYPE_CHECKING:
    from hlorank.serving.model_registry import Registration


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
    parser.add_argument("--json", action="store_true", help="print a JSON list with one object for each model")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Register models, and print a table with one row for each, or JSON.

    Raises:
        ConfigError: --champion is given with several models.
        DataError: a model cannot be registered; the models before it are registered.
    """
    if arguments.champion and len(arguments.model) > 1:
        raise ConfigError(f"--champion: expected one model, found {len(arguments.model)}")
    from hlorank.serving.model_registry import register

    registrations = [register(model, arguments.champion) for model in arguments.model]
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(registration) for registration in registrations], indent=2) + "\n")
    else:
        _print_table(registrations)
    return 0


def _print_table(registrations: list[Registration]) -> None:
    table = make_table([])
    for title in ("model", "version", "", "method", "seed", "data", "valid tau", "champion"):
        table.add_column(title, justify="right" if title in ("version", "seed") else "left", overflow="fold")
    for version in registrations:
        taus = "\n".join(f"{tau:.4f} ({measure})" for measure, tau in version.valid_tau.items())
        champion = f"{'yes' if version.champion else 'no'}: {version.reason}"
        state = "new" if version.new else "registered before"
        table.add_row(
            version.model, str(version.version), state, version.method, version.seed, version.data, taus, champion
        )
    print_table(table)
