"""Whole trainings with every method that has an embedding table or finetunes the head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from hlorank.config import Config
from hlorank.stages.train import train
from hlorank.training.gst.head_finetuning import HeadModule
from hlorank.training.ranking_module import RankingModule
from tests.training.training_helpers import Interrupted

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


@pytest.mark.parametrize(
    ("owner", "steps", "dtype"),
    [(RankingModule, 24, "float32"), (RankingModule, 24, "float16"), (HeadModule, 16, "float32")],
)
def test_an_interrupted_training_continues_with_its_table(
    owner: type[RankingModule | HeadModule],
    steps: int,
    dtype: str,
    settings: Settings,
    trained: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes the same steps, wherever it stops, also with several graphs in a step."""
    few = {"segments__table_dtype": dtype, "segments__configs_per_graph": 20, "segments__redraw_epochs": 2}
    values: dict[str, Any] = {"method": "gst_efd", "trainer__graphs_per_step": 2, **few}
    whole, resumed, config = trained(**values), tmp_path / "resumed", settings(**values)
    plain, seen = owner.training_step, list[int]()

    def counted(self: Any, step: Any, index: int) -> Any:
        seen.append(index)
        if len(seen) == steps * 2 // 3:
            raise Interrupted
        return plain(self, step, index)

    monkeypatch.setattr(owner, "training_step", counted)
    with pytest.raises(Interrupted):
        train(config, resumed)
    train(config, resumed)
    assert steps <= len(seen) < 2 * steps
    assert (resumed / "weights.safetensors").read_bytes() == (whole / "weights.safetensors").read_bytes()
    # The weights may be those of an epoch before the interruption; the losses are of every epoch.
    losses = [pd.read_csv(folder / "history.csv")["train_loss"].tolist() for folder in (whole, resumed)]
    assert losses[1] == losses[0]
