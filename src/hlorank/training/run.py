"""One training: from a featurized and partitioned collection to a model folder and an MLflow run."""

from __future__ import annotations

import logging
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import MLFlowLogger

from hlorank import __version__
from hlorank.collection import Collection
from hlorank.config import Config, ConfigError, check_least, to_plain
from hlorank.io import fingerprint, read_json, write_json
from hlorank.models.cost_model import CostModel
from hlorank.models.folder import ModelSpec, input_sizes, save_model
from hlorank.models.open import GraphOpener
from hlorank.tracking import flatten, tracking_uri
from hlorank.training.callbacks import EpochHistory, Origin, Patience
from hlorank.training.data import StepData
from hlorank.training.finetune import HEAD_LOSS, HEAD_TAU, HeadData, HeadModule
from hlorank.training.methods import method_named
from hlorank.training.module import TRAIN_LOSS, VALID_TAU, RankingModule
from hlorank.training.record import RUN, keep_record, training_run

log = logging.getLogger(__name__)
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # it tells what hardware there is, and advertises

# A training that differs in none of these, nor in its data, is the same training and may be resumed.
_IDENTITY = ("collection", "method", "seed", "model", "segments", "loss", "trainer")
_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
_LEAST = {
    "seed": 0,
    "segments.sampled": 1,
    "segments.redraw_epochs": 1,
    "segments.finetune_epochs": 1,
    "trainer.max_epochs": 1,
    "trainer.steps_per_epoch": 1,
    "trainer.graphs_per_step": 1,
    "trainer.configs_per_step": 2,
    "trainer.validation_configs": 2,
    "trainer.patience": 1,
    "trainer.threads": 1,
}


def train(config: Config, output: Path) -> float | None:
    """Trains one method on one collection; an interrupted training of the same configuration and data goes on.

    Writes the model folder (weights.safetensors, spec.json, history.csv, run.json) and one MLflow run.

    Args:
        config: the whole configuration.
        output: the model folder.

    Returns:
        The best validation Kendall tau; None where no graph could be validated.

    Raises:
        DataError: features or segments are missing, or do not belong together; or a checkpoint lies where this training
            keeps its own, and is of another one.
        ConfigError: a name in the configuration does not exist, a number is too small, or what is chosen does not go
            together.
    """
    _check(config)
    device = _device(config.trainer.accelerator)
    torch.set_num_threads(config.trainer.threads)
    collection = Collection.parse(config.collection)
    method = method_named(config.method)
    whole_graph = method.whole_graph or collection.kind == "tile"
    graphs = GraphOpener(
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
    )
    data = StepData(graphs, config)
    with _seeded(config.seed):
        model = CostModel(config.model, input_sizes(spec.features), config.segments.aggregation)
    if config.model.opcode_init:
        model.encoder.start_opcodes(spec.features.opcode_embedding)
    model.check_halo(graphs.options is not None and graphs.options.halo > 0)
    module = RankingModule(model, config)
    if module.table is not None and (entries := data.table_entries()):
        module.table.check_budget(entries)

    identity = {name: value for name, value in to_plain(config).items() if name in _IDENTITY}
    origin = Origin({"partition": spec.partition, **flatten(identity), "data": spec.data, "version": __version__})
    state = Path(config.paths.state) / "training" / fingerprint([identity, spec.data, __version__])
    earlier = read_json(state / RUN)["run_id"] if (state / RUN).exists() else None
    with training_run(config, spec, bool(data.train), earlier) as run_id:
        write_json(state / RUN, {"run_id": run_id})
        history = EpochHistory()
        steps, best = 0, None
        if data.train:
            if not data.valid:
                log.warning("no graph of valid can be ranked: the epoch with the smallest training loss is the best")
            fit = partial(_fit, config=config, device=device, origin=origin, run_id=run_id)
            monitor = (TRAIN_LOSS, VALID_TAU if data.valid else None)
            steps, best = fit(module, data, config.trainer.max_epochs, monitor, [history], state=state)
            if method.finetune_head and not whole_graph:
                head, monitor = HeadModule(model, config), (HEAD_LOSS, HEAD_TAU if data.valid else None)
                aggregates = HeadData(model, data, config)
                _, best = fit(head, aggregates, config.segments.finetune_epochs, monitor, [], state=state / "head")
        else:
            log.warning("%s: nothing is left to train on; the model keeps its initial weights", collection)
        save_model(output, model, replace(spec, steps=steps))
        keep_record(config, run_id, history.rows, output)
    shutil.rmtree(state)
    return best


def _check(config: Config) -> None:
    check_least(config, _LEAST)
    if not 0 < config.segments.keep_probability <= 1:
        raise ConfigError(f"segments.keep_probability={config.segments.keep_probability}: set it above 0, to at most 1")
    if config.segments.configs_per_graph is not None and config.segments.configs_per_graph < 2:
        raise ConfigError(
            f"segments.configs_per_graph={config.segments.configs_per_graph}: set it to at least 2, or to null for all"
        )
    if config.trainer.precision not in _PRECISIONS:
        found = config.trainer.precision
        raise ConfigError(f"trainer.precision: expected one of {', '.join(_PRECISIONS)}, found {found!r}")


def _device(accelerator: str) -> torch.device:
    available = torch.cuda.is_available()
    devices = {"auto": "cuda" if available else "cpu", "cpu": "cpu", "cuda": "cuda"}
    if accelerator not in devices:
        raise ConfigError(f"trainer.accelerator: expected one of {', '.join(devices)}, found {accelerator!r}")
    if devices[accelerator] == "cuda" and not available:
        raise ConfigError("trainer.accelerator=cuda: PyTorch finds no CUDA device; set it to auto or cpu")
    return torch.device(devices[accelerator])


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draws from a generator of its own, and leaves the global one as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Leaves out what Lightning tells and no user of hlorank can act on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers")  # steps are rows of memory maps
        warnings.filterwarnings("ignore", "Checkpoint directory .* exists")  # it is there to resume from
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")  # Lightning 2.6 with PyTorch 2.13
        yield


def _fit(
    module: lightning.LightningModule,
    data: lightning.LightningDataModule,
    epochs: int,
    monitor: tuple[str, str | None],
    callbacks: list[Callback],
    config: Config,
    device: torch.device,
    origin: Origin,
    state: Path,
    run_id: str,
) -> tuple[int, float | None]:
    """Trains, from the last complete epoch if there is one, and leaves the best weights in the module.

    Args:
        module: what is trained.
        data: its steps and rankings.
        epochs: at most.
        monitor: names of the training loss, and of the validation Kendall tau if there is one.
        callbacks: whose state is kept with the epoch's.
        config: the whole configuration.
        device: where the model is trained.
        origin: which training this is.
        state: the folder of the checkpoints.
        run_id: the MLflow run.

    Returns:
        The optimizer steps taken, and the best validation Kendall tau.
    """
    settings = config.trainer
    loss, tau = monitor
    watched, mode = (loss, "min") if tau is None else (tau, "max")
    best = ModelCheckpoint(state, "best", monitor=watched, mode=mode, enable_version_counter=False)
    # Not save_last of the other, which saves only after epochs that are the best so far. It comes after all whose
    # state it holds.
    last = ModelCheckpoint(state, "last", enable_version_counter=False)
    callbacks = [origin, *callbacks, Patience(watched, patience=settings.patience, mode=mode), best, last]
    if sys.stderr.isatty():
        callbacks.append(RichProgressBar())
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator=device.type,
        devices=1,
        precision=settings.precision,  # type: ignore[arg-type] # Lightning checks the name
        accumulate_grad_batches=settings.graphs_per_step,
        gradient_clip_val=settings.gradient_clip,
        reload_dataloaders_every_n_epochs=1,  # an epoch's steps are drawn from its number
        num_sanity_val_steps=0,
        limit_val_batches=0 if tau is None else 1.0,  # Lightning warns of empty data
        logger=MLFlowLogger(config.tracking.experiment, tracking_uri=tracking_uri(config.tracking), run_id=run_id),
        callbacks=callbacks,
        enable_progress_bar=sys.stderr.isatty(),
        enable_model_summary=False,
        log_every_n_steps=settings.steps_per_epoch,
    )
    resume = state / "last.ckpt"
    if resume.exists():
        origin.check(resume)
    with _quiet():
        trainer.fit(module, datamodule=data, ckpt_path=str(resume) if resume.exists() else None, weights_only=True)
    checkpoint = torch.load(best.best_model_path, weights_only=True, map_location=module.device)
    module.load_state_dict(checkpoint["state_dict"])
    return trainer.global_step, None if tau is None else float(cast("torch.Tensor", best.best_model_score))
