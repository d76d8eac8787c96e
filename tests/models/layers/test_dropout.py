"""Dropout that configurations share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from hlorank.models.compression.segment import Segment
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.layers.layer import Dropout
from hlorank.models.scoring import embed_rows
from tests.models.dense_form import ROWS, MakeModel
from tests.models.run_layer import run_dense


def test_one_mask_serves_all_configurations(make_layer: Callable[..., Dropout], segment: Segment) -> None:
    layer, x = make_layer("dropout", dropout=0.5), torch.randn(24, 3, 16, dtype=torch.float64)
    mask = run_dense(layer, x, segment) / x
    torch.testing.assert_close(mask, mask[:, :1].expand(-1, 3, -1))
    assert {round(value, 9) for value in mask.flatten().tolist()} == {0.0, 2.0}
    assert 0.3 < (mask == 0).double().mean() < 0.7
    assert torch.equal(run_dense(layer.eval(), x, segment), x)


def test_both_forms_have_the_same_masks(make_model: MakeModel, make_inputs: Callable[..., GraphInputs]) -> None:
    model = make_model(block=["sage", "dropout", "residual"], dropout=0.5)
    model.recipe = replace(model.recipe, share=False)
    graph, results = make_inputs(segments=3, nodes=60), []
    for recipe in (model.recipe, replace(model.recipe, compress=False, deduplicate=False)):
        model.recipe = recipe
        torch.manual_seed(1)
        results.append(torch.cat([embed_rows(model, graph, j, ROWS) for j in range(3)]))
    torch.testing.assert_close(*results)
    assert (results[0] - torch.cat([embed_rows(model, graph, j, ROWS) for j in range(3)])).abs().max() > 0.01
