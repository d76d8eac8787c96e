"""Averages of weights, against sums written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hlorank.training.callbacks import StepAveraging

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*LeafSpec.* is deprecated",
    "ignore:Checkpoint directory .* exists",
)
STEPS, EPOCHS = 4, 3  # of the optimizer, two batches each


class Line(lightning.LightningModule):
    """A model of one weight, and one that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.still = nn.Parameter(torch.full((7,), 0.1))
        self.validated: list[float] = []

    def progress(self) -> float:
        """Return the share of the steps taken."""
        return self.global_step / (STEPS * EPOCHS)

    def training_step(self, batch: tuple[Tensor], _: int) -> Tensor:
        """Return a loss that moves the weight by a step that depends on the batch."""
        return (self.weight * batch[0]).sum()

    def validation_step(self, *_: Any) -> None:
        """Record the weight that is validated."""
        self.validated.append(float(self.weight.detach()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make plain gradient descent."""
        return torch.optim.SGD([self.weight], lr=1.0)


class Raw(Callback):
    """Record of the weight after each step of the optimizer."""

    def __init__(self) -> None:
        self.weights: list[float] = []

    def on_train_batch_end(self, trainer: lightning.Trainer, pl_module: Any, *_: Any) -> None:
        """Record it after every second batch."""
        if trainer.global_step > len(self.weights):
            self.weights.append(float(pl_module.weight.detach()))


def fit(kind: str, folder: Path) -> tuple[Line, Raw]:
    module, raw = Line(), Raw()
    averaging = StepAveraging(kind, 0.75, module.progress, torch.device("cpu"))
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        accumulate_grad_batches=2,
        callbacks=[raw, averaging, ModelCheckpoint(folder, "last", enable_version_counter=False)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    batches, once = torch.arange(2.0 * STEPS).square()[:, None], torch.zeros(1, 1)
    training, validation = (DataLoader(TensorDataset(items), batch_size=None) for items in (batches, once))
    trainer.fit(module, training, validation)
    return module, raw


def averages(kind: str, raw: list[float]) -> list[float]:
    """Return the average after each step."""
    if kind == "swa":
        half = STEPS * EPOCHS // 2
        # Until half of the training is done the weights themselves; then the mean over them and those that follow.
        return [*raw[: half - 1], *(sum(raw[half - 1 : end]) / (end - half + 1) for end in range(half, len(raw) + 1))]
    average = raw[:1]
    for weight in raw[1:]:
        average.append(0.75 * average[-1] + 0.25 * weight)
    return average


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_validation_checkpoint_and_result_hold_the_average(kind: str, tmp_path: Path) -> None:
    module, raw = fit(kind, tmp_path)
    expected = averages(kind, raw.weights)
    assert len(set(raw.weights)) == STEPS * EPOCHS  # averaging touches no weight that is trained on
    assert module.validated == pytest.approx(expected[STEPS - 1 :: STEPS])
    assert float(module.weight.detach()) == pytest.approx(expected[-1])
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert float(saved["weight"]) == pytest.approx(expected[-1])
    # The average of a constant weight is bit-equal to it, so that head finetuning leaves the encoder as it was.
    assert torch.equal(saved["still"], torch.full((7,), 0.1))
