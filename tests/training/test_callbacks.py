"""Callbacks of a training: its history, early stopping, and checks of checkpoints."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hlorank.files import DataError
from hlorank.training import callbacks
from hlorank.training.callbacks import EpochHistory, IdentifiedCheckpoints, Patience


def run_epoch(
    history: EpochHistory, epoch: int, steps: int, tau: float | None, monkeypatch: pytest.MonkeyPatch
) -> dict[str, float]:
    """One epoch of graphs that take a second each, two in a step, before a validation of a minute."""
    logged: dict[str, float] = {}
    clock = [100.0]
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    metrics = {"curves/train_loss": torch.tensor(0.5 / epoch)} | (
        {} if tau is None else {"curves/valid_kendall_tau": torch.tensor(tau)}
    )
    trainer: Any = SimpleNamespace(
        callback_metrics=metrics, current_epoch=epoch - 1, max_epochs=9, accumulate_grad_batches=2
    )
    module: Any = SimpleNamespace(log_dict=logged.update)
    history.on_train_epoch_start()
    for _ in range(2 * steps):
        clock[0] += 1
        history.on_train_batch_end()
    clock[0] += 60
    history.on_train_epoch_end(trainer, module)
    return logged


def test_an_epoch_is_a_row(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    history = EpochHistory()
    with caplog.at_level(logging.INFO):
        logged = run_epoch(history, 1, 3, 0.25, monkeypatch)
        run_epoch(history, 2, 1, None, monkeypatch)
    assert logged["train/step_seconds"] == pytest.approx(2.0)
    assert logged["train/peak_memory_bytes"] > 1e8
    assert logged["train/seconds"] == pytest.approx(3 * 2.0 + 60)
    assert history.state_dict()["seconds"] == pytest.approx(3 * 2.0 + 60 + 2.0 + 60)
    assert history.rows == [
        {"epoch": 1, "train_loss": 0.5, "valid_kendall_tau": 0.25, "step_seconds": 2.0},
        {"epoch": 2, "train_loss": 0.25, "valid_kendall_tau": None, "step_seconds": 2.0},
    ]
    assert "epoch 1 of 9: loss 0.5000, validation Kendall tau 0.250" in caplog.text
    assert caplog.text.rstrip().endswith("epoch 2 of 9: loss 0.2500")


def test_a_resumed_history_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    history, resumed = EpochHistory(), EpochHistory()
    run_epoch(history, 1, 1, 0.25, monkeypatch)
    state = history.state_dict()
    run_epoch(history, 2, 1, 0.5, monkeypatch)
    resumed.load_state_dict(state)
    run_epoch(resumed, 2, 1, 0.5, monkeypatch)
    assert resumed.rows == history.rows


@pytest.mark.parametrize("stopped_epoch", [0, 4])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_stopped_training_stays_stopped(stopped_epoch: int, stopped: bool) -> None:
    patience = Patience("curves/valid_kendall_tau", patience=2, mode="max")
    state = patience.state_dict() | {"stopped_epoch": stopped_epoch}
    patience.load_state_dict(state)
    trainer: Any = SimpleNamespace(should_stop=stopped)
    patience.on_train_start(trainer)
    assert trainer.should_stop == (stopped or stopped_epoch > 0)


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    identity: dict[str, Any] = {"partition": "1a", "model.pooling": ["mean"], "segments.configs_per_graph": None}
    checkpoint: dict[str, Any] = {"state_dict": {"weight": torch.zeros(3)}}
    path = tmp_path / "last.ckpt"

    def refused(other: dict[str, Any]) -> str:
        with pytest.raises(DataError) as caught:
            IdentifiedCheckpoints(other).load_checkpoint(path, weights_only=True)
        return str(caught.value)

    torch.save(checkpoint, path)
    assert "partition: expected '1a', as in this training, found None" in refused(identity)
    IdentifiedCheckpoints(identity).save_checkpoint(checkpoint, path)
    assert IdentifiedCheckpoints(identity).load_checkpoint(path, weights_only=True).keys() > checkpoint.keys()
    message = refused({**identity, "partition": "2b", "model.pooling": ["max"]})
    assert all(text in message for text in (f"{path}: partition: ", "'2b'", "'1a'", str(tmp_path)))
    assert "model.pooling: expected ['max']" in refused({**identity, "model.pooling": ["max"]})
    assert "data: expected None" in refused({**identity, "data": None})
