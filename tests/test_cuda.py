"""Training, evaluation and ranking on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map_only

from hlorank.config import Config
from hlorank.evaluation.evaluate_model import evaluate
from hlorank.featurize.feature_store import FeatureStore
from hlorank.models.cost_model import POOLINGS, CostModel
from hlorank.models.graph_loader import GraphLoader
from hlorank.models.inputs import GraphInputs
from hlorank.models.layers.registry import LAYERS
from hlorank.models.plan_tensors import tensors
from hlorank.models.scorer import load_scorer
from hlorank.training.gst.embedding_table import EmbeddingTable
from hlorank.training.gst.methods import METHODS
from hlorank.training.trainer import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA, and PyTorch finds no device"),
]
Settings = Callable[..., Config]
COLLECTION = "layout/synthetic/random"


@pytest.mark.parametrize("layer", [*sorted(LAYERS), "GATv2Conv", "TransformerConv"])
def test_nothing_waits_for_the_gpu(
    layer: str, make_model: Callable[..., CostModel], make_inputs: Callable[..., GraphInputs]
) -> None:
    model = make_model(block=["linear", layer, "residual"], pooling=list(POOLINGS)).eval()
    plan: Any = tensors(make_inputs().plan({0: np.array([3, 0, 3, 7])}, model.recipe), torch.device("cpu"))
    expected = model(plan)
    plan = tree_map_only(torch.Tensor, torch.Tensor.cuda, plan)
    model.cuda()(plan)  # libraries start
    torch.cuda.set_sync_debug_mode("error")
    try:
        embedding = model(plan)
        torch.autograd.backward(embedding.sum())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(embedding.cpu(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_in_every_precision(
    method: str, precision: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices, write = set(), EmbeddingTable.write

    def recorded(self: EmbeddingTable, keys: Any, embeddings: torch.Tensor, step: int) -> None:
        write(self, keys, embeddings, step)
        devices.add(self.read(keys)[0].device.type)

    monkeypatch.setattr(EmbeddingTable, "write", recorded)
    tau = train(
        settings(method=method, trainer__precision=precision, trainer__accelerator="cuda", trainer__workers=1),
        tmp_path / "model",
    )
    assert tau is not None
    assert -1 <= tau <= 1
    assert devices == ({"cuda"} if METHODS[method].others == "table" else set())


def test_a_gpu_gives_the_scores_of_the_cpu(settings: Settings, tmp_path: Path) -> None:
    config = settings(trainer__accelerator="cuda")
    train(config, tmp_path / "model")
    store = FeatureStore(Path(config.paths.features) / COLLECTION)
    graph = store.open("valid", store.graphs("valid")[0])
    cut = GraphLoader(store.root, Path(config.paths.segments) / COLLECTION).cut("valid", graph.name)
    scores = [load_scorer(tmp_path / "model", 2**30, place).score(graph, cut) for place in ("cpu", "cuda", "auto")]
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(scores[2], scores[1])
    metrics = evaluate(config, tmp_path / "model", tmp_path / "report")
    assert -1 <= metrics["valid/kendall_tau"] <= 1
