"""Fitting of a model: networks one after the other, each by Lightning, or a baseline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hlorank.config import ConfigError
from hlorank.metrics import TRAIN_LOSS, TRAIN_SECONDS, VALID_TAU
from hlorank.models.cost_model import CostModel
from hlorank.models.encoder import PiecewiseLinear
from hlorank.models.serialization import input_sizes, load_model
from hlorank.training.process_group import ProcessGroup
from hlorank.training.sampling import tile_sample
from hlorank.training.setup import Member, Setup, Trained, peak_memory_bytes
from hlorank.training.step_plans import StepPlanner

if TYPE_CHECKING:  # Lightning takes seconds to import, which baselines must not pay
    from hlorank.training.step_data import StepData

log = logging.getLogger(__name__)

Record = Callable[[Mapping[str, float], int], object]
"""Function that logs metrics by name, of a step."""
Report = Callable[[float, int, bool], object]
"""Function of the Kendall tau of an epoch, its number, and whether it is the last; it may end the training."""
# Columns of the history of a baseline, whose rows are candidates, by the metric that each becomes.
_FIGURES = {TRAIN_LOSS: "train_loss", VALID_TAU: "valid_kendall_tau", TRAIN_SECONDS: "seconds"}


def fit(
    setup: Setup, ranks: ProcessGroup, folder: Path, record: Record | None, report: Report | None
) -> Trained | None:
    """Train the networks of a setup one after the other, or fit its baseline; return the result on rank 0.

    An interrupted training continues from the checkpoints in the folder, which no other training has. Metrics of one of
    several members begin with its name; epochs of all members count in a report.
    """
    if setup.method is None:
        from hlorank.training.baselines.fit_baseline import fit_baseline

        if not ranks.first:
            return None
        baseline = fit_baseline(setup, setup.config.method, setup.config.seed)
        for row in baseline.history:
            figures = {name: row[key] for name, key in _FIGURES.items()}
            if row is baseline.history[-1]:
                figures |= {"train/peak_memory_bytes": peak_memory_bytes(), "train/step_seconds": row["step_seconds"]}
            if record is not None:
                record({name: value for name, value in figures.items() if value is not None}, row["epoch"])
        return baseline
    from hlorank.training.fit_networks import fit_member

    # A complete member continues after its last epoch.
    fitted = [fit_member(setup, number, ranks, folder, record, report) for number in range(len(setup.members))]
    if not ranks.first:
        return None
    taus = [member.tau for member in fitted if member.tau is not None]
    trained = Trained(
        [model for member in fitted for model in member.members],
        steps=sum(member.steps for member in fitted),
        history=[{"member": number, **row} for number, member in enumerate(fitted) for row in member.history],
        tau=float(np.mean(taus)) if taus else None,
        seconds=sum(member.seconds for member in fitted),
    )
    if setup.config.ensemble.baselines:
        from hlorank.training.baselines.fit_baseline import blend

        return blend(setup, trained)
    return trained


def initial_model(setup: Setup, member: Member) -> CostModel:
    """Make the network of a member with its initial weights, drawn or those of a pretrained model's member."""
    config, features = setup.config, setup.graphs.store.spec
    with torch.random.fork_rng(devices=[]):  # the global generator is left as it was
        torch.manual_seed(member.seed)
        model = CostModel(config.model, input_sizes(features), config.segments.aggregation)
    if config.model.opcode_init:
        model.encoder.start_opcodes(features.opcode_embedding)
    if isinstance(encoding := model.encoder.configuration[0], PiecewiseLinear):
        encoding.start(tile_sample(setup.graphs.store))
    if config.paths.pretrained is not None:
        members, spec = load_model(Path(config.paths.pretrained), torch.device("cpu"))
        if (spec.model, spec.features.fingerprint) != (config.model, features.fingerprint):
            remedy = "expected a model of the same settings `model` and of these features; run featurize with it, too"
            raise ConfigError(f"paths.pretrained={config.paths.pretrained}: {remedy}")
        number = [each.seed for each in setup.members].index(member.seed)
        model.load_state_dict(members[number % len(members)].state_dict())
    return model


def build(setup: Setup, member: Member, ranks: ProcessGroup) -> tuple[CostModel, StepData]:
    """Make the network of a member, and the data of its steps."""
    from hlorank.training.step_data import StepData

    assert setup.method is not None
    model = initial_model(setup, member)
    max_states = None if setup.memory is None else setup.memory.max_states
    return model, StepData(setup, member, StepPlanner.of(model, setup.method, max_states), ranks)
