"""Averages of the weights over the steps of a training, which generalise better than those of its last step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

SWA_START = 0.5  # share of a training


class StepAveraging(WeightAveraging):
    """Averages weights after each step of the optimizer; validation, checkpoints and the result hold the average.

    `ema` is the exponential moving average over all steps, from the weights after the first one; its decay is the
    share of the average that a step leaves. `swa` is the equal average of the weights from half of the training on
    (Izmailov et al., UAI 2018, here of each step in place of each cycle); until then it is the weights themselves,
    where Lightning's callback alone would validate the initial ones.

    Args:
        kind: ema or swa.
        decay: of ema.
        progress: tells the share of the training that is done.
        device: where the model is trained.
    """

    def __init__(self, kind: str, decay: float, progress: Callable[[], float], device: torch.device) -> None:
        # PyTorch's makers of averages have no types.
        average = get_ema_multi_avg_fn(decay) if kind == "ema" else get_swa_multi_avg_fn()  # type: ignore[no-untyped-call]
        super().__init__(device=device, use_buffers=False, multi_avg_fn=average)
        self._start = SWA_START if kind == "swa" else 0.0
        self._progress = progress

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """After each step."""
        del epoch_idx
        if step_idx is None:
            return False
        if self._progress() <= self._start:
            assert self._average_model is not None
            self._average_model.n_averaged.zero_()  # these weights replace the average
        return True
