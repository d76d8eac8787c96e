"""Training of a cost model, or of an ensemble of them: from a featurized collection to a model folder."""

from __future__ import annotations

import logging
import math
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast

import lightning
import numpy as np
import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy

from hlorank.compute import find_device
from hlorank.config import Config, ConfigError, TrackingConfig, TrainerConfig, find
from hlorank.config.extension_point import plugin_digests
from hlorank.data.collection import Collection
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import LOCKS, RUN, code_digest, fingerprint, flatten, one_process
from hlorank.models.cost_model import CostModel
from hlorank.models.encoder import PiecewiseLinear
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.serialization import ModelSpec, input_sizes, save_model
from hlorank.runs.search import current_trial
from hlorank.runs.store import ENDED_BY, Pruned
from hlorank.training.auto_method import choose_method
from hlorank.training.blend import check_baselines, join_baselines
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
from hlorank.training.gst.aggregator import make_aggregator
from hlorank.training.gst.head_finetuning import HeadData, HeadModule
from hlorank.training.losses import make_loss
from hlorank.training.methods import AUTO, METHODS, Method
from hlorank.training.mlflow_run import keep_record, take_finished, training_run
from hlorank.training.ranking_module import RankingModule
from hlorank.training.ranks import Ranks
from hlorank.training.run_description import data_settings
from hlorank.training.sampling import tile_sample
from hlorank.training.step_data import StepData
from hlorank.training.step_memory import bound_memory
from hlorank.training.step_plans import StepPlanner
from hlorank.version import __version__

log = logging.getLogger(__name__)
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # otherwise it logs hardware and advertisements

# Trainings that agree in these and in their data are the same training, and one continues where another stopped.
_IDENTITY = {"collection", "method", "seed", "model", "segments", "loss", "trainer", "ensemble"}


def train(config: Config, output: Path, ranks: Ranks | None = None) -> float | None:
    """Train one method on one collection; continue an interrupted training of the same configuration and data.

    Writes the model folder (weights.safetensors, spec.json, history.csv, run.json) and one MLflow run. The members of
    an ensemble are trained one after the other; those that were complete before an interruption are not trained again.
    In a sweep, a training that an earlier run has finished is not repeated, and nothing is written.

    Several ranks train one model together, or the members of an ensemble if there are at least as many. Rank 0 writes
    all files but the checkpoints of members that other ranks train.

    Args:
        config: the whole configuration.
        output: the model folder.
        ranks: the ranks of the training; all of them call this. By default this process trains alone.

    Returns:
        The best validation Kendall tau, its mean over the members of an ensemble; None if no graph can be validated,
        and on ranks other than 0.

    Raises:
        DataError: features or segments are missing or do not belong together, or a checkpoint in this training's
            folder is one of another training.
        ConfigError: a name in the configuration does not exist, or values do not fit the data or each other.
    """
    import mlflow

    # Open the data.
    torch.set_num_threads(config.trainer.thread_count)
    ranks = ranks or Ranks(device=find_device(config.trainer.accelerator))
    with ranks.agreed():
        if config.method == AUTO:
            config = config.model_copy(update={"method": choose_method(config)})
        method = find(METHODS, "method", config.method)
        graphs, spec = _open_collection(config, method)
        names = graphs.store.trainable("train")

        # Build all models and their data before anything is written, so that a mistake leaves nothing behind.
        raw = Path(config.paths.raw) / Collection.parse(config.collection).path / "train"
        members = make_members(config.ensemble, config.seed, names, raw)
        _check_precision(config.trainer, ranks.device)
        check_baselines(config)
        # Members need no exchange of gradients. A search decides after each epoch of one whether the next is worth it.
        dealt = len(members) >= ranks.count > 1 and config.sweep.trial is None
        within = ranks.alone if dealt else ranks
        trainings = [_MemberTraining(config, method, member, graphs, spec, within) for member in members]
        models = [training.model for training in trainings]

    # Identify the training: what it has finished or saved before is found by this key.
    settings = config.model_dump(mode="json", include=_identity(config))
    del settings["trainer"]["devices"]  # steps and weights are the same for any number of ranks
    key = fingerprint([settings, spec.data, __version__, spec.plugins])
    identity = {
        "partition": spec.partition_fingerprint,
        **flatten(settings),
        "data": spec.data,
        "version": __version__,
        **spec.plugins,
    }
    ranks.check_equal({**_versions(), **identity})
    state = Path(config.paths.state) / "training" / key
    locks = Path(config.paths.state) / LOCKS
    record: AbstractContextManager[tuple[float | None, str]] = nullcontext((None, ""))
    if ranks.first:
        tags = (spec, _parameters(config, method, graphs, ranks), key, graphs.store)
        record = _record(config.tracking, state, locks, output, *tags)
    with record as opened:
        ranks.wait()  # rank 0 may have waited for another process with this training
        tau, run_id = ranks.broadcast(opened)
        if tau is not None:
            return tau
        with ranks.agreed():
            _check_shared(state)
        if ranks.first:
            mlflow.log_metric("train/parameters", sum(p.numel() for model in models for p in model.parameters()))

        # Train the members one after the other.
        trial = current_trial(config.sweep) if ranks.first else None
        results = dict[int, _Result]()
        if not names:
            log.warning("%s: no graph to train on; the model keeps its initial weights", spec.collection)
            trainings.clear()
        for number in range(len(trainings)):
            training = trainings.pop(0)  # so that its graphs are closed at its end
            if dealt and number % ranks.count != ranks.number:
                continue
            if len(members) > 1:
                log.info("member %d of %d", number + 1, len(members))
            reports = [] if trial is None else [TrialReport(trial, number * config.trainer.max_epochs)]
            own = CheckpointIdentity({**identity, "member": number})
            logger = MemberLogger(config.tracking, run_id, f"member_{number}" if len(members) > 1 else "")
            results[number] = training.run(state / str(number), own, logger, reports)
        if dealt:
            _collect(ranks, models, results)
        if not ranks.first:
            return None

        # Save the models, and the record of the training.
        if any(result.out_of_budget for result in results.values()):
            mlflow.set_tag(ENDED_BY, "trainer.cpu_seconds")
        taus = [result.best for _, result in sorted(results.items()) if result.best is not None]
        best = float(np.mean(taus)) if taus else None
        fitted: dict[str, Any] = {"steps": sum(result.steps for result in results.values())}
        arrays = None
        if config.ensemble.baselines and names:
            arrays, weights, best = join_baselines(config, graphs, models)
            fitted |= {"baselines": config.ensemble.baselines, "weights": weights}
        save_model(output, models, spec.model_copy(update=fitted), arrays)
        history = [{"member": number, **row} for number, result in sorted(results.items()) for row in result.history]
        seconds = sum(result.seconds for result in results.values())
        keep_record(config.tracking, run_id, history, output, best, seconds)
        return best


@contextmanager
def _record(
    config: TrackingConfig,
    state: Path,
    locks: Path,
    output: Path,
    spec: ModelSpec,
    parameters: Mapping[str, Any],
    key: str,
    store: FeatureStore,
) -> Iterator[tuple[float | None, str]]:
    """Open the MLflow run of a training, which no other process runs meanwhile; arguments as of `training_run`.

    The checkpoints in `state` are removed at the end, and if the training is pruned.

    Yields:
        The validation Kendall tau of a run that has finished this training before, None to train; and the run's id.
    """
    with one_process(locks / key, "this training") as waited:
        if (tau := take_finished(config, key, output, locks, waited=waited)) is not None:
            yield tau, ""
            return
        opened = training_run(config, spec, parameters, key, store, locks, state / RUN)
        with _removed_if_pruned(state), opened as run_id:
            yield None, run_id
        shutil.rmtree(state)


def _identity(config: Config) -> set[str]:
    """Return the sections that the training reads."""
    return _IDENTITY | ({"baseline"} if config.ensemble.baselines else set())


def _versions() -> dict[str, str]:
    """Return the versions that ranks must agree in."""
    return {"hlorank": __version__, "code of hlorank": code_digest("hlorank")[:16], "torch": torch.__version__}


def _check_shared(state: Path) -> None:
    """Check that this rank sees the files of rank 0, which a resumed training reads.

    Raises:
        ConfigError: it does not.
    """
    if not (state / RUN).exists():
        raise ConfigError(
            f"paths.state: {state.parents[1]} lacks the files of rank 0; name a folder that all ranks share"
        )


def _collect(ranks: Ranks, models: Sequence[CostModel], results: dict[int, _Result]) -> None:
    """Bring the models that other ranks have trained, and their results, to rank 0."""
    own = {number: (result, models[number].state_dict()) for number, result in results.items()}
    ranks.wait()  # some ranks train one member more, and members differ in their epochs
    for part in ranks.gather(own):
        for number, (result, weights) in part.items():
            results[number] = result
            models[number].load_state_dict(weights)


def _parameters(config: Config, method: Method, graphs: GraphLoader, ranks: Ranks) -> dict[str, Any]:
    """Return the settings that the training reads, and those that its graphs were made with, by section."""
    whole_graph = graphs.options is None
    trainer = config.trainer.model_copy(update={"devices": ranks.count})  # also if torchrun or srun has started them
    config = config.model_copy(update={"trainer": trainer})
    return {
        **config.model_dump(mode="json", include=_identity(config) - {"segments"}),
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
        partition=graphs.options or config.partition,
        partition_fingerprint=graphs.partition,
        data=graphs.fingerprint,
        steps=0,
        features=graphs.store.spec,
        members=config.ensemble.seeds * config.ensemble.folds,
        plugins=plugin_digests(config.plugin_modules),
    )
    return graphs, spec


def _check_precision(trainer: TrainerConfig, device: torch.device) -> None:
    if trainer.precision == "16-mixed" and device.type == "cpu":
        raise ConfigError("trainer.precision=16-mixed: needs CUDA; set it to bf16-mixed or 32-true on a CPU")


class _Result(NamedTuple):
    """Result of the training of one member.

    Attributes:
        steps: optimizer steps taken, without those of head finetuning.
        best: the best validation Kendall tau, None without validation.
        history: a row for each epoch.
        seconds: time that the epochs took.
        out_of_budget: True if `trainer.cpu_seconds` ended it.
    """

    steps: int
    best: float | None
    history: list[dict[str, float | None]]
    seconds: float
    out_of_budget: bool


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
        ranks: Ranks,
    ) -> None:
        segments, trainer = config.segments, config.trainer
        if trainer.cpu_seconds is not None:
            trainer = trainer.model_copy(update={"cpu_seconds": trainer.cpu_seconds / spec.members})
        self._settings, self._finetune_epochs = trainer, segments.finetune_epochs
        self._finetune_head = method.finetune_head and not spec.whole_graph
        self._memory_bytes = config.evaluate.memory_bytes
        self._ranks = ranks
        with torch.random.fork_rng(devices=[]):  # the global generator is left as it was
            torch.manual_seed(member.seed)
            self.model = CostModel(config.model, input_sizes(spec.features), segments.aggregation)
        if config.model.opcode_init:
            self.model.encoder.start_opcodes(spec.features.opcode_embedding)
        if isinstance(encoding := self.model.encoder.configuration[0], PiecewiseLinear):
            encoding.start(tile_sample(graphs.store))
        self.model.check_halo(graphs.options is not None and graphs.options.halo > 0)
        self._data = StepData(
            graphs, StepPlanner.of(self.model, method), trainer, segments, member.seed, member.held_out, ranks
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
        self._module = RankingModule(
            aggregator, self._loss, trainer, member.seed, self._memory_bytes, per_row, ranks, self._data.owners
        )

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
        if not self._data.valid:
            log.warning("no graph of valid can be ranked: the epoch with the smallest training loss is the best")
        history = EpochHistory()
        budget = self._module.budget
        callbacks = [history, *reports, budget]
        steps, best = self._fit(self._module, self._data, state, identity, logger, callbacks, self._ranks)
        if self._finetune_head:
            self.model.to(self._ranks.device)  # Lightning leaves it on the CPU
            aggregates = HeadData(self.model, self._data, self._memory_bytes)
            if self._ranks.first:
                head = HeadModule(self.model, self._loss, self._settings, self._finetune_epochs)
                _, best = self._fit(head, aggregates, state / "head", identity, logger, [], self._ranks.alone)
        return _Result(steps, best, history.rows, history.seconds, budget.ended)

    def _fit(
        self,
        module: RankingModule | HeadModule,
        data: StepData | HeadData,
        folder: Path,
        identity: CheckpointIdentity,
        logger: MemberLogger,
        callbacks: Sequence[Callback],
        ranks: Ranks,
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
            average = StepAveraging(settings.averaging, settings.averaging_decay, module.progress, ranks.device)
            callbacks.append(average)
        if shows_progress := ranks.first and sys.stderr.isatty():
            callbacks.append(ProgressBar())
        trainer = lightning.Trainer(
            max_epochs=module.epochs,
            **_placement(ranks),
            use_distributed_sampler=False,  # `data` deals out its items itself
            precision=settings.precision,
            accumulate_grad_batches=settings.graphs_per_step,
            gradient_clip_val=settings.gradient_clip,
            reload_dataloaders_every_n_epochs=1,  # an epoch's steps are drawn from its number
            num_sanity_val_steps=0,
            limit_val_batches=1.0 if validated else 0,  # Lightning warns of empty data
            logger=logger if ranks.first else False,
            callbacks=callbacks,
            enable_progress_bar=shows_progress,
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


def _placement(ranks: Ranks) -> dict[str, Any]:
    """Return the arguments of Lightning's trainer for the devices of a training."""
    device = ranks.device
    plugins: list[Any] = [AtomicCheckpointIO()]
    if ranks.control is None:
        rank_zero_only.rank = 0  # type: ignore[attr-defined]  # this process logs and saves, also if it is one of several ranks
        return {
            "accelerator": device.type,
            "devices": 1 if device.index is None else [device.index],
            "plugins": plugins,
        }
    return {
        "accelerator": device.type,
        "devices": ranks.per_machine,
        "num_nodes": ranks.count // ranks.per_machine,
        # In a step without a graph of its own, a rank uses the head alone.
        "strategy": DDPStrategy(find_unused_parameters=True),
        "plugins": [*plugins, TorchElasticEnvironment()],
    }


@contextmanager
def _without_routine_warnings() -> Iterator[None]:
    """Silence warnings of Lightning that no user of hlorank can act on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers")  # steps are rows of memory maps
        warnings.filterwarnings("ignore", "Checkpoint directory .* exists")  # as in every resumed training
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")  # Lightning 2.6 with PyTorch 2.13
        warnings.filterwarnings(
            "ignore", ".*sync_dist=True"
        )  # values that are logged without are the same on all ranks
        warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")
        yield


@contextmanager
def _removed_if_pruned(state: Path) -> Iterator[None]:
    """Remove the checkpoints of a training that a search prunes."""
    try:
        yield
    except Pruned:
        shutil.rmtree(state)
        raise
