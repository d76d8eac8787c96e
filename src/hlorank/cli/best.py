"""`hlorank best`: the best training of each collection, of all that MLflow knows."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote, urlparse

from hlorank.cli.table import print_table
from hlorank.data.collection import Collection
from hlorank.files import DataError

_COLUMNS = ("collection", "method", "seed", "valid_kendall_tau", "features", "run_id", "model")


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "best",
        help="show the best trained model of each collection",
        description="Shows the finished training with the best validation Kendall tau of each collection, from the "
        "MLflow store that MLFLOW_TRACKING_URI names, else from mlflow.db in the current folder. Of a collection whose "
        "features changed there is one for each of their fingerprints, as figures compare on the same features only.",
    )
    parser.add_argument("--collection", metavar="ADDRESS", help="only this one, such as layout:cpu:random")
    parser.add_argument("--sweep", metavar="NAME", help="only trainings of the sweep of this name")
    parser.add_argument("--json", action="store_true", help="print a JSON list with one object a row")
    parser.set_defaults(run=run)


def _client() -> Any:
    """MLflow's client of the store.

    Raises:
        DataError: there is no store.
    """
    import mlflow

    from hlorank.tracking import existing_store

    return mlflow.MlflowClient(existing_store())


def _finished(client: Any, experiments: Sequence[str], collection: str | None) -> Iterator[Any]:
    """Finished trainings, the best first."""
    from hlorank.tracking import BEST_TAU

    wanted = "attributes.status = 'FINISHED'" + (f" and tags.collection = '{collection}'" if collection else "")
    token = None
    while token != "":
        page = client.search_runs(
            experiments, wanted, max_results=1000, page_token=token, order_by=[f"metrics.`{BEST_TAU}` DESC"]
        )
        yield from (run for run in page if BEST_TAU in run.data.metrics)
        token = page.token or ""


def _model(run: Any) -> str:
    """The folder of a run's model on this machine, or its address."""
    uri = urlparse(run.info.artifact_uri)
    return f"{unquote(uri.path)}/model" if uri.scheme in {"", "file"} else f"runs:/{run.info.run_id}/model"


def best_runs(collection: str | None = None, sweep: str | None = None) -> list[dict[str, Any]]:
    """The finished training with the best validation Kendall tau of each collection and fingerprint of features.

    Args:
        collection: only this one.
        sweep: only trainings of the sweep of this name, those included that it took over from before.

    Returns:
        By the collection's name, then the best first: collection, method, seed, valid_kendall_tau, features
        (their fingerprint), run_id, model (folder or address).

    Raises:
        DataError: there is no store, no such sweep, or no such training.
        ConfigError: the collection's address, or the sweep's name, can't be one.
    """
    from hlorank.sweeps.jobs import adopted
    from hlorank.sweeps.sweep import check_name, find_sweep
    from hlorank.tracking import BEST_TAU, FEATURES

    if collection is not None:
        collection = str(Collection.parse(collection))
    client = _client()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    parent, others = None, set[str]()
    if sweep is not None:
        check_name(sweep)
        found = find_sweep(client, experiments, sweep)
        if found is None:
            raise DataError("sweep", f"a sweep named {sweep!r}", "none", file=client.tracking_uri)
        parent = found.info.run_id
        others = set(adopted(client, parent))
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for run in _finished(client, experiments, collection):
        tags = run.data.tags
        if parent is not None and tags.get("mlflow.parentRunId") != parent and run.info.run_id not in others:
            continue
        features = tags.get(FEATURES, tags["data"])
        best.setdefault(
            (tags["collection"], features),
            {
                "collection": tags["collection"],
                "method": tags["method"],
                "seed": int(run.data.params["seed"]),
                "valid_kendall_tau": run.data.metrics[BEST_TAU],
                "features": features,
                "run_id": run.info.run_id,
                "model": _model(run),
            },
        )
    if not best:
        of = "".join([f" of {collection}" if collection else "", f" in the sweep {sweep!r}" if sweep else ""])
        raise DataError("runs", f"a finished training{of}, validated", "none", file=client.tracking_uri)
    return sorted(best.values(), key=lambda one: str(one["collection"]))  # of one, the best are first already


def _print_table(found: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE)
    for column in _COLUMNS:
        table.add_column(column.replace("valid_kendall_tau", "valid tau"), overflow="fold")
    for one in found:
        table.add_row(*(f"{one[key]:.4f}" if isinstance(one[key], float) else str(one[key]) for key in _COLUMNS))
    print_table(table)


def run(arguments: argparse.Namespace) -> int:
    """Prints a table, or JSON."""
    found = best_runs(arguments.collection, arguments.sweep)
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        _print_table(found)
    return 0
