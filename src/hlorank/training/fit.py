"""Fitting of a model: networks one after the other, each by Lightning, or a baseline."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from hlorank.models.cost_model import CostModel
from hlorank.models.encoder import PiecewiseLinear
from hlorank.models.serialization import input_sizes
from hlorank.training.process_group import ProcessGroup
from hlorank.training.sampling import tile_sample
from hlorank.training.setup import Member, Setup, Trained
from hlorank.training.step_plans import StepPlanner

if TYPE_CHECKING:  # Lightning takes seconds to import, which baselines must not pay
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers import Logger

    from hlorank.training.callbacks import IdentifiedCheckpoints
    from hlorank.training.gst.head_finetuning import HeadData, HeadModule
    from hlorank.training.ranking_module import RankingModule
    from hlorank.training.step_data import StepData

log = logging.getLogger(__name__)


def fit(
    setup: Setup,
    ranks: ProcessGroup,
    folder: Path,
    logger: Callable[[str], Logger | None],
    callbacks: Sequence[Callback],
) -> Trained | None:
    """Train the networks of a setup one after the other, or fit its baseline; return the result on rank 0.

    An interrupted training continues from the checkpoints in the folder; a DataError says that one is of another
    training. `logger` makes the logger of a member by its name, which is empty for a single one.
    """
    if setup.method is None:
        from hlorank.training.baselines.fit_baseline import fit_baseline

        return fit_baseline(setup, setup.config.method, setup.config.seed) if ranks.first else None
    if not setup.train:
        log.warning("%s: no graph to train on; the model keeps its initial weights", setup.spec.collection)
        return Trained([initial_model(setup, member) for member in setup.members])

    fitted, several = list[Trained](), len(setup.members) > 1
    for number in range(len(setup.members)):  # a complete one continues after its last epoch
        if several:
            log.info("member %d of %d", number + 1, len(setup.members))
        own_logger = logger(f"member_{number}" if several else "")
        fitted.append(_fit_member(setup, number, ranks, folder / str(number), own_logger, callbacks))
    if not ranks.first:
        return None
    taus = [one.tau for one in fitted if one.tau is not None]
    trained = Trained(
        [model for one in fitted for model in one.members],
        steps=sum(one.steps for one in fitted),
        history=[{"member": number, **row} for number, one in enumerate(fitted) for row in one.history],
        tau=float(np.mean(taus)) if taus else None,
        seconds=sum(one.seconds for one in fitted),
    )
    if setup.config.ensemble.baselines:
        from hlorank.training.blend import blend

        return blend(setup, trained)
    return trained


def initial_model(setup: Setup, member: Member) -> CostModel:
    """Make the network of a member with its initial weights."""
    config, features = setup.config, setup.graphs.store.spec
    with torch.random.fork_rng(devices=[]):  # the global generator is left as it was
        torch.manual_seed(member.seed)
        model = CostModel(config.model, input_sizes(features), config.segments.aggregation)
    if config.model.opcode_init:
        model.encoder.start_opcodes(features.opcode_embedding)
    if isinstance(encoding := model.encoder.configuration[0], PiecewiseLinear):
        encoding.start(tile_sample(setup.graphs.store))
    return model


def build(setup: Setup, member: Member, ranks: ProcessGroup) -> tuple[CostModel, StepData]:
    """Make the network of a member, and the data of its steps."""
    from hlorank.training.step_data import StepData

    assert setup.method is not None
    model = initial_model(setup, member)
    max_states = None if setup.memory is None else setup.memory.max_states
    return model, StepData(setup, member, StepPlanner.of(model, setup.method, max_states), ranks)


def _fit_member(
    setup: Setup, number: int, ranks: ProcessGroup, folder: Path, logger: Logger | None, callbacks: Sequence[Callback]
) -> Trained:
    """Train one member, from the last complete epoch of an interrupted training if any, and keep its best epoch."""
    from hlorank.training.callbacks import EpochHistory, IdentifiedCheckpoints
    from hlorank.training.gst.aggregator import Aggregator
    from hlorank.training.gst.head_finetuning import HeadData, HeadModule
    from hlorank.training.ranking_module import RankingModule

    assert setup.method is not None
    model, data = build(setup, setup.members[number], ranks)
    if not data.valid:
        log.warning("no graph of valid can be ranked: the epoch with the smallest training loss is the best")
    module = RankingModule(setup, data, Aggregator(model, setup.method, setup.config.segments))
    checkpoints, history = IdentifiedCheckpoints({**setup.identity, "member": number}), EpochHistory()
    steps, tau = _run(module, data, folder, checkpoints, logger, [history, *callbacks], ranks)
    if setup.method.finetune_head and setup.graphs.options is not None:
        model.to(ranks.device)  # Lightning leaves it on the CPU
        embeddings = HeadData(model, data, setup.config.evaluate.memory_bytes)
        if ranks.first:
            head = HeadModule(setup, model)
            _, tau = _run(head, embeddings, folder / "head", checkpoints, logger, [], ranks.alone)
    return Trained([model], steps=steps, history=history.rows, tau=tau, seconds=history.seconds)


def _run(
    module: RankingModule | HeadModule,
    data: StepData | HeadData,
    folder: Path,
    checkpoints: IdentifiedCheckpoints,
    logger: Logger | None,
    own: Sequence[Callback],
    ranks: ProcessGroup,
) -> tuple[int, float | None]:
    """Train with Lightning from the last checkpoint, load the best epoch, and return the steps and its Kendall tau."""
    import lightning

    from hlorank.training.callbacks import callbacks_of

    settings, validated, shows_progress = module.settings, bool(data.valid), ranks.first and sys.stderr.isatty()
    best, callbacks = callbacks_of(module, folder, own, ranks.device, validated=validated, progress=shows_progress)
    trainer = lightning.Trainer(
        max_epochs=module.epochs,
        **_placement(ranks, checkpoints),
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
    last = folder / "last.ckpt"
    with _without_routine_warnings():
        try:
            trainer.fit(module, datamodule=data, ckpt_path=last if last.exists() else None, weights_only=True)
        except SystemExit:  # Lightning ends the process at Ctrl-C
            log.info("interrupted: the same command continues after the last complete epoch")
            raise KeyboardInterrupt from None
    weights = torch.load(best.best_model_path, weights_only=True, map_location=module.device)["state_dict"]
    module.load_state_dict(weights)
    return trainer.global_step, float(cast("torch.Tensor", best.best_model_score)) if validated else None


def _placement(ranks: ProcessGroup, checkpoints: IdentifiedCheckpoints) -> dict[str, Any]:
    """Return the arguments of Lightning's trainer for the devices of a training."""
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning.fabric.utilities.rank_zero import rank_zero_only
    from lightning.pytorch.strategies import DDPStrategy

    device = ranks.device
    if ranks.control is None:
        rank_zero_only.rank = 0  # type: ignore[attr-defined]  # this process logs and saves, also if it is one of several ranks
        devices: Any = 1 if device.index is None else [device.index]
        return {"accelerator": device.type, "devices": devices, "plugins": [checkpoints]}
    return {
        "accelerator": device.type,
        "devices": ranks.per_machine,
        "num_nodes": ranks.count // ranks.per_machine,
        # In a step without a graph of its own, a rank uses the head alone.
        "strategy": DDPStrategy(find_unused_parameters=True),
        "plugins": [checkpoints, TorchElasticEnvironment()],
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
