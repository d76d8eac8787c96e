"""`hlorank best`: show the best training of each collection in the MLflow store."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote, urlparse

from hlorank.data.collection import Collection
from hlorank.files import DataError
from hlorank.terminal import Column, add_table_options, print_table

_COLUMNS = {
    "collection": Column("collection"),
    "method": Column("method", 1),
    "experiment": Column("experiment", 2),
    "seed": Column("seed", 3, number=True),
    "name": Column("name", 4),
    "valid_kendall_tau": Column("valid\ntau", number=True),
    "run_id": Column("run_id"),
    "features": Column("features", 5),
    "model": Column("model", 6),
}


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "best",
        help="show the best trained model of each collection",
        description="Shows the finished training with the best validation Kendall tau of each collection, from the "
        "MLflow store that MLFLOW_TRACKING_URI names, else from mlflow.db in the current folder. A collection whose "
        "features changed has one row for each fingerprint of its features, as scores are comparable only on the same "
        "features.",
    )
    parser.add_argument("--collection", metavar="ADDRESS", help="only this collection, such as layout:cpu:random")
    parser.add_argument("--sweep", metavar="NAME", help="only trainings of the sweep with this name")
    add_table_options(parser, "row")
    parser.set_defaults(run=run)


def _client() -> Any:
    """Return a client of the MLflow store.

    Raises:
        DataError: the store does not exist.
    """
    import mlflow

    from hlorank.runs.store import existing_store

    return mlflow.MlflowClient(existing_store())


def _finished(client: Any, experiments: Sequence[str], collection: str | None) -> Iterator[Any]:
    """Return the finished trainings by descending validation Kendall tau."""
    from hlorank.metrics import BEST_TAU

    conditions = "attributes.status = 'FINISHED'" + (f" and tags.collection = '{collection}'" if collection else "")
    token = None
    while token != "":
        page = client.search_runs(
            experiments, conditions, max_results=1000, page_token=token, order_by=[f"metrics.`{BEST_TAU}` DESC"]
        )
        yield from (run for run in page if BEST_TAU in run.data.metrics)
        token = page.token or ""


def _model(run: Any) -> str:
    """Return the folder of the model of a run if it is on this machine, else its MLflow address."""
    uri = urlparse(run.info.artifact_uri)
    return f"{unquote(uri.path)}/model" if uri.scheme in {"", "file"} else f"runs:/{run.info.run_id}/model"


def best_runs(collection: str | None = None, sweep: str | None = None) -> list[dict[str, Any]]:
    """Return the finished training with the best validation Kendall tau of each collection and features.

    Args:
        collection: only this collection.
        sweep: only trainings of the sweep with this name, with the earlier trainings that it adopted.

    Returns:
        Objects in the order of the collections' names, the best first, with collection, method, experiment (None
        without one), seed, name (that of the run, with the settings that were changed), valid_kendall_tau, features
        (their fingerprint), run_id, and model (folder or address).

    Raises:
        DataError: the store, the sweep or a finished training does not exist.
        ConfigError: `collection` is not an address.
    """
    from hlorank.metrics import BEST_TAU, EXPERIMENT
    from hlorank.runs.store import FEATURES
    from hlorank.runs.sweeps import adopted, find_sweep

    if collection is not None:
        collection = str(Collection.parse(collection))
    client = _client()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    parent, others = None, set[str]()
    if sweep is not None:
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
                "experiment": tags.get(EXPERIMENT),
                "seed": int(run.data.params["seed"]),
                "name": run.info.run_name,
                "valid_kendall_tau": run.data.metrics[BEST_TAU],
                "features": features,
                "run_id": run.info.run_id,
                "model": _model(run),
            },
        )
    if not best:
        of = "".join([f" of {collection}" if collection else "", f" in the sweep {sweep!r}" if sweep else ""])
        raise DataError(
            "runs", f"a finished training{of}, validated", "none; make repro trains", file=client.tracking_uri
        )
    return sorted(best.values(), key=lambda found: str(found["collection"]))  # stable: keeps the best first


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def run(arguments: argparse.Namespace) -> int:
    """Print a table with one row for each training, or JSON."""
    found = best_runs(arguments.collection, arguments.sweep)
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        rows = [[_cell(training[key]) for key in _COLUMNS] for training in found]
        print_table([*_COLUMNS.values()], rows, arguments.wide)
    return 0
