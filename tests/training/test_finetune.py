"""Whole trainings with every method that keeps a table or finetunes the head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hlorank.config import Config
from hlorank.training.run import train

Settings = Callable[..., Config]


def test_finetuning_trains_the_head_alone(settings: Settings, tmp_path: Path) -> None:
    """The encoder of gst_ef ends bit-equal to that of gst_e, and the head does not."""
    weights = {}
    for method in ("gst_e", "gst_ef"):
        train(settings(method=method, trainer__patience=9), tmp_path / method)
        weights[method] = load_file(tmp_path / method / "weights.safetensors")
    changed = {name for name, value in weights["gst_e"].items() if not torch.equal(value, weights["gst_ef"][name])}
    assert changed
    assert all(name.startswith("head.") for name in changed)


@pytest.mark.parametrize("method", ["gst_one", "gst_ed", "gst_efd"])
def test_methods_repeat_bit_equal(method: str, settings: Settings, tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(settings(method=method, segments__configs_per_graph=20), tmp_path / name)
    first, second = (load_file(tmp_path / name / "weights.safetensors") for name in ("a", "b"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
