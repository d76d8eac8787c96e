"""Scores do not depend on how much is computed at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hlorank.config import ModelConfig
from hlorank.evaluation import scoring
from hlorank.evaluation.scoring import score_configurations
from hlorank.models.cost_model import CostModel
from hlorank.models.inputs import ConfigurationBatch, GraphInputs, InputSizes, Segment

MakeInputs = Callable[..., GraphInputs]
CONFIG = ModelConfig(
    width=6,
    layers=2,
    opcode_width=3,
    opcode_init=False,
    layout_width=2,
    layout_sizes=True,
    dropout=0.5,
    pooling=["mean", "max"],
    squeeze_excite=False,
    configuration_attention=False,
)


def make_model(kind: str = "layout", **changes: Any) -> CostModel:
    torch.manual_seed(0)
    sizes = InputSizes("tile" if kind == "tile" else "layout", 4, 6, 5 if kind == "tile" else 0)
    return CostModel(replace(CONFIG, **changes), sizes, "mean").double()


@pytest.mark.parametrize(
    ("kind", "segments", "halo", "squeeze_excite"),
    [
        ("layout", 1, 0, False),
        ("layout", 3, 0, False),
        ("layout", 3, 1, False),
        ("layout", 3, 0, True),
        ("tile", 1, 0, False),
    ],
)
def test_the_bound_of_memory_changes_nothing(
    kind: str, segments: int, halo: int, squeeze_excite: bool, make_inputs: MakeInputs
) -> None:
    model, rows = make_model(kind, squeeze_excite=squeeze_excite), np.arange(30)
    graph = make_inputs(segments=segments, halo=halo, kind=kind, distinct=30)
    expected = score_configurations(model, graph, rows, 2**40)
    assert expected.dtype == np.float64
    assert len(np.unique(expected)) == 30
    one_by_one = [score_configurations(model, graph, rows[i : i + 1], 1)[0] for i in rows]
    np.testing.assert_allclose(one_by_one, expected, rtol=1e-12)
    for memory_bytes in (1, 20_000, 100_000):
        np.testing.assert_allclose(score_configurations(model, graph, rows, memory_bytes), expected, rtol=1e-12)
    some = np.array([29, 3, 3, 11])
    np.testing.assert_allclose(score_configurations(model, graph, some, 20_000), expected[some], rtol=1e-12)


def test_scores_are_those_of_the_model(make_inputs: MakeInputs) -> None:
    model, graph, rows = make_model().eval(), make_inputs(segments=3), np.arange(12)
    total = torch.stack([model.embed_rows(graph, j, rows) for j in range(3)]).sum(dim=0)
    expected = model.score(total, 3).detach().numpy()
    np.testing.assert_allclose(score_configurations(model, graph, rows, 10_000), expected, rtol=1e-12)


@pytest.mark.parametrize("squeeze_excite", [False, True])
def test_no_more_configurations_at_once_than_fit(
    squeeze_excite: bool, make_inputs: MakeInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph, rows = make_model(squeeze_excite=squeeze_excite), make_inputs(distinct=30), np.arange(30)
    sizes: list[int] = []
    embed = model.embed

    def counting(segment: Segment, batch: ConfigurationBatch) -> Tensor:
        sizes.append(len(batch))
        return embed(segment, batch)

    monkeypatch.setattr(model, "embed", counting)
    one = 24 * 6 * 8  # bytes of one state of all nodes
    score_configurations(model, graph, rows, 0)
    assert sizes == [1] * 30
    sizes.clear()
    score_configurations(model, graph, rows, 100 * one)
    assert max(sizes) <= 100 / 2  # a layer needs at least its input and its output
    assert sum(sizes) == 30
    assert len(sizes) < 10


@pytest.mark.parametrize("segments", [1, 3])
def test_attention_ranks_whole_groups_together(
    segments: int, make_inputs: MakeInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "RANKED_TOGETHER", 4)
    model = make_model(configuration_attention=True).eval()
    graph, rows = make_inputs(segments=segments, distinct=30), np.array([3, 1, 4, 1, 5, 9, 2, 6, 8, 29])
    scores = score_configurations(model, graph, rows, 2**30)
    for group in range(3):
        some = rows[group::3]
        total = torch.stack([model.embed_rows(graph, j, some) for j in range(segments)]).sum(dim=0)
        np.testing.assert_allclose(scores[group::3], model.score(total, segments).detach().numpy(), rtol=1e-12)
    # What fits into memory changes no score.
    np.testing.assert_array_equal(score_configurations(model, graph, rows, 1), scores)
    monkeypatch.setattr(scoring, "RANKED_TOGETHER", 128)
    assert not np.allclose(score_configurations(model, graph, rows, 2**30), scores, rtol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_restored_and_dropout_is_off(training: bool, make_inputs: MakeInputs) -> None:
    model, graph, rows = make_model().train(training), make_inputs(), np.arange(12)
    first, second = (score_configurations(model, graph, rows, 2**30) for _ in range(2))
    assert (first == second).all()
    assert model.training == training
    assert all(module.training == training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
