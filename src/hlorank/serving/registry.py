"""The registry: one registered model a collection, whose versions are packages, and its champion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hlorank.data.collection import Collection
from hlorank.evaluation.evaluate_model import MODEL
from hlorank.files import RUN, SPEC, DataError, read_json
from hlorank.models.scorer import load_scorer
from hlorank.models.serialization import Spec
from hlorank.serving.locate import model_folder
from hlorank.serving.package import log_package
from hlorank.serving.ranker import MEMORY_BYTES
from hlorank.tracking import BEST_TAU, FEATURES, existing_store

CHAMPION = "champion"
MEASURES = {"evaluate": "evaluate/valid/kendall_tau", "training": BEST_TAU}
"""Metrics of a run that say how good its model is on valid: of the stage evaluate over all configurations, and of the
epoch that was kept, over those that training validates on. They are compared each with its like, the first before."""


class _Valid(NamedTuple):
    """A Kendall tau on valid, and fingerprints of the data that it is of: those that share one can be compared."""

    tau: float
    data: frozenset[str]


@dataclass(frozen=True)
class Registration:
    """What came of registering one model.

    Attributes:
        model: name of the registered model, such as layout.cpu.random.
        version: of the registered model.
        new: the version was made now; otherwise it was registered before.
        run_id: the run that trained it, or one that evaluated it where the store has no other.
        method: how it was trained.
        seed: as the run's parameter says, empty without one.
        data: fingerprint of the data that it was trained on.
        valid_tau: Kendall tau on valid by each of `MEASURES` that the run has.
        champion: whether the alias points to this version now.
        reason: why it does or does not.
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
    """Registers a trained model as a version of its collection's model, unless it is one, and chooses the champion.

    The alias `champion` moves to the version if there is no champion yet, or if it is better on valid than the champion
    and was trained on the same data. The store is the one that MLflow is set up for, as `model_folder` says.

    Args:
        reference: what `model_folder` takes; a version that is registered, too.
        move: move the alias to the version in any case.

    Raises:
        DataError: there is no store, no such model, it is damaged, was never trained, or its run is not in the store.
    """
    from mlflow import MlflowClient

    existing_store()
    folder = model_folder(reference)
    spec = load_scorer(folder, MEMORY_BYTES).spec  # a damaged model is refused here, not when it is served
    if spec.steps == 0:
        raise DataError("steps", "a trained model", "one that found nothing to train on", file=folder / SPEC)
    client = MlflowClient()
    name = Collection.parse(spec.collection).model_name
    digest = str(read_json(folder / SPEC)["spec_sha256"])
    version = _version_of(client, name, digest)
    new = version is None
    if version is None:
        version = _new_version(client, folder, spec, name, digest)
    run_id, number = version.run_id, int(version.version)
    valid = _valid(client, run_id)
    taus = {measure: one.tau for measure, one in valid.items()}
    for measure, tau in taus.items():  # anew, as evaluate may have come after the version
        client.set_model_version_tag(name, version.version, f"valid_tau.{measure}", f"{tau:.6f}")
    champion = _champion(client, name)
    if champion is not None and champion.version == version.version:
        is_champion, reason = True, "it is the champion already"
    elif move:
        is_champion, reason = True, "moved as asked"
    else:
        is_champion, reason = _better(client, spec, valid, champion)
    if is_champion:
        client.set_registered_model_alias(name, CHAMPION, version.version)
    seed = version.tags["seed"]
    return Registration(name, number, new, run_id, spec.method, seed, spec.data, taus, is_champion, reason)


def _version_of(client: Any, name: str, digest: str) -> Any:
    """The version that holds a model, by the digest of its specification; None without one."""
    found = client.search_model_versions(f"name='{name}' and tags.{MODEL}='{digest}'")
    return found[0] if found else None


def _run_of(client: Any, folder: Path, digest: str) -> str:
    """The run that a model folder names; where the store has none such, one that evaluated the model.

    Raises:
        DataError: the store has neither.
    """
    from mlflow import get_tracking_uri
    from mlflow.exceptions import MlflowException

    recorded = read_json(folder / RUN)
    try:
        client.get_run(recorded["run_id"])
    except MlflowException:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        if found := client.search_runs(experiments, f"tags.{MODEL} = '{digest}'", max_results=1):
            return str(found[0].info.run_id)
        remedy = f"set MLFLOW_TRACKING_URI to {recorded['tracking_uri']}, or run the stage evaluate, which opens one"
        expected = f"a run in the MLflow store {get_tracking_uri()}"
        raise DataError(
            "run_id", expected, f"{recorded['run_id']}, which is not; {remedy}", file=folder / RUN
        ) from None
    return str(recorded["run_id"])


def _new_version(client: Any, folder: Path, spec: Spec, name: str, digest: str) -> Any:
    """Packages a model and registers it as a version."""
    run_id = _run_of(client, folder, digest)
    seed = client.get_run(run_id).data.params.get("seed", "")
    plain = {"collection": spec.collection, "method": spec.method, "data": spec.data, "seed": seed}
    info = log_package(folder, spec, run_id, registered_model_name=name, tags={MODEL: digest, **plain})
    return client.get_model_version(name, str(info.registered_model_version))


def _valid(client: Any, run_id: str) -> dict[str, _Valid]:
    """How good the model of a run is on valid, by those of `MEASURES` that the run has."""
    run = client.get_run(run_id).data
    # What is evaluated does not depend on segments, which the tag `data` tells apart.
    data = {"evaluate": {run.tags["data"], run.tags.get(FEATURES)}, "training": {run.tags["data"]}}
    return {
        measure: _Valid(run.metrics[metric], frozenset(data[measure] - {None}))
        for measure, metric in MEASURES.items()
        if metric in run.metrics
    }


def _champion(client: Any, name: str) -> Any:
    """The version that the alias points to; None without one."""
    version = client.get_registered_model(name).aliases.get(CHAMPION)
    return None if version is None else client.get_model_version(name, str(version))


def _better(client: Any, spec: Spec, own: dict[str, _Valid], champion: Any) -> tuple[bool, str]:
    """Whether a model takes the champion's place, and why."""
    if not own:
        return False, "it has no Kendall tau on valid: run the stage evaluate"
    if champion is None:
        return True, "it is the first"
    than, other = f"the champion, version {champion.version}", _valid(client, champion.run_id)
    for measure in MEASURES:
        if measure in own and measure in other and own[measure].data & other[measure].data:
            tau, least = own[measure].tau, other[measure].tau
            return tau > least, f"valid tau {tau:.4f} by {measure}, {least:.4f} of {than}"
    if champion.tags["data"] == spec.data:
        return False, f"nothing measured both it and {than}: run the stage evaluate for both"
    changed = f"it was trained on data {spec.data}, {than}, on {champion.tags['data']}"
    remedy = "run the stage evaluate for both; where graphs or features changed, train that anew, or give --champion"
    return False, f"{changed}, and no evaluation is of both: {remedy}"
