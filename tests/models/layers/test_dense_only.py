"""Layers with a dense form only: one of each mixing, and a convolution of PyTorch Geometric, work everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

from hlorank.config import Config, ConfigError
from hlorank.featurize.feature_store import FeatureStore
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_loader import GraphLoader
from hlorank.models.inputs import GraphInputs, Segment
from hlorank.models.layers import registry
from hlorank.models.layers.layer import Layer, Mixing
from hlorank.models.node_states import NodeStates
from hlorank.models.scorer import load_scorer
from hlorank.models.scoring import score_configurations
from hlorank.training.trainer import train

MakeModel = Callable[..., CostModel]
MakeInputs = Callable[..., GraphInputs]


class DenseRow(Layer):
    mixing = Mixing.ROW

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor, _: Segment) -> Tensor:
        result: Tensor = self.linear(x)
        return result


class DenseSums(DenseRow):
    mixing = Mixing.NEIGHBOURS

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        user, operand = torch.from_numpy(segment.edges.ends).T
        return super().forward(x, segment).index_add(0, user, x[operand]).index_add(0, operand, x[user])


class DenseTransformer(Layer):
    mixing = Mixing.NEIGHBOURS

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = TransformerConv(width, width)

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        nodes, configurations, width = x.shape
        user, operand = torch.from_numpy(segment.edges.ends).T
        edges = torch.stack([torch.cat([operand, user]), torch.cat([user, operand])])
        # One graph of all configurations: node v under configuration c is number c * nodes + v.
        copies = edges[:, None] + nodes * torch.arange(configurations)[:, None]
        result: Tensor = self.convolution(x.transpose(0, 1).reshape(-1, width), copies.flatten(1))
        return result.view(configurations, nodes, width).transpose(0, 1)


class DenseCentred(DenseRow):
    mixing = Mixing.SEGMENT

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        return super().forward(x, segment) - x.mean(dim=0)


class DenseCompared(DenseRow):
    mixing = Mixing.CONFIGURATIONS

    def forward(self, x: Tensor, segment: Segment) -> Tensor:
        return super().forward(x, segment) - x.mean(dim=1, keepdim=True)


DENSE_ONLY: Mapping[str, type[Layer]] = {
    "dense_row": DenseRow,
    "dense_sums": DenseSums,
    "dense_transformer": DenseTransformer,
    "dense_centred": DenseCentred,
    "dense_compared": DenseCompared,
}
every_layer = pytest.mark.parametrize("name", DENSE_ONLY)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    added = {name: lambda config, layer=layer: layer(config.width) for name, layer in DENSE_ONLY.items()}
    monkeypatch.setattr(registry, "LAYERS", {**registry.LAYERS, **added})


@every_layer
def test_the_compressed_form_is_the_dense_form(
    name: str, segment: Segment, make_states: Callable[..., NodeStates]
) -> None:
    layer = DENSE_ONLY[name](6).double()
    states = make_states(segment, 4, 6, share=True)
    after = layer.forward_compressed(states, segment)
    assert layer.dense_only
    assert after.colouring.is_identity
    torch.testing.assert_close(after.dense(), layer(states.dense(), segment))


@every_layer
@pytest.mark.parametrize("join", ["early", "late", "every"])
@pytest.mark.parametrize("stem", [[], ["dense"]])
def test_embeddings_and_gradients_equal_the_dense_form(
    name: str, join: str, stem: list[str], make_model: MakeModel, make_inputs: MakeInputs
) -> None:
    model = make_model(join=join, stem=[name for _ in stem], block=["sage", name, "gelu", "residual"])
    graph, rows = make_inputs(segments=2), np.array([3, 0, 3, 7])
    results = []
    for compress in (True, False):
        model.compress = compress
        embedded = torch.cat([model.embed_rows(graph, j, rows) for j in range(2)])
        results.append(
            (embedded, torch.autograd.grad(embedded.square().sum(), list(model.parameters()), allow_unused=True))
        )
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@every_layer
def test_scores_do_not_depend_on_memory(name: str, make_model: MakeModel, make_inputs: MakeInputs) -> None:
    model, graph, rows = make_model(block=["sage", name, "gelu"]), make_inputs(segments=2), np.arange(12)
    assert all(model.max_varied_nodes(segment) == segment.nodes for segment in graph.segments)
    scores = score_configurations(model, graph, rows, 2**30)
    np.testing.assert_allclose(score_configurations(model, graph, rows, 1), scores, rtol=1e-9)


@every_layer
def test_halos(name: str, make_model: MakeModel, make_inputs: MakeInputs) -> None:
    """Segments with a halo of as many hops as there are layers give the embedding of the whole graph."""
    model, rows = make_model(block=[name], pooling=["sum"]), np.arange(5)
    whole, cut = make_inputs(), make_inputs(segments=3, halo=2)
    if model.mixing >= {Mixing.SEGMENT}:
        with pytest.raises(ConfigError, match=r"dense_centred.*partition\.halo"):
            model.embed_rows(cut, 0, rows)
        return
    total = torch.stack([model.embed_rows(cut, j, rows) for j in range(3)]).sum(dim=0)
    torch.testing.assert_close(total, model.embed_rows(whole, 0, rows))


@every_layer
def test_trained_models_rank(name: str, settings: Callable[..., Config], tmp_path: Path) -> None:
    config = settings(model__block=f"[{name},gelu,residual]", trainer__max_epochs=1)
    assert train(config, tmp_path / "model") is not None
    store = FeatureStore(Path(config.paths.features) / "layout/synthetic/random")
    graph = store.open("valid", store.graphs("valid")[0])
    scorer = load_scorer(tmp_path / "model", 2**30)
    graphs = GraphLoader(store.root, Path(config.paths.segments) / "layout/synthetic/random", torch.device("cpu"))
    scores = scorer.score(graph, graphs.cut("valid", graph.name))
    assert scores.shape == (graph.distinct,)
    assert len(np.unique(scores)) > 1
