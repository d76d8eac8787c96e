"""The training step of all methods, the optimizer, and the cost and history of an epoch."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from hlorank.config import Config
from hlorank.metrics import TRAIN_LOSS
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs, InputSizes
from hlorank.training import fit_networks
from hlorank.training.fit import build
from hlorank.training.fit_networks import EpochHistory
from hlorank.training.gst.aggregator import Aggregator, StepCost
from hlorank.training.gst.embedding_table import ENTRY_OVERHEAD
from hlorank.training.methods import METHODS
from hlorank.training.process_group import ALONE
from hlorank.training.ranking_module import RankingModule
from hlorank.training.setup import Member, open_setup
from hlorank.training.step_plans import PlannedStep, Step, StepMemory
from tests.graphs import make_inputs
from tests.models.dense_form import embed_rows
from tests.training.training_helpers import Settings, planned

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


@pytest.mark.parametrize("aggregation", ["mean", "sum"])
@pytest.mark.parametrize("sampled", [[0], [1, 3], [0, 1, 2, 3]])
def test_only_sampled_segments_have_gradients(sampled: list[int], aggregation: str, settings: Settings) -> None:
    module, logged = make_module(settings(segments__aggregation=aggregation, loss="mse"))
    graph, model = make_inputs(segments=4), module.model
    loss = module.training_step(make_step(module, graph, sampled), 0)

    embedded = [embed_rows(model, graph, j, ROWS) for j in range(4)]
    total = torch.stack([own if j in sampled else own.detach() for j, own in enumerate(embedded)]).sum(dim=0)
    scores = model.head(total / 4 if aggregation == "mean" else total).squeeze(-1)
    residual = (scores - scores.mean()) - (LABELS.log() - LABELS.log().mean())
    expected = residual.square().mean()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    assert logged == {TRAIN_LOSS: float(loss.detach())}
    parameters = list(module.parameters())
    gradients = [torch.autograd.grad(one, parameters, materialize_grads=True) for one in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_the_table_of_a_module(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch logs the cost of its steps; a table that a checkpoint leaves on the CPU moves to the model's device."""
    module, logged = make_module(settings(method="gst_ed"))
    table, width = module.aggregator.table, module.model.embedding_width
    assert table is not None
    table.write([1, 2, 3], torch.zeros(3, width), step=0)
    counts = {"looked_up": 8, "found": 6, "used": 4, "staleness": 10}
    module.aggregator.cost = StepCost(states=30, dense_states=120, peak_states=5, **counts)
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
    module.on_load_checkpoint({"table": table.state_dict()})
    monkeypatch.setattr(RankingModule, "device", torch.device("meta"))
    module.on_train_start()
    assert table.read([1])[0].device.type == "meta"


def test_an_epoch_is_a_row_of_the_history(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Graphs take a second each, two in a step, before a validation of a minute."""
    history, clock, module = EpochHistory(), [100.0], Mock()
    monkeypatch.setattr(fit_networks, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    for epoch, taus in enumerate([{"curves/valid_kendall_tau": torch.tensor(0.25)}, {}]):
        history.on_train_epoch_start()
        for _ in range(6):
            clock[0] += 1
            history.on_train_batch_end()
        clock[0] += 60
        metrics = {"curves/train_loss": torch.tensor(0.5), **taus}
        trainer = Mock(callback_metrics=metrics, current_epoch=epoch, max_epochs=9, accumulate_grad_batches=2)
        with caplog.at_level(logging.INFO):
            history.on_train_epoch_end(trainer, module)
    (logged,) = module.log_dict.call_args.args
    assert logged.pop("train/peak_memory_bytes") > 1e8
    assert logged == {"train/step_seconds": pytest.approx(2.0), "train/seconds": pytest.approx(2 * 66)}
    row = {"train_loss": 0.5, "step_seconds": 2.0}
    assert history.rows == [
        {"epoch": 1, "valid_kendall_tau": 0.25, **row},
        {"epoch": 2, "valid_kendall_tau": None, **row},
    ]
    assert "epoch 1 of 9: loss 0.5000, validation Kendall tau 0.250" in caplog.text
    assert caplog.text.rstrip().endswith("epoch 2 of 9: loss 0.5000")


def test_a_step_has_its_own_dropout_masks(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
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
