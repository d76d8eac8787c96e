"""Training of a network by Lightning: history, early ends, averaged weights and checkpoints."""

import logging
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import lightning
import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, RichProgressBar, WeightAveraging
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from hlorank.compute import ComputeError
from hlorank.files import write_atomic
from hlorank.metrics import TRAIN_LOSS, TRAIN_SECONDS, VALID_TAU
from hlorank.training.fit import Record, Report, build
from hlorank.training.gst.aggregator import Aggregator
from hlorank.training.gst.head_finetuning import HeadData, HeadModule
from hlorank.training.process_group import ProcessGroup
from hlorank.training.ranking_module import RankingModule
from hlorank.training.setup import Setup, Trained, peak_memory_bytes
from hlorank.training.step_data import StepData

log = logging.getLogger(__name__)
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # otherwise it logs hardware and advertisements

SWA_START = 0.5  # share of a training


class RunLogger(Logger):
    """Logger of metrics, without Lightning's `epoch`, which repeats the step, by names with a prefix."""

    name = version = None

    def __init__(self, record: Record, prefix: str) -> None:
        super().__init__()
        self._record, self._prefix = record, prefix

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log the metrics of a step."""
        self._record({f"{self._prefix}{name}": value for name, value in metrics.items() if name != "epoch"}, step or 0)

    def log_hyperparams(self, *_: Any) -> None:
        """Log nothing: the run has all parameters."""


class EpochHistory(Callback):
    """History of a training, a row for each epoch, and its seconds; checkpoints keep it for a resumed training.

    Each validation is reported, by the number of its epoch and of those `before`, of other members.
    """

    def __init__(self, report: Report | None = None, before: int = 0) -> None:
        self._report, self._before = report, before
        self.rows: list[dict[str, float | None]] = []
        self.seconds = 0.0
        self._start = 0.0
        self._seconds = 0.0
        self._graphs = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the rows so far, and their time."""
        return {"rows": list(self.rows), "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the history of a checkpoint."""
        self.rows, self.seconds = list(state_dict["rows"]), state_dict["seconds"]
        log.info("continues after epoch %d of an interrupted training", len(self.rows))

    def on_train_epoch_start(self, *_: Any) -> None:
        """Start the epoch's clock."""
        self._start, self._graphs = time.perf_counter(), 0

    def on_train_batch_end(self, *_: Any) -> None:
        """Count the graph, and update the time of the steps, which excludes validation."""
        self._seconds = time.perf_counter() - self._start
        self._graphs += 1

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Add the epoch's row, and log its cost."""
        step_seconds = self._seconds / self._graphs * trainer.accumulate_grad_batches
        self.seconds += time.perf_counter() - self._start
        pl_module.log_dict(
            {
                TRAIN_SECONDS: self.seconds,
                "train/step_seconds": step_seconds,
                "train/peak_memory_bytes": float(peak_memory_bytes()),
            }
        )
        metrics = trainer.callback_metrics
        tau = metrics.get(VALID_TAU)
        row = {
            "epoch": trainer.current_epoch + 1,
            "train_loss": float(metrics[TRAIN_LOSS]),
            "valid_kendall_tau": None if tau is None else float(tau),
            "step_seconds": step_seconds,
        }
        self.rows.append(row)
        shown = "" if tau is None else f", validation Kendall tau {float(tau):.3f}"
        log.info("epoch %d of %d: loss %.4f%s", row["epoch"], trainer.max_epochs, row["train_loss"], shown)
        if self._report is not None and tau is not None:
            self._report(float(tau), self._before + len(self.rows), len(self.rows) == trainer.max_epochs)


class Divergence(Callback):
    """End of a training that diverges, after the epoch and so on all ranks, before callbacks record the epoch."""

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Check the means over graphs and ranks."""
        module: Any = pl_module
        found = [(name, trainer.callback_metrics.get(name)) for name in (module.loss_metric, module.tau_metric)]
        for name, value in found:
            if value is not None and not value.isfinite():
                place = f"epoch {trainer.current_epoch + 1}: {name} is {float(value)}"
                remedy = "lower it or trainer.gradient_clip, or raise trainer.warmup"
                raise ComputeError(f"{place} with trainer.learning_rate={module.settings.learning_rate:g}; {remedy}")


class AtomicCheckpoints(TorchCheckpointIO):
    """Checkpoints that are written in one step, where Lightning copies from /tmp."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:  # noqa: ARG002 - Lightning's signature
        """Write a checkpoint; if it cannot be written, the earlier one remains."""
        buffer = BytesIO()  # PyTorch turns errors of files into other errors
        torch.save(checkpoint, buffer)
        write_atomic(Path(path), lambda file: file.write(buffer.getbuffer()))


class Patience(EarlyStopping):
    """Early stopping that remains stopped when a training is resumed after its last epoch."""

    def on_train_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Stop before the first step if the checkpoint is of a stopped training."""
        trainer.should_stop = trainer.should_stop or self.stopped_epoch > 0


class StepAveraging(WeightAveraging):
    """Average of the weights over optimizer steps; validation, checkpoints and the result have the averaged weights.

    `ema` is the exponential moving average over all steps, from the weights after the first step; its decay is the
    share of the average that remains after a step. `swa` is the equal average over the second half of the training
    (Izmailov et al., UAI 2018, here of each step instead of each cycle); in the first half it is the current weights,
    where Lightning's callback alone would validate the initial weights. A training has so many `steps`.
    """

    def __init__(self, kind: str, decay: float, steps: int, device: torch.device) -> None:
        # PyTorch's factories of averaging functions have no types.
        average = get_ema_multi_avg_fn(decay) if kind == "ema" else get_swa_multi_avg_fn()  # type: ignore[no-untyped-call]
        super().__init__(device=device, use_buffers=False, multi_avg_fn=average)
        self._start = SWA_START * steps if kind == "swa" else 0.0

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Update the average after each step."""
        del epoch_idx
        if step_idx is None:
            return False
        if step_idx + 1 <= self._start:
            assert self._average_model is not None
            self._average_model.n_averaged.zero_()  # the current weights replace the average
        return True


def fit_member(
    setup: Setup, number: int, ranks: ProcessGroup, folder: Path, record: Record | None, report: Report | None
) -> Trained:
    """Train one member, from the last complete epoch of an interrupted training if any, and keep its best epoch."""
    assert setup.method is not None
    if len(setup.members) > 1:
        log.info("member %d of %d", number + 1, len(setup.members))
    model, data = build(setup, setup.members[number], ranks)
    if not data.valid:
        log.warning("no graph of valid can be ranked: the epoch with the smallest training loss is the best")
    folder, aggregator = folder / str(number), Aggregator(model, setup.method, setup.config.segments)
    module = RankingModule(setup, data, aggregator)
    logger = None if record is None else RunLogger(record, f"member_{number}/" if len(setup.members) > 1 else "")
    history = EpochHistory(report, before=number * module.epochs)
    steps, tau = _run(module, data, folder, logger, [history], ranks)
    if setup.method.finetune_head and setup.graphs.options is not None:
        model.to(ranks.device)  # Lightning leaves it on the CPU
        embeddings = HeadData(model, data, setup.config.evaluate.memory_bytes)
        if ranks.first:
            head = HeadModule(setup, model)
            _, tau = _run(head, embeddings, folder / "head", logger, [], ranks.alone)
    return Trained([model], steps=steps, history=history.rows, tau=tau, seconds=history.seconds)


def _run(
    module: RankingModule | HeadModule,
    data: StepData | HeadData,
    folder: Path,
    logger: Logger | None,
    more: Sequence[Callback],
    ranks: ProcessGroup,
) -> tuple[int, float | None]:
    """Train with Lightning from the last checkpoint, load the best epoch, and return the steps and its Kendall tau."""
    settings, validated, shows_progress = module.settings, bool(data.valid), ranks.first and sys.stderr.isatty()
    watched, mode = (module.tau_metric, "max") if validated else (module.loss_metric, "min")
    best = ModelCheckpoint(folder, "best", monitor=watched, mode=mode, enable_version_counter=False)
    # Not `save_last` of `best`, which saves only after epochs that are the best so far. Lightning runs checkpoints
    # after all callbacks whose state they save.
    last = ModelCheckpoint(folder, "last", enable_version_counter=False)
    callbacks = [Divergence(), *more, Patience(watched, patience=settings.patience, mode=mode), best, last]
    if settings.averaging != "none":
        steps = module.epochs * settings.steps_per_epoch
        callbacks.append(StepAveraging(settings.averaging, settings.averaging_decay, steps, ranks.device))
    if shows_progress:
        callbacks.append(RichProgressBar())
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
        logger=logger or False,
        callbacks=callbacks,
        enable_progress_bar=shows_progress,
        enable_model_summary=False,
        log_every_n_steps=settings.steps_per_epoch,
    )
    resumed = folder / "last.ckpt"
    with _without_routine_warnings():
        try:
            trainer.fit(module, datamodule=data, ckpt_path=resumed if resumed.exists() else None, weights_only=True)
        except SystemExit:  # Lightning ends the process at Ctrl-C
            log.info("interrupted: the same command continues after the last complete epoch")
            raise KeyboardInterrupt from None
        except ComputeError as error:  # of Divergence
            if not (validated and best.best_model_path):
                raise
            log.warning("%s; the best epoch before is kept", error)
    weights = torch.load(best.best_model_path, weights_only=True, map_location=module.device)["state_dict"]
    module.load_state_dict(weights)
    return trainer.global_step, float(cast("torch.Tensor", best.best_model_score)) if validated else None


def _placement(ranks: ProcessGroup) -> dict[str, Any]:
    """Return the arguments of Lightning's trainer for the devices of a training."""
    device = ranks.device
    if ranks.control is None:
        rank_zero_only.rank = 0  # type: ignore[attr-defined]  # this process logs and saves, also if it is one of several ranks
        devices: Any = 1 if device.index is None else [device.index]
        return {"accelerator": device.type, "devices": devices, "plugins": [AtomicCheckpoints()]}
    return {
        "accelerator": device.type,
        "devices": ranks.per_machine,
        "num_nodes": ranks.count // ranks.per_machine,
        # In a step whose graphs other ranks compute, a rank uses the head alone.
        "strategy": DDPStrategy(find_unused_parameters=True),
        "plugins": [AtomicCheckpoints(), TorchElasticEnvironment()],
    }


@contextmanager
def _without_routine_warnings() -> Iterator[None]:
    """Silence warnings of Lightning that no user of hlorank can act on."""
    routine = (
        ".*does not have many workers",  # steps are rows of memory maps
        "Checkpoint directory .* exists",  # as in every resumed training
        ".*LeafSpec.* is deprecated",  # Lightning 2.6 with PyTorch 2.13
        ".*sync_dist=True",  # values that are logged without are the same on all ranks
        "find_unused_parameters=True was specified",
    )
    with warnings.catch_warnings():
        for message in routine:
            warnings.filterwarnings("ignore", message)
        yield
