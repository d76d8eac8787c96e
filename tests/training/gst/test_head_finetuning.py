"""Head finetuning in a whole training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hlorank.config import Config
from hlorank.stages.train import train

Settings = Callable[..., Config]


@pytest.mark.parametrize("averaging", ["none", "ema"])
def test_finetuning_trains_the_head_alone(averaging: str, settings: Settings, tmp_path: Path) -> None:
    """The encoder of gst_ef is in the end bit-equal to that of gst_e, and the head is not."""
    weights = {}
    for method in ("gst_e", "gst_ef"):
        train(settings(method=method, trainer__patience=9, trainer__averaging=averaging), tmp_path / method)
        weights[method] = load_file(tmp_path / method / "weights.safetensors")
    changed = {name for name, value in weights["gst_e"].items() if not torch.equal(value, weights["gst_ef"][name])}
    assert changed
    assert all(name.startswith("0.head.") for name in changed)
