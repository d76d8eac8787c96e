"""Operators of PyTorch Geometric: compressed form, dense form and the plain graph agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hlorank.config import ConfigError
from hlorank.models.compression.segment import Segment
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.layers.layer import Layer
from hlorank.models.layers.operator import Operator
from tests.models.run_layer import both_forms, run_dense

MakeLayer = Callable[..., Layer]
X = torch.randn(24, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
OPERATORS: dict[str, dict[str, Any]] = {
    "SAGEConv": {"aggr": "max"},
    "GraphConv": {"edge_weight": "mean"},
    "GATConv": {"heads": 2, "self_loops": True},
    "GATv2Conv": {"heads": 3, "self_loops": True},
    "TransformerConv": {"heads": 2, "beta": True},
    "GINConv": {"train_eps": True},
    "GENConv": {"learn_t": True, "norm": None},
    "MFConv": {"max_degree": 3},
    "LEConv": {"edge_weight": "symmetric"},
    "ResGatedGraphConv": {},
    "CGConv": {},
    "FiLMConv": {},
    "FeaStConv": {"heads": 2},
    "GeneralConv": {"attention": True, "heads": 2},
    "EdgeConv": {"aggr": "mean"},
    "SimpleConv": {"aggr": "sum"},
}
every_operator = pytest.mark.parametrize("name", OPERATORS)
every_direction = pytest.mark.parametrize("directions", ["separate", "shared"])


@every_operator
@every_direction
@pytest.mark.parametrize("join", ["early", "late"])
def test_both_forms_are_equal(
    name: str, directions: str, join: str, make_model: Callable[..., CostModel], make_inputs: Callable[..., GraphInputs]
) -> None:
    model = make_model(
        block=["layer_norm", name, "gelu", "residual"], operators=OPERATORS, directions=directions, join=join,
        pooling=["sum", "max"],
    )  # fmt: skip
    compressed, dense = both_forms(model, make_inputs(segments=2, nodes=40), np.array([3, 0, 7, 5]))
    torch.testing.assert_close(compressed, dense, rtol=1e-9, atol=1e-10)


@every_operator
@every_direction
def test_equals_the_operator_on_the_plain_graph(
    name: str, directions: str, make_layer: MakeLayer, segment: Segment, edge_indices: tuple[Tensor, Tensor]
) -> None:
    layer = make_layer(name, directions=directions, operators=OPERATORS)
    assert isinstance(layer, Operator)
    edges = edge_indices if directions == "separate" else (torch.cat(edge_indices, dim=1),)
    expected = torch.zeros_like(X)
    for convolution, index in zip(layer.convolutions, edges, strict=True):
        keywords = {}
        if "self_loops" in OPERATORS[name]:
            index = torch.cat([index, torch.arange(24).expand(2, -1)], dim=1)
        if (norm := OPERATORS[name].get("edge_weight")) is not None:
            degree = torch.bincount(index[1], minlength=24)
            every = 1 + torch.bincount(torch.cat(edge_indices, dim=1)[1], minlength=24)
            symmetric = 1 / (every[index[0]] * every[index[1]]).double().sqrt()
            keywords["edge_weight"] = 1 / degree[index[1]].double() if norm == "mean" else symmetric
        for c in range(3):
            expected[:, c] += convolution((X[:, c], X[:, c]), index, **keywords)
    torch.testing.assert_close(run_dense(layer, X, segment), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "arguments", "match"),
    [
        ("GCNConv", {}, r"model\.block: GCNConv"),
        ("TransformerConv", {"head": 2}, r"model\.operators\.TransformerConv: .*head"),
        ("TransformerConv", {"heads": 4}, r"model\.heads=4"),
        ("SAGEConv", {"edge_weight": "mean"}, r"model\.block: SAGEConv .*edge_weight"),
        ("LEConv", {"edge_weight": "max"}, r"model\.operators\.LEConv\.edge_weight: .*max"),
        ("GENConv", {}, r"model\.operators\.GENConv: .*depends on other nodes"),
        ("GATv2Conv", {"dropout": 0.5}, r"model\.operators\.GATv2Conv: .*chance"),
        ("SAGEConv", {"aggr": "lstm"}, r"SAGEConv"),
        ("NNConv", {}, r"model\.operators\.NNConv: "),
        ("MessagePassin", {}, r"model\.block=MessagePassin"),
    ],
)
def test_what_cannot_run_is_refused(name: str, arguments: dict[str, Any], match: str, make_layer: MakeLayer) -> None:
    with pytest.raises(ConfigError, match=match):
        make_layer(name, operators={name: arguments})
