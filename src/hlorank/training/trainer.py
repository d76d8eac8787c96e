"""Training of a cost model, or of an ensemble of them: from a featurized collection to a model folder."""

from __future__ import annotations

import logging
import math
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from hlorank import __version__
from hlorank.config import Config, ConfigError, TrainerConfig, find
from hlorank.config.plugins import plugin_digests
from hlorank.data.collection import Collection
from hlorank.files import LOCKS, RUN, fingerprint, one_process
from hlorank.models.cost_model import CostModel
from hlorank.models.device import find_device
from hlorank.models.graph_loader import GraphLoader
from hlorank.models.serialization import ModelSpec, input_sizes, save_model
from hlorank.sweeps.trial import current_trial
from hlorank.tracking import ENDED_BY, Pruned, flatten
from hlorank.training.callbacks import (
    AtomicCheckpointIO,
    CheckpointIdentity,
    EpochHistory,
    MemberLogger,
    Patience,
    ProgressBar,
    StepAveraging,
    TrialReport,
)
from hlorank.training.ensemble import Member, make_members
from hlorank.training.gst.head_finetuning import HeadData, HeadModule
from hlorank.training.gst.methods import METHODS, Method
from hlorank.training.gst.segment_aggregator import make_aggregator
from hlorank.training.losses import make_loss
from hlorank.training.method_choice import METHOD_CHOICES
from hlorank.training.mlflow_run import keep_record, take_finished, training_run
from hlorank.training.ranking_module import RankingModule
from hlorank.training.run_description import data_settings
from hlorank.training.step_data import StepData
from hlorank.training.step_memory import bound_memory
from hlorank.training.step_plans import StepPlanner

log = logging.getLogger(__name__)
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # otherwise it logs hardware and advertisements

# Trainings that agree in these and in their data are the same training, and one continues where another stopped.
_IDENTITY = {"collection", "method", "seed", "model", "segments", "loss", "trainer", "ensemble"}


def train(config: Config, output: Path) -> float | None:
    """Train one method on one collection; continue an interrupted training of the same configuration and data.

    Writes the model folder (weights.safetensors, spec.json, history.csv, run.json) and one MLflow run. The members of
    an ensemble are trained one after the other; those that were complete before an interruption are not trained again.
    In a sweep, a training that an earlier run has finished is not repeated, and nothing is written.

    Args:
        config: the whole configuration.
        output: the model folder.

    Returns:
        The best validation Kendall tau, its mean over the members of an ensemble; None if no graph can be validated.

    Raises:
        DataError: features or segments are missing or do not belong together, or a checkpoint in this training's
            folder is one of another training.
        ConfigError: a name in the configuration does not exist, or values do not fit the data or each other.
    """
    import mlflow

    # Open the data.
    torch.set_num_threads(config.trainer.thread_count)
    if config.method in METHOD_CHOICES:
        config = config.model_copy(update={"method": METHOD_CHOICES[config.method](config)})
    method = find(METHODS, "method", config.method)
    graphs, spec = _open_collection(config, method)
    names = graphs.store.trainable("train")

    # Build all models and their data before anything is written, so that a mistake leaves nothing behind.
    raw = Path(config.paths.raw) / Collection.parse(config.collection).path / "train"
    members = make_members(config.ensemble, config.seed, names, raw)
    device = _device(config.trainer)
    trainings = [_MemberTraining(config, method, member, graphs, spec, device) for member in members]
    models = [training.model for training in trainings]

    # Identify the training: what it has finished or saved before is found by this key.
    settings = config.model_dump(mode="json", include=_IDENTITY)
    key = fingerprint([settings, spec.data, __version__, spec.plugins])
    identity = {
        "partition": spec.partition,
        **flatten(settings),
        "data": spec.data,
        "version": __version__,
        **spec.plugins,
    }
    state = Path(config.paths.state) / "training" / key
    locks = Path(config.paths.state) / LOCKS
    with one_process(locks / key, "this training") as waited:
        if (tau := take_finished(config.tracking, key, output, locks, waited=waited)) is not None:
            return tau
        parameters = _parameters(config, method, graphs)
        opened = training_run(config.tracking, spec, parameters, key, graphs.store, locks, state / RUN)
        with _removed_if_pruned(state), opened as run_id:
            mlflow.log_metric("train/parameters", sum(p.numel() for model in models for p in model.parameters()))

            # Train the members one after the other.
            trial, results = current_trial(config.sweep), list[_Result]()
            if not names:
                log.warning("%s: no graph to train on; the model keeps its initial weights", spec.collection)
                trainings.clear()
            for number in range(len(trainings)):
                training = trainings.pop(0)  # so that its graphs are closed at its end
                if len(members) > 1:
                    log.info("member %d of %d", number + 1, len(members))
                logger = MemberLogger(config.tracking, run_id, f"member_{number}" if len(members) > 1 else "")
                reports = [] if trial is None else [TrialReport(trial, number * config.trainer.max_epochs)]
                own = CheckpointIdentity({**identity, "member": number})
                results.append(training.run(state / str(number), own, logger, reports))

            # Save the models, and the record of the training.
            taus = [result.best for result in results if result.best is not None]
            best = float(np.mean(taus)) if taus else None
            save_model(output, models, spec.model_copy(update={"steps": sum(result.steps for result in results)}))
            history = [{"member": number, **row} for number, result in enumerate(results) for row in result.history]
            seconds = sum(result.seconds for result in results)
            keep_record(config.tracking, run_id, history, output, best, seconds)
        shutil.rmtree(state)
        return best


def _parameters(config: Config, method: Method, graphs: GraphLoader) -> dict[str, Any]:
    """Return the settings that the training reads, and those that its graphs were made with, by section."""
    whole_graph = graphs.options is None
    return {
        **config.model_dump(mode="json", include=_IDENTITY - {"segments"}),
        "segments": config.segments.model_dump(mode="json", include=method.segment_settings(whole_graph)),
        "evaluate": config.evaluate.model_dump(mode="json", include={"memory_bytes"}),
        **data_settings(graphs, config.featurize, config.partition),
    }


def _open_collection(config: Config, method: Method) -> tuple[GraphLoader, ModelSpec]:
    """Open the graphs, whole or cut into segments, and describe the model that is trained on them."""
    collection = Collection.parse(config.collection)
    whole_graph = method.whole_graph or collection.kind == "tile"
    graphs = GraphLoader(
        Path(config.paths.features) / collection.path,
        None if whole_graph else Path(config.paths.segments) / collection.path,
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
        plugins=plugin_digests(config.plugin_modules),
    )
    return graphs, spec


def _device(trainer: TrainerConfig) -> torch.device:
    device = find_device(trainer.accelerator)
    if trainer.precision == "16-mixed" and device.type == "cpu":
        raise ConfigError("trainer.precision=16-mixed: needs CUDA; set it to bf16-mixed or 32-true on a CPU")
    return device


class _Result(NamedTuple):
    """Result of the training of one member.

    Attributes:
        steps: optimizer steps taken, without those of head finetuning.
        best: the best validation Kendall tau, None without validation.
        history: a row for each epoch.
        seconds: time that the epochs took.
    """

    steps: int
    best: float | None
    history: list[dict[str, float | None]]
    seconds: float


class _MemberTraining:
    """The training of one model: alone, or as a member of an ensemble.

    Attributes:
        model: the cost model, with its initial weights until `run` returns.

    Raises:
        ConfigError: values of the configuration do not fit the data or each other.
    """

    def __init__(
        self,
        config: Config,
        method: Method,
        member: Member,
        graphs: GraphLoader,
        spec: ModelSpec,
        device: torch.device,
    ) -> None:
        segments, trainer = config.segments, config.trainer
        if trainer.cpu_seconds is not None:
            trainer = trainer.model_copy(update={"cpu_seconds": trainer.cpu_seconds / spec.members})
        self._settings, self._finetune_epochs = trainer, segments.finetune_epochs
        self._finetune_head = method.finetune_head and not spec.whole_graph
        self._memory_bytes = config.evaluate.memory_bytes
        self._device = device
        with torch.random.fork_rng(devices=[]):  # the global generator is left as it was
            torch.manual_seed(member.seed)
            self.model = CostModel(config.model, input_sizes(spec.features), segments.aggregation)
        if config.model.opcode_init:
            self.model.encoder.start_opcodes(spec.features.opcode_embedding)
        self.model.check_halo(graphs.options is not None and graphs.options.halo > 0)
        self._data = StepData(
            graphs, StepPlanner.of(self.model, method), trainer, segments, member.seed, member.held_out
        )
        per_row = math.nan
        if self._data.train:
            entries = graphs.store.entries("train")
            largest = max(self._data.train, key=lambda name: entries[name].nodes)
            per_row = bound_memory(self.model, self._data, largest, trainer.memory_bytes)
        aggregator = make_aggregator(self.model, method, segments, self._data.missing_plans)
        if aggregator.table is not None:
            aggregator.table.check_budget(self._data.table_entries())
        self._loss = make_loss(config.loss)
        self._module = RankingModule(aggregator, self._loss, trainer, member.seed, self._memory_bytes, per_row)

    def run(
        self, state: Path, identity: CheckpointIdentity, logger: MemberLogger, reports: Sequence[TrialReport]
    ) -> _Result:
        """Train, from the last complete epoch of an interrupted training if any; keep the weights of the best epoch.

        Args:
            state: the folder of the checkpoints.
            identity: callback that checks that a checkpoint belongs to this training.
            logger: logs metrics.
            reports: callbacks that report validations to the search, if the training belongs to one.
        """
        import mlflow

        if not self._data.valid:
            log.warning("no graph of valid can be ranked: the epoch with the smallest training loss is the best")
        history = EpochHistory()
        callbacks = [history, *reports, self._module.budget]
        steps, best = self._fit(self._module, self._data, state, identity, logger, callbacks)
        if self._module.budget.ended:
            mlflow.set_tag(ENDED_BY, "trainer.cpu_seconds")
        if self._finetune_head:
            self.model.to(self._device)  # Lightning leaves it on the CPU
            aggregates = HeadData(self.model, self._data, self._memory_bytes)
            head = HeadModule(self.model, self._loss, self._settings, self._finetune_epochs)
            _, best = self._fit(head, aggregates, state / "head", identity, logger, [])
        return _Result(steps, best, history.rows, history.seconds)

    def _fit(
        self,
        module: RankingModule | HeadModule,
        data: StepData | HeadData,
        folder: Path,
        identity: CheckpointIdentity,
        logger: MemberLogger,
        callbacks: Sequence[Callback],
    ) -> tuple[int, float | None]:
        """Train with Lightning's trainer, from the last checkpoint in the folder; load the weights of the best epoch.

        Returns:
            The optimizer steps taken, and the best validation Kendall tau.
        """
        settings, validated = self._settings, bool(data.valid)
        watched, mode = (module.tau_metric, "max") if validated else (module.loss_metric, "min")
        best = ModelCheckpoint(folder, "best", monitor=watched, mode=mode, enable_version_counter=False)
        # Not `save_last` of the other one, which saves only after epochs that are the best so far. It comes after all
        # callbacks whose state it saves.
        last = ModelCheckpoint(folder, "last", enable_version_counter=False)
        patience = Patience(watched, patience=settings.patience, mode=mode)
        callbacks = [identity, *callbacks, patience, best, last]
        if settings.averaging != "none":
            average = StepAveraging(settings.averaging, settings.averaging_decay, module.progress, self._device)
            callbacks.append(average)
        if sys.stderr.isatty():
            callbacks.append(ProgressBar())
        trainer = lightning.Trainer(
            max_epochs=module.epochs,
            accelerator=self._device.type,
            devices=1,
            precision=settings.precision,
            accumulate_grad_batches=settings.graphs_per_step,
            gradient_clip_val=settings.gradient_clip,
            reload_dataloaders_every_n_epochs=1,  # an epoch's steps are drawn from its number
            num_sanity_val_steps=0,
            limit_val_batches=1.0 if validated else 0,  # Lightning warns of empty data
            logger=logger,
            callbacks=callbacks,
            plugins=AtomicCheckpointIO(),
            enable_progress_bar=sys.stderr.isatty(),
            enable_model_summary=False,
            log_every_n_steps=settings.steps_per_epoch,
        )
        resume = folder / "last.ckpt"
        if resume.exists():
            identity.check(resume)
        with _without_routine_warnings():
            checkpoint = resume if resume.exists() else None
            try:
                trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
            except SystemExit:  # Lightning ends the process at Ctrl-C
                log.info("interrupted: the same command continues after the last complete epoch")
                raise KeyboardInterrupt from None
        weights = torch.load(best.best_model_path, weights_only=True, map_location=module.device)["state_dict"]
        module.load_state_dict(weights)
        return trainer.global_step, float(cast("torch.Tensor", best.best_model_score)) if validated else None


@contextmanager
def _without_routine_warnings() -> Iterator[None]:
    """Silence warnings of Lightning that no user of hlorank can act on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers")  # steps are rows of memory maps
        warnings.filterwarnings("ignore", "Checkpoint directory .* exists")  # as in every resumed training
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")  # Lightning 2.6 with PyTorch 2.13
        yield


@contextmanager
def _removed_if_pruned(state: Path) -> Iterator[None]:
    """Remove the checkpoints of a training that a search prunes."""
    try:
        yield
    except Pruned:
        shutil.rmtree(state)
        raise
