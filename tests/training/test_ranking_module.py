"""The training step of all methods, and the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hlorank.config import Config
from hlorank.metrics import TRAIN_LOSS, VALID_TAU
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs, InputSizes
from hlorank.models.scoring import score_configurations
from hlorank.training.fit import build
from hlorank.training.gst.aggregator import Aggregator, StepCost
from hlorank.training.gst.embedding_table import ENTRY_OVERHEAD
from hlorank.training.methods import METHODS
from hlorank.training.process_group import ALONE
from hlorank.training.ranking_module import RankingModule
from hlorank.training.setup import Member, open_setup
from hlorank.training.step_data import Ranking
from hlorank.training.step_plans import PlannedStep, Step, StepMemory
from tests.models.dense_form import embed_rows
from tests.training.training_helpers import planned

Settings = Callable[..., Config]
MakeInputs = Callable[..., GraphInputs]
ROWS = np.array([4, 1, 9, 7, 0])
LABELS = torch.tensor([3.0, 1.0, 5.0, 2.0, 4.0], dtype=torch.float64)


def make_module(config: Config) -> tuple[RankingModule, dict[str, float]]:
    """Return a module in float64, without a trainer, and the metrics that it logs."""
    torch.manual_seed(0)
    sizes = InputSizes("layout", node_columns=4, opcodes=6, tile_columns=0)
    model = CostModel(config.model, sizes, config.segments.aggregation).double()
    setup = replace(open_setup(config), memory=StepMemory(bytes_per_state=8.0, max_states=10**6))
    _, data = build(setup, Member(config.seed), ALONE)
    module = RankingModule(setup, data, Aggregator(model, METHODS[config.method], config.segments))
    logged: dict[str, float] = {}
    module.log = lambda name, value, **_: logged.update({name: float(value)})  # type: ignore[method-assign] # there is no trainer
    return module, logged


def make_step(module: RankingModule, graph: GraphInputs, sampled: Sequence[int]) -> PlannedStep:
    step = Step(graph, 0, ROWS, LABELS.numpy(), np.array(sampled), np.zeros(len(graph.segments)))
    return planned(module.model, "gst", step)


def gradients(loss: Tensor, module: RankingModule) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, module.parameters(), strict=True)]


@pytest.mark.parametrize("aggregation", ["mean", "sum"])
@pytest.mark.parametrize("sampled", [[0], [1, 3], [0, 1, 2, 3]])
def test_only_sampled_segments_have_gradients(
    sampled: list[int], aggregation: str, settings: Settings, make_inputs: MakeInputs
) -> None:
    module, logged = make_module(settings(segments__aggregation=aggregation, loss="mse"))
    graph, model = make_inputs(segments=4), module.model
    loss = module.training_step(make_step(module, graph, sampled), 0)

    embedded = [embed_rows(model, graph, j, ROWS) for j in range(4)]
    total = embedded[0] * 0
    for j in range(4):
        total = total + (embedded[j] if j in sampled else embedded[j].detach())
    scores = model.head(total / 4 if aggregation == "mean" else total).squeeze(-1)
    residual = (scores - scores.mean()) - (LABELS.log() - LABELS.log().mean())
    expected = residual.square().mean()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    assert logged == {TRAIN_LOSS: float(loss.detach())}
    for ours, theirs in zip(gradients(loss, module), gradients(expected, module), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_validation_logs_kendall_tau(settings: Settings, make_inputs: MakeInputs) -> None:
    module, logged = make_module(settings(model__dropout=0.5, model__block="[sage,dropout]"))
    graph, labels = make_inputs(segments=3), np.empty(len(ROWS))
    scores = score_configurations(module.model, graph, ROWS, 2**30)
    labels[np.argsort(scores)] = [2, 1, 3, 4, 5]  # one of the ten pairs is reversed
    module.train()
    module.validation_step(Ranking(graph, ROWS, labels), 0)
    assert logged == {VALID_TAU: pytest.approx(0.8)}


def test_an_epoch_logs_the_cost_of_its_steps(settings: Settings) -> None:
    module, logged = make_module(settings(method="gst_ed"))
    assert module.aggregator.table is not None
    width = module.model.embedding_width
    module.aggregator.table.write([1, 2, 3], torch.zeros(3, width), step=0)
    module.aggregator.cost = StepCost(
        states=30, dense_states=120, peak_states=5, looked_up=8, found=6, used=4, staleness=10
    )
    module.on_train_epoch_end()
    assert logged == {
        "train/rows": 30,
        "train/rows_of_dense_form": 0.25,
        "train/step_memory_bytes": 40,
        "table/hit_rate": 0.75,
        "table/staleness_steps": 2.5,
        "table/bytes": 3 * (4 * width + ENTRY_OVERHEAD),
    }
    assert module.aggregator.cost == StepCost()  # the next epoch counts its own


def test_a_restored_table_is_on_the_device_of_the_model(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint leaves it on the CPU, and it is read before it is written."""
    module, _ = make_module(settings(method="gst_e"))
    assert module.aggregator.table is not None
    module.aggregator.table.write([1], torch.zeros(1, module.model.embedding_width), step=0)
    module.on_load_checkpoint({"table": module.aggregator.table.state_dict()})
    monkeypatch.setattr(RankingModule, "device", torch.device("meta"))
    module.on_train_start()
    assert module.aggregator.table.read([1])[0].device.type == "meta"


def test_a_step_has_its_own_dropout_masks(
    settings: Settings, make_inputs: MakeInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _ = make_module(settings(model__dropout=0.5, model__block="[sage,dropout]"))
    step = make_step(module, make_inputs(), [0])

    def loss(epoch: int, index: int = 5) -> float:
        monkeypatch.setattr(RankingModule, "current_epoch", epoch)
        module.on_train_batch_start(step, index)
        return float(module.training_step(step, 0).detach())

    first = loss(3)
    torch.rand(5)
    assert loss(3) == first
    assert loss(4) != first
    assert loss(3, index=6) != first
    module.seed = 1
    assert loss(3) != first


def test_the_learning_rate_rises_and_falls(settings: Settings) -> None:
    config = settings(
        trainer__max_epochs=5, trainer__steps_per_epoch=4, trainer__warmup=0.2, trainer__weight_decay=0.03
    )
    module, _ = make_module(config)
    configured: Any = module.configure_optimizers()
    optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups[0]["weight_decay"] == 0.03
    assert configured["lr_scheduler"]["interval"] == "step"
    assert len(optimizer.param_groups[0]["params"]) == len(list(module.model.parameters()))
    rates = []
    for _ in range(21):
        rates.append(optimizer.param_groups[0]["lr"] / 0.01)
        optimizer.step()
        schedule.step()
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert rates[12] == pytest.approx(0.5)  # half way down
    assert rates[8] == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert rates[20] == pytest.approx(0, abs=1e-12)
