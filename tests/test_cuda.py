"""Training, evaluation and ranking on a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.utils._pytree import tree_map_only

from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.evaluation.evaluate import evaluate
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.fetch.origins import fetch
from hlorank.models.cost_model import POOLINGS
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.layers.registry import LAYERS
from hlorank.models.plan_tensors import tensors
from hlorank.models.scoring import load_trained
from hlorank.partition.segment_store import partition_collection
from hlorank.stages.train import train
from hlorank.training.gst.embedding_table import EmbeddingTable
from hlorank.training.methods import METHODS
from tests.graphs import make_inputs, make_model
from tests.training.training_helpers import DROPOUT, STAGE, WEIGHTS, start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA, and PyTorch finds no device"),
]
Settings = Callable[..., Config]
COLLECTION = "layout/synthetic/random"
ACCELERATOR = "cuda"


@pytest.mark.parametrize("layer", [*sorted(LAYERS), "GATv2Conv", "TransformerConv"])
def test_nothing_waits_for_the_gpu(layer: str) -> None:
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
    cut = GraphLoader(store.root, Path(config.paths.segments) / COLLECTION).open_partition("valid", graph.name)
    scores = [load_trained(tmp_path / "model", 2**30, place).score(graph, cut) for place in ("cpu", "cuda", "auto")]
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(scores[2], scores[1])
    metrics = evaluate(config, tmp_path / "model", tmp_path / "report")
    assert -1 <= metrics["valid/kendall_tau"] <= 1


def test_one_rank_of_torchrun_trains_as_a_process_alone(settings: Settings, tmp_path: Path) -> None:
    """DDP and NCCL do not change the weights, but for the order of additions on a GPU."""
    config = settings(**DROPOUT, trainer__accelerator=ACCELERATOR, output=tmp_path / "rank")
    train(config, tmp_path / "alone")
    started = start(tmp_path, config, "-m", "torch.distributed.run", "--nproc-per-node", "1", *STAGE)
    _, errors = started.communicate()
    assert started.returncode == 0, errors
    alone, rank = (load_file(tmp_path / name / WEIGHTS) for name in ("alone", "rank"))
    assert alone.keys() == rank.keys()
    for name, weights in alone.items():
        torch.testing.assert_close(rank[name], weights, rtol=1e-3, atol=1e-5)


def large_graph(settings: Settings, folder: Path, nodes: int, configurable: int) -> Config:
    """Generate a graph and cut it into segments of 1,000 nodes; return the configuration of a training on it."""
    sizes = {"train": 1, "valid": 0, "test": 0, "min_nodes": nodes, "max_nodes": nodes, "configurations": 64}
    config = settings(
        **{f"data__synthetic__{name}": size for name, size in {**sizes, "configurable_nodes": configurable}.items()},
        **{f"paths__{name}": folder / name for name in ("raw", "features", "segments")},
        partition__max_nodes=1000,
        method="gst_e",
        model__width=256,
        trainer__accelerator=ACCELERATOR,
        trainer__configs_per_step=16,
        trainer__max_epochs=1,
        trainer__memory_bytes=10**9,
    )
    collection = Collection.parse(COLLECTION)
    features, segments = folder / "features" / COLLECTION, folder / "segments" / COLLECTION
    fetch(collection, config.data, folder / "raw" / COLLECTION)
    featurize_collection(folder / "raw", collection, config.featurize, features)
    partition_collection(features, config.partition, segments)
    return config


def test_steps_on_a_large_graph_take_less_than_a_gigabyte(settings: Settings, tmp_path: Path) -> None:
    """All that PyTorch allocates on the GPU, with model, optimizer and table, stays below `trainer.memory_bytes`."""
    config = large_graph(settings, tmp_path, nodes=50_000, configurable=3_000)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    train(config, tmp_path / "model")
    assert torch.cuda.max_memory_allocated() - before < 10**9


def test_bf16_ranks_as_float32(settings: Settings, tmp_path: Path) -> None:
    """The mean tau of best_layout over five seeds differs by less than the taus of float32 differ between seeds."""

    def taus(precision: str) -> list[float]:
        fixed = {"experiment": "best_layout", "ensemble__seeds": 1, "ensemble__baselines": [], "model__blocks": 1}
        steps = {"trainer__max_epochs": 4, "trainer__steps_per_epoch": 10, "trainer__graphs_per_step": 1}
        steps["trainer__patience"] = 9
        place = {"trainer__accelerator": ACCELERATOR, "trainer__precision": precision}
        runs = {tmp_path / f"{precision}-{seed}": settings(**fixed, **steps, **place, seed=seed) for seed in range(5)}
        found = [train(config, folder) for folder, config in runs.items()]
        return [tau for tau in found if tau is not None]

    plain, rounded = taus("32-true"), taus("bf16-mixed")
    assert len(plain) == len(rounded) == 5
    assert abs(np.mean(rounded) - np.mean(plain)) < max(plain) - min(plain)
