"""One training: from a featurized and partitioned collection to a model folder and an MLflow run."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hlorank import __version__
from hlorank.config import Config, ConfigError
from hlorank.data.collection import Collection
from hlorank.files import RUN, fingerprint, read_json, write_json
from hlorank.models.graph_loader import GraphLoader
from hlorank.models.serialization import ModelSpec, save_model
from hlorank.sweeps.trial import current_trial
from hlorank.tracking import Pruned, flatten
from hlorank.training.callbacks import Origin, TrialReport
from hlorank.training.ensemble import make_members
from hlorank.training.fit import MemberLogger
from hlorank.training.gst.methods import method_named
from hlorank.training.member import MemberTraining, Result, count_parameters
from hlorank.training.mlflow_run import alone, keep_record, take_finished, training_run
from hlorank.training.ranking_module import VALID_TAU

log = logging.getLogger(__name__)
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # it tells what hardware there is, and advertises

# A training that differs in none of these, nor in its data, is the same training and may be resumed.
_IDENTITY = {"collection", "method", "seed", "model", "segments", "loss", "trainer", "ensemble"}


def train(config: Config, output: Path) -> float | None:
    """Trains one method on one collection; an interrupted training of the same configuration and data goes on.

    Writes the model folder (weights.safetensors, spec.json, history.csv, run.json) and one MLflow run. The members of
    an ensemble are trained one after the other; those that were complete before an interruption stay as they are. In a
    sweep, a training that a run has finished before is not repeated, and writes nothing.

    Args:
        config: the whole configuration.
        output: the model folder.

    Returns:
        The best validation Kendall tau, its mean over the members of an ensemble; None where no graph could be
        validated.

    Raises:
        DataError: features or segments are missing, or do not belong together; or a checkpoint lies where this training
            keeps its own, and is of another one.
        ConfigError: a name in the configuration does not exist, a number is too small, or what is chosen does not go
            together.
    """
    device = _device(config.trainer.accelerator)
    torch.set_num_threads(config.trainer.threads)
    collection = Collection.parse(config.collection)
    method = method_named(config.method)
    whole_graph = method.whole_graph or collection.kind == "tile"
    graphs = GraphLoader(
        Path(config.paths.features) / collection.path,
        None if whole_graph else Path(config.paths.segments) / collection.path,
        device,
    )
    spec = ModelSpec(
        version=__version__,
        collection=str(collection),
        method=config.method,
        model=config.model,
        aggregation=config.segments.aggregation,
        whole_graph=whole_graph,
        partition=graphs.partition,
        cut=graphs.options or config.partition,
        data=graphs.fingerprint,
        steps=0,
        features=graphs.store.spec,
        members=config.ensemble.seeds * config.ensemble.folds,
    )
    members = make_members(config, graphs.store.trainable("train"))
    trainings = [MemberTraining(member, graphs, spec) for member in members]
    identity = config.model_dump(mode="json", include=_IDENTITY)
    key = fingerprint([identity, spec.data, __version__])
    origin = {"partition": spec.partition, **flatten(identity), "data": spec.data, "version": __version__}
    with alone(config, key):
        if (tau := take_finished(config, key)) is not None:
            return tau
        return _train_members(config, spec, trainings, key, origin, graphs.store.fingerprint, output)


def _train_members(
    config: Config,
    spec: ModelSpec,
    trainings: list[MemberTraining],
    key: str,
    origin: Mapping[str, Any],
    features: str,
    output: Path,
) -> float | None:
    """Trains and records; `key` is the fingerprint of `origin`, which tells the training apart, `features` of those."""
    import mlflow

    state = Path(config.paths.state) / "training" / key
    earlier = read_json(state / RUN)["run_id"] if (state / RUN).exists() else None
    trained = bool(trainings[0].data.train)
    models, results = [training.model for training in trainings], list[Result]()
    trial = current_trial(config)
    with _removed_if_pruned(state), training_run(config, spec, key, features, trained, earlier) as run_id:
        write_json(state / RUN, {"run_id": run_id})
        mlflow.log_metric("train/parameters", sum(map(count_parameters, models)))
        for number in range(spec.members if trained else 0):
            training = trainings.pop(0)  # what it keeps of its graphs goes with it
            name = ""
            if spec.members > 1:
                name = f"member_{number}"
                log.info("member %d of %d", number + 1, spec.members)
            member_origin = Origin({**origin, "member": number})
            logger = MemberLogger(config, run_id, name)
            reports = [] if trial is None else [TrialReport(trial, number * config.trainer.max_epochs)]
            results.append(training.run(state / str(number), member_origin, logger, reports))
        if not trained:
            log.warning("%s: nothing is left to train on; the model keeps its initial weights", spec.collection)
        taus = [result.best for result in results if result.best is not None]
        best = float(np.mean(taus)) if taus else None
        if spec.members > 1 and best is not None:
            mlflow.log_metric(VALID_TAU, best)
        save_model(output, models, spec.model_copy(update={"steps": sum(result.steps for result in results)}))
        history = [{"member": number, **row} for number, result in enumerate(results) for row in result.history]
        keep_record(config, run_id, history, output, best, sum(result.seconds for result in results))
    shutil.rmtree(state)
    return best


@contextmanager
def _removed_if_pruned(state: Path) -> Iterator[None]:
    """Leaves nothing to resume of a training that a search gives up."""
    try:
        yield
    except Pruned:
        shutil.rmtree(state)
        raise


def _device(accelerator: str) -> torch.device:
    available = torch.cuda.is_available()
    if accelerator == "cuda" and not available:
        raise ConfigError("trainer.accelerator=cuda: PyTorch finds no CUDA device; set it to auto or cpu")
    return torch.device("cuda" if accelerator == "cuda" or (accelerator == "auto" and available) else "cpu")
