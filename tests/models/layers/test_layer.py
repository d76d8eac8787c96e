"""Known values of single layers, dropout, edges in pieces, joins and widths."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hlorank.config import ConfigError
from hlorank.models.compression.declarations import EdgeForm, EdgeKind, Norm
from hlorank.models.compression.segment import Segment
from hlorank.models.layers.layer import Dropout, InstanceNorm
from hlorank.models.layers.message_passing import EdgeWise
from hlorank.models.layers.registry import widths
from hlorank.models.scoring import score_configurations
from tests.graphs import make_inputs, make_model
from tests.models.dense_form import GATE, ROWS, colouring_of, embed_rows, make_layer, run_dense


@pytest.mark.parametrize("name", ["sage", "gcn", "GINConv", "gatv2", "reproductions:EdgeMlp"])
def test_no_node_depends_on_configurations_before_they_join(name: str) -> None:
    model, graph = make_model(block=[name], join="late"), make_inputs()
    rows = [graph.plan({0: np.array(chosen)}, model.recipe).states for chosen in ([3], [3, 0, 7])]
    assert rows[0] == rows[1] > 0


def test_equal_nodes_become_0_by_instance_norm(segment: Segment) -> None:
    x = 3 + 5 * torch.randn(24, 3, 6, dtype=torch.float64)
    for equal in (x[:1], x[:1].expand(24, -1, -1)):
        torch.testing.assert_close(run_dense(InstanceNorm(6), equal, segment), torch.zeros_like(equal))


def test_one_mask_of_dropout_serves_all_configurations_in_both_forms(segment: Segment) -> None:
    layer, x = Dropout(0.5), torch.randn(24, 3, 16, dtype=torch.float64)
    mask = run_dense(layer, x, segment) / x
    torch.testing.assert_close(mask, mask[:, :1].expand(-1, 3, -1))
    assert {round(value, 9) for value in mask.flatten().tolist()} == {0.0, 2.0}
    assert 0.3 < (mask == 0).double().mean() < 0.7
    assert torch.equal(run_dense(layer.eval(), x, segment), x)

    model = make_model(block=["sage", "dropout", "residual"], dropout=0.5)
    compressed = replace(model.recipe, share=False)
    graph, results = make_inputs(segments=3, nodes=60), []
    for recipe, seed in ((compressed, 1), (replace(compressed, compress=False), 1), (compressed, 2)):
        model.recipe = recipe
        torch.manual_seed(seed)
        results.append(torch.cat([embed_rows(model, graph, j, ROWS) for j in range(3)]))
    torch.testing.assert_close(results[0], results[1])
    assert (results[0] - results[2]).abs().max() > 0.01


class Recorded(EdgeWise):
    """A layer that sums over neighbours, and records the number of edges that are in memory at once."""

    def __init__(self) -> None:
        super().__init__(4, EdgeKind(Norm.SUM, "separate", form=EdgeForm.PIECES))
        self.pieces: list[tuple[int, int]] = []

    def combine(self, target: Tensor, source: Tensor, row: Tensor, rows: int) -> Tensor:
        self.pieces.append((len(target), rows))
        assert len(target) == len(source) == len(row)
        assert row.numel() == 0 or (row.min() == 0 and row.max() == rows - 1 and (row.diff() >= 0).all())
        return source.new_zeros(rows, 4).index_add(0, row, target + source)


@pytest.mark.parametrize("segments", [1, 5, 40])
def test_edges_are_computed_in_pieces_and_again_for_gradients(segments: int) -> None:
    (segment, *_) = make_inputs(nodes=40, segments=segments).segments
    layer, x = Recorded().double(), torch.randn(segment.nodes, 2, 4, dtype=torch.float64)
    result = run_dense(layer, x, segment)
    pieces = list(layer.pieces)
    entries = 2 * (segment.nodes + 2 * len(segment.edges))
    assert [sum(column) for column in zip(*pieces, strict=True)] == [entries, 2 * segment.nodes]
    assert len(pieces) == entries // (2 * segment.nodes)
    torch.autograd.backward(result.sum())
    assert sorted(layer.pieces) == sorted(2 * pieces)


def test_nodes_without_edges_to_them_get_no_more_colours(segment: Segment) -> None:
    """Nodes that are not configurable keep their colours, which a residual connection needs."""
    before, free = colouring_of(segment, 5, share=True), segment.configurable
    edges = make_layer("reproductions:EdgeMlp").edges
    assert edges is not None
    after = before.refine(segment.edges.neighbourhood(edges), segment.k_hop_prefix(1))
    assert len(set(after.colour_of[free:].flat)) == len(set(before.colour_of[free:].flat))
    assert (after.colour_of[free:] == after.colour_of[free:, :1]).all()


def test_features_that_round_to_zero_give_numbers(segment: Segment) -> None:
    layer = make_layer("linear_attention").float()
    with torch.no_grad():
        layer.inputs.weight.fill_(-100.0)
    x = torch.ones(24, 3, 6, requires_grad=True)
    result = run_dense(layer, x, segment)
    torch.testing.assert_close(result, layer.output.bias.expand_as(result))
    torch.autograd.backward(result.sum())
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    "name", ["linear", "gcn", "TransformerConv", "gatv2", "instance_norm", "configuration_attention", GATE]
)
def test_any_bound_of_memory(name: str) -> None:
    model, rows, cut = make_model(block=["linear", name], pooling=["sum"]), np.arange(5), make_inputs(segments=3)
    scores = score_configurations(model, cut, rows, 2**30)
    np.testing.assert_allclose(score_configurations(model, cut, rows, 1), scores, rtol=1e-9)


def test_widths_before_a_layer_that_widens_are_narrower() -> None:
    stem = ["instance_norm", GATE, "gelu", "linear", GATE]
    config = make_model(width=8).config
    assert widths(stem, config, "model.stem") == [4, 4, 8, 8, 4, 8]
    assert widths(["sage", "gelu", "residual"], config, "model.block") == [8, 8, 8, 8]
    assert make_model(width=8, stem=stem).encoder.numeric.out_features == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"block": [GATE]},
        {"block": ["gelu", GATE, "linear"]},
        {"block": ["linear", "residual", GATE]},
        {"stem": ["linear", "residual", GATE]},
        {"stem": [GATE], "join": "late"},
        {"width": 7, "block": ["linear", GATE]},
    ],
)
def test_widths_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"model\.(block|stem): .*widens|model\.width=7: {GATE}"):
        make_model(**{"width": 8, **changes})
