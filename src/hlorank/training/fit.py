"""One run of Lightning's trainer: goes on from the last complete epoch, and keeps the weights of the best one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import MLFlowLogger

from hlorank.config import Config
from hlorank.tracking import tracking_uri
from hlorank.training.averaging import StepAveraging
from hlorank.training.callbacks import Origin, Patience
from hlorank.training.gst.head_finetuning import HeadData, HeadModule
from hlorank.training.ranking_module import RankingModule
from hlorank.training.step_data import StepData


class MemberLogger(MLFlowLogger):
    """Logs into the run of a training; the metrics of a member of an ensemble stand below its name.

    Args:
        config: the whole configuration.
        run_id: the run.
        member: the member's name; empty for a model alone.
    """

    LOGGER_JOIN_CHAR = "/"

    def __init__(self, config: Config, run_id: str, member: str) -> None:
        uri = tracking_uri(config.tracking)
        super().__init__(config.tracking.experiment, tracking_uri=uri, run_id=run_id, prefix=member)


@contextmanager
def _quiet() -> Iterator[None]:
    """Leaves out what Lightning tells and no user of hlorank can act on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers")  # steps are rows of memory maps
        warnings.filterwarnings("ignore", "Checkpoint directory .* exists")  # it is there to resume from
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")  # Lightning 2.6 with PyTorch 2.13
        yield


def fit(
    module: RankingModule | HeadModule,
    data: StepData | HeadData,
    epochs: int,
    monitor: tuple[str, str | None],
    callbacks: list[Callback],
    config: Config,
    device: torch.device,
    origin: Origin,
    state: Path,
    logger: MemberLogger,
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
        logger: where metrics go.

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
    if settings.averaging != "none":
        callbacks.append(StepAveraging(settings.averaging, settings.averaging_decay, module.progress, device))
    if sys.stderr.isatty():
        callbacks.append(RichProgressBar())
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator=device.type,
        devices=1,
        precision=settings.precision,
        accumulate_grad_batches=settings.graphs_per_step,
        gradient_clip_val=settings.gradient_clip,
        reload_dataloaders_every_n_epochs=1,  # an epoch's steps are drawn from its number
        num_sanity_val_steps=0,
        limit_val_batches=0 if tau is None else 1.0,  # Lightning warns of empty data
        logger=logger,
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
