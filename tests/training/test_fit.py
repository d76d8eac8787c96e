"""Whole trainings: their files, determinism, the epoch that is kept, and mistakes that are reported first."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from mlflow.entities import Run

import hlorank
from hlorank.config import Config, ConfigError
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import TileFeatures
from hlorank.files import SPEC, read_json
from hlorank.metrics import kendall_tau
from hlorank.models.cost_model import CostModel
from hlorank.models.encoder import PiecewiseLinear
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.scoring import score_configurations
from hlorank.models.serialization import load_model
from hlorank.stages.train import train
from tests.training.training_helpers import DROPOUT, WEIGHTS, validate_with

Settings = Callable[..., Config]
History = Callable[[Path], list[dict[str, str]]]
Runs = Callable[[Config], list[Run]]
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("collection", "method"),
    [("layout:synthetic:random", "full"), ("layout:synthetic:random", "gst"), ("tile:synthetic", "full")],
)
def test_the_files_of_a_training(
    collection: str, method: str, settings: Settings, tmp_path: Path, history: History, runs: Runs
) -> None:
    config = settings(collection=collection, method=method)
    best = train(config, tmp_path / "model")
    (model,), spec = load_model(tmp_path / "model", CPU)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "history.csv",
        "run.json",
        "spec.json",
        WEIGHTS,
    ]
    assert (spec.version, spec.collection, spec.method) == (hlorank.__version__, collection, method)
    assert spec.whole_graph == (spec.partition_fingerprint == "") == (method == "full")
    assert (spec.steps, spec.model) == (12, config.model)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    rows = history(tmp_path / "model")
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert best == pytest.approx(max(float(row["valid_kendall_tau"]) for row in rows))
    assert not list((tmp_path / "state" / "training").iterdir())  # no checkpoints are left
    (run,) = runs(config)
    assert json.loads((tmp_path / "model" / "run.json").read_text()) == {
        "run_id": run.info.run_id,
        "tracking_uri": config.tracking.uri,
        "experiment": None,
        "model": read_json(tmp_path / "model" / SPEC)["spec_sha256"],
    }


def test_the_same_training_gives_the_same_bits(
    settings: Settings, tmp_path: Path, history: History, runs: Runs
) -> None:
    config = settings(**DROPOUT, trainer__sampling="gumbel_top_k", loss="listmle")
    torch.rand(7)  # the state of the global generator has no influence
    first = train(config, tmp_path / "first")
    torch.rand(3)
    assert train(config, tmp_path / "second") == first
    assert (tmp_path / "second" / WEIGHTS).read_bytes() == (tmp_path / "first" / WEIGHTS).read_bytes()
    assert history(tmp_path / "second") == history(tmp_path / "first")
    assert len(runs(config)) == 2
    train(settings(**DROPOUT, trainer__sampling="gumbel_top_k", loss="listmle", seed=1), tmp_path / "other")
    assert (tmp_path / "other" / WEIGHTS).read_bytes() != (tmp_path / "first" / WEIGHTS).read_bytes()


@pytest.mark.parametrize("averaging", ["none", "ema", "swa"])
def test_the_best_epoch_is_kept(
    averaging: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the weights that were validated, which may be averaged."""
    seen = validate_with(monkeypatch, [0.1, 0.7, 0.4, 0.3, 0.2])
    config = settings(trainer__max_epochs=5, trainer__patience=2, trainer__averaging=averaging)
    best = train(config, tmp_path / "model")
    assert best == pytest.approx(0.7)
    assert list(seen) == [0, 1, 2, 3]  # and not the fifth: two epochs without a better one
    (model,), spec = load_model(tmp_path / "model", CPU)
    assert all(torch.equal(value, seen[1][name]) for name, value in model.state_dict().items())
    assert any(not torch.equal(value, seen[3][name]) for name, value in model.state_dict().items())
    assert spec.steps == 16


def test_nothing_to_train_on(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    history: History,
    runs: Runs,
) -> None:
    monkeypatch.setattr(FeatureStore, "trainable", lambda self, split: [])
    config = settings()
    with caplog.at_level(logging.WARNING):
        assert train(config, tmp_path / "model") is None
    assert "no graph to train on" in caplog.text
    (model,), spec = load_model(tmp_path / "model", CPU)
    assert spec.steps == 0
    torch.manual_seed(config.seed)
    initial = CostModel(config.model, model.sizes, config.segments.aggregation)
    initial.encoder.start_opcodes(spec.features.opcode_embedding)
    for name, value in initial.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    assert history(tmp_path / "model") == []
    (run,) = runs(config)
    assert (run.info.status, run.data.tags["trained"]) == ("FINISHED", "False")


def test_bins_of_tiles_are_quantiles_of_train(
    settings: Settings, open_graphs: Callable[..., GraphLoader], tmp_path: Path
) -> None:
    config = settings(collection="tile:synthetic", method="full", model__tile_bins=4)
    train(config, tmp_path / "model")
    ((model,), _), store = load_model(tmp_path / "model", CPU), open_graphs(config).store
    tiles = [store.open("train", name).configurations for name in store.trainable("train")]
    read = np.concatenate([some.feat for some in tiles if isinstance(some, TileFeatures)])
    assert all(len(some.feat) <= 100 for some in tiles if isinstance(some, TileFeatures))
    expected = np.quantile(read, [0, 0.25, 0.5, 0.75, 1], axis=0)
    np.testing.assert_allclose(cast("PiecewiseLinear", model.encoder.configuration[0]).edges, expected, rtol=1e-6)


def test_nothing_to_validate_on(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture, without_valid: None, history: History
) -> None:
    config = settings(trainer__max_epochs=6, trainer__patience=2, trainer__learning_rate=1.0)
    with caplog.at_level(logging.WARNING):
        assert train(config, tmp_path / "model") is None
    assert "no graph of valid can be ranked" in caplog.text
    rows = history(tmp_path / "model")
    assert {row["valid_kendall_tau"] for row in rows} == {""}
    losses = [float(row["train_loss"]) for row in rows]
    assert len(rows) == min(6, losses.index(min(losses)) + 1 + 2)  # it stops by the loss


def test_mixed_precision(settings: Settings, tmp_path: Path, history: History) -> None:
    train(settings(trainer__precision="bf16-mixed"), tmp_path / "mixed")
    train(settings(), tmp_path / "single")
    losses = [[float(row["train_loss"]) for row in history(tmp_path / name)] for name in ("mixed", "single")]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert losses[0] != losses[1]
    (model,), _ = load_model(tmp_path / "mixed", CPU)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_training_learns(settings: Settings, tmp_path: Path, without_valid: None) -> None:
    """The graphs that it was trained on are ranked far better than at random."""
    config = settings(trainer__max_epochs=4, trainer__steps_per_epoch=40, trainer__configs_per_step=20, model__width=16)
    train(config, tmp_path / "model")
    (model,), _ = load_model(tmp_path / "model", CPU)
    path = Path("layout/synthetic/random")
    graphs = GraphLoader(Path(config.paths.features) / path, Path(config.paths.segments) / path)
    taus = []
    for name in graphs.store.graphs("train"):
        graph = graphs.open("train", name)
        rows, labels = graph.features.targets()
        taus.append(kendall_tau(score_configurations(model, graph, rows, 2**30), labels))
    assert min(taus) > 0.4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_refused(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.accelerator=cuda"):
        train(settings(trainer__accelerator="cuda"), tmp_path / "model")
