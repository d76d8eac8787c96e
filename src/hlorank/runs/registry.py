"""Model registry: one registered model for each collection, with packages as versions, and its champion."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hlorank.data.collection import Collection
from hlorank.files import RUN, SPEC, DataError, fingerprint, one_process, read_json, recorded_run, redact_credentials
from hlorank.metrics import BEST_TAU
from hlorank.models.scoring import load_trained
from hlorank.models.serialization import Spec
from hlorank.ranking.ranker import MEMORY_BYTES
from hlorank.runs.find import model_folder, run_of_model
from hlorank.runs.pyfunc import log_package
from hlorank.runs.store import CODE, EVALUATION, FEATURES, MODEL, database_file, existing_store

CHAMPION = "champion"
MEASURES = {"evaluate": "evaluate/valid/kendall_tau", "training": BEST_TAU}
"""Metrics of a run that measure its model on valid: the stage evaluate uses all configurations, training a
sample. Two models are compared by the first of these metrics that both have from the same data and code."""


@dataclass(frozen=True)
class Registration:
    """Result of the registration of one model: `reason` says why it is the champion now, or is not.

    `run_id` may be a run that only evaluated the model; `valid_tau` has the Kendall tau by each of its `MEASURES`.
    """

    model: str
    version: int
    new: bool
    run_id: str
    method: str
    seed: str
    data: str
    valid_tau: dict[str, float]
    champion: bool
    reason: str


def register(reference: str | Path, move: bool = False) -> Registration:
    """Register a trained model as a version of its collection's model, if it is new, and choose the champion.

    The alias `champion` moves to the first version, to one that is better on the same valid data, or where `move` says
    so. One process of a machine registers in a store at a time.
    """
    from mlflow import MlflowClient

    existing_store()
    folder = model_folder(reference)
    spec = load_trained(folder, MEMORY_BYTES).spec  # refuses a damaged model now, not when it is served
    client = MlflowClient()
    name = Collection.parse(spec.collection).model_name
    with one_process(_lock(), "a registration"):
        digest = str(read_json(folder / SPEC)["spec_sha256"])
        versions = client.search_model_versions(f"name='{name}' and tags.{MODEL}='{digest}'")
        version = versions[0] if versions else _new_version(client, folder, spec, name, digest)
        run, number = client.get_run(version.run_id), int(version.version)
        taus = _taus(run)
        for measure, tau in taus.items():  # also for an old version, which may have been evaluated since
            client.set_model_version_tag(name, version.version, f"valid_tau.{measure}", f"{tau:.6f}")
        champion = client.get_registered_model(name).aliases.get(CHAMPION)
        if champion is not None and int(champion) == number:
            is_champion, reason = True, "it is the champion already"
        elif move:
            is_champion, reason = True, "moved as asked"
        elif not taus:
            is_champion, reason = False, "it has no Kendall tau on valid: run the stage evaluate"
        elif champion is None:
            is_champion, reason = True, "it is the first"
        else:
            best = client.get_run(client.get_model_version(name, str(champion)).run_id)
            is_champion, reason = _better(run, best, f"the champion, version {champion}")
        if is_champion:
            client.set_registered_model_alias(name, CHAMPION, version.version)
    facts = version.run_id, spec.method, version.tags["seed"], spec.data
    return Registration(name, number, not versions, *facts, taus, is_champion, reason)


def _lock() -> Path:
    """Return the file of the lock of the registry: next to a database file, else in this user's temporary files."""
    from mlflow import get_registry_uri

    uri: str = get_registry_uri()
    if (path := database_file(uri)) is not None:
        return path.with_name(f"{path.name}.register.lock")
    return Path(tempfile.gettempdir(), f"hlorank-{os.getuid()}-{fingerprint(uri)}.lock")


def _new_version(client: Any, folder: Path, spec: Spec, name: str, digest: str) -> Any:
    """Package a model and register it as a version, of the run that trained it, or else of one that evaluated it."""
    from mlflow import get_tracking_uri
    from mlflow.utils.logging_utils import disable_logging, enable_logging

    recorded = recorded_run(folder)
    if (run := run_of_model(recorded, digest)) is None:
        store, place = redact_credentials(get_tracking_uri()), recorded.get("tracking_uri", "that of its training")
        remedy = f"set MLFLOW_TRACKING_URI to {place}, or run the stage evaluate, which opens a run"
        expected, found = f"a run in the MLflow store {store}", recorded.get("run_id", "none")
        raise DataError("run_id", expected, f"{found}; {remedy}", file=folder / RUN)
    run_id, seed = run.info.run_id, run.data.params.get("seed", "")
    described = {"collection": spec.collection, "method": spec.method, "data": spec.data, "seed": seed}
    disable_logging()  # MLflow prints lines about the version to standard error, whatever its level of logging
    try:
        info = log_package(folder, spec, run_id, registered_model_name=name, tags={MODEL: digest, **described})
    finally:
        enable_logging()
    if not client.get_registered_model(name).description:  # it may be the user's
        client.update_registered_model(name, f"Rankers of {spec.collection}. The best one on valid is its {CHAMPION}.")
    taus = [f", valid tau {tau:.4f} by {measure}" for measure, tau in _taus(run).items()]
    text = f"{spec.method}, seed {seed}, trained in run {run_id}{''.join(taus)}"
    return client.update_model_version(name, str(info.registered_model_version), text)


def _taus(run: Any) -> dict[str, float]:
    """Return the Kendall tau on valid by each of `MEASURES` that a run has."""
    metrics = run.data.metrics
    return {measure: metrics[metric] for measure, metric in MEASURES.items() if metric in metrics}


def _keys(run: Any, measure: str) -> set[tuple[str, ...]]:
    """Return the data, settings and code of a measure, in one or two ways: runs that share a key are comparable."""
    tags = run.data.tags
    if measure == "training":
        return {(tags["data"], run.data.params.get("trainer.validation_configs", ""), tags.get(CODE, ""))}
    # The result of evaluate does not depend on segments, which change the tag `data`.
    return {(tags[name], tags.get(EVALUATION, "")) for name in ("data", FEATURES) if name in tags}


def _better(run: Any, champion: Any, than: str) -> tuple[bool, str]:
    """Return whether the model of a run is better than that of the champion's, and the reason."""
    taus, champions = _taus(run), _taus(champion)
    for measure in MEASURES:
        if measure in taus and measure in champions and _keys(run, measure) & _keys(champion, measure):
            tau, best = taus[measure], champions[measure]
            return tau > best, f"valid tau {tau:.4f} by {measure}, {best:.4f} of {than}"
    why = (
        "no Kendall tau of both is of the same data, code and settings; evaluate both, train again, or give --champion"
    )
    return False, f"trained on data {run.data.tags['data']}, {than}, on {champion.data.tags['data']}: {why}"
