"""Whole trainings: their files, determinism, the epoch that is kept, averaged weights, and head finetuning."""

import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import hlorank
from hlorank.compute import ComputeError
from hlorank.config import ConfigError
from hlorank.data.collection import Collection
from hlorank.featurize.features import TileFeatures
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.files import SPEC, read_json
from hlorank.metrics import kendall_tau
from hlorank.models.cost_model import CostModel
from hlorank.models.encoder import PiecewiseLinear
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.scoring import score_configurations
from hlorank.models.serialization import load_model
from hlorank.stages.train import train
from hlorank.training import setup as training_setup
from hlorank.training.fit import initial_model
from hlorank.training.prepare import prepare
from hlorank.training.process_group import ALONE
from hlorank.training.ranking_module import RankingModule
from tests.sections import featurize_config
from tests.training.training_helpers import CPU, WEIGHTS, History, Runs, Settings, open_graphs, validate_with


def tau_of(model: CostModel, graph: GraphInputs) -> float:
    rows, labels = graph.targets
    return kendall_tau(score_configurations(model, graph, rows, 2**30), labels)


@pytest.mark.parametrize(
    ("collection", "method"),
    [("layout:synthetic:random", "full"), ("layout:synthetic:random", "gst"), ("tile:synthetic", "full")],
)
def test_the_files_of_a_training(
    collection: str, method: str, settings: Settings, tmp_path: Path, history: History, runs: Runs
) -> None:
    config = settings(collection=collection, method=method, model__dropout=0.3, model__block="[sage,dropout]")
    best = train(config, tmp_path / "model")
    (model,), spec = load_model(tmp_path / "model", CPU)
    names = ["history.csv", "run.json", "spec.json", WEIGHTS]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == names
    assert (spec.version, spec.collection, spec.method) == (hlorank.__version__, collection, method)
    assert spec.whole_graph == (spec.partition_fingerprint == "") == (method == "full")
    assert (spec.steps, spec.model) == (12, config.model)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    rows = history(tmp_path / "model")
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert best == pytest.approx(max(float(row["valid_kendall_tau"]) for row in rows))
    graphs = open_graphs(config, whole=method == "full")
    taus = [tau_of(model, graphs.open("valid", name)) for name in graphs.store.trainable("valid")]
    assert best == pytest.approx(np.mean(taus)), "validation scores as the model does, without dropout"
    assert not list((tmp_path / "state" / "training").iterdir())  # no checkpoints are left
    (run,) = runs(config)
    assert json.loads((tmp_path / "model" / "run.json").read_text()) == {
        "run_id": run.info.run_id,
        "tracking_uri": config.tracking.uri,
        "experiment": None,
        "model": read_json(tmp_path / "model" / SPEC)["spec_sha256"],
        **{name: version for name, version in run.data.tags.items() if name.startswith("libraries.")},
    }


def flat(state: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in state.values()])


def averages(kind: str, raw: list[Tensor], steps: int) -> list[Tensor]:
    """Return the average of the weights after each of the steps that were taken."""
    if kind == "swa":  # until half of the training the weights themselves; then the mean over them and what follows
        first = steps // 2 - 1
        return [*raw[:first], *(torch.stack(raw[first : end + 1]).mean(dim=0) for end in range(first, len(raw)))]
    average = raw[:1]
    for weights in raw[1:]:
        average.append(0.75 * average[-1] + 0.25 * weights)
    return average if kind == "ema" else raw


def test_the_best_epoch_is_kept_with_the_weights_that_were_validated(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be averaged, which touches no weight that is trained on."""
    raw: list[Tensor] = []

    def record(self: RankingModule, *_: Any) -> None:
        if self.global_step > len(raw):
            raw.append(flat(self.model.state_dict()).clone())

    monkeypatch.setattr(RankingModule, "on_train_batch_end", record)
    seen, last = validate_with(monkeypatch, [0.1, 0.3, 0.7, 0.4, 0.2, 0.1]), dict[str, Tensor]()
    for kind in ("none", "ema", "swa"):
        raw.clear()
        seen.clear()
        values = {"trainer__averaging": kind, "trainer__averaging_decay": 0.75, "trainer__graphs_per_step": 2}
        best = train(settings(**values, trainer__max_epochs=6, trainer__patience=2), tmp_path / kind)
        assert best == pytest.approx(0.7)
        assert list(seen) == [0, 1, 2, 3, 4]  # and not the sixth: two epochs without a better one
        (model,), spec = load_model(tmp_path / kind, CPU)
        assert (spec.steps, len(raw)) == (20, 20)
        expected = averages(kind, raw, steps=24)
        for epoch, state in seen.items():
            torch.testing.assert_close(flat(state), expected[4 * epoch + 3], rtol=1e-5, atol=1e-7)
        assert torch.equal(flat(model.state_dict()), flat(seen[2]))
        assert not torch.equal(flat(seen[2]), flat(seen[4]))
        last[kind] = raw[-1]
    assert torch.equal(last["ema"], last["none"])
    assert torch.equal(last["swa"], last["none"])


@pytest.mark.parametrize("averaging", ["none", "ema"])
def test_finetuning_trains_the_head_alone(averaging: str, settings: Settings, tmp_path: Path) -> None:
    """The encoder of gst_ef is in the end bit-equal to that of gst_e, and the head is not."""
    weights = {}
    for method in ("gst_e", "gst_ef"):
        train(settings(method=method, trainer__patience=9, trainer__averaging=averaging), tmp_path / method)
        weights[method] = load_file(tmp_path / method / WEIGHTS)
    changed = {name for name, value in weights["gst_e"].items() if not torch.equal(value, weights["gst_ef"][name])}
    assert changed
    assert all(name.startswith("0.head.") for name in changed)


def test_a_training_starts_with_the_weights_of_a_pretrained_model_of_the_same_features(
    settings: Settings, tiny_collections: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "pretrained"
    train(settings(ensemble__seeds=2), folder)
    pretrained, spec = load_model(folder, CPU)
    setup, own = (prepare(settings(ensemble__seeds=3, **paths), ALONE) for paths in ({"paths__pretrained": folder}, {}))
    for number, member in enumerate(setup.members):
        expected, found = pretrained[number % 2].state_dict(), initial_model(setup, member).state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in found.items())
    assert setup.key != own.key
    collection, other = Collection.parse("layout:synthetic:random"), tmp_path / "other" / "layout/synthetic/random"
    featurize_collection(
        tiny_collections / "raw", collection, featurize_config(opcode_width=16, scaling="minmax"), other
    )
    places = {"paths__pretrained": folder, "paths__features": tmp_path / "other"}
    for refused in (places, {"paths__pretrained": folder, "model__width": 16}):
        with pytest.raises(ConfigError, match=r"^paths\.pretrained="):
            prepare(settings(method="full", **refused), ALONE)
    featurize_collection(tiny_collections / "raw", collection, spec.features, other)
    prepare(settings(method="full", **places), ALONE)


def test_bins_of_tiles_are_quantiles_of_train(settings: Settings, tmp_path: Path) -> None:
    config = settings(collection="tile:synthetic", method="full", model__tile_bins=4)
    train(config, tmp_path / "model")
    ((model,), _), store = load_model(tmp_path / "model", CPU), open_graphs(config).store
    tiles = [store.open("train", name).configurations for name in store.trainable("train")]
    read = np.concatenate([some.feat for some in tiles if isinstance(some, TileFeatures)])
    assert all(len(some.feat) <= 100 for some in tiles if isinstance(some, TileFeatures))
    expected = np.quantile(read, [0, 0.25, 0.5, 0.75, 1], axis=0)
    np.testing.assert_allclose(cast("PiecewiseLinear", model.encoder.configuration[0]).edges, expected, rtol=1e-6)


def test_a_training_that_diverges_ends_with_its_best_epoch_or_in_one_line(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Runs, history: History
) -> None:
    diverging = settings(trainer__learning_rate=1e30)
    with pytest.raises(ComputeError, match=r"^epoch 1: .* trainer.learning_rate=1e\+30; "):
        train(diverging, tmp_path / "model")
    with monkeypatch.context() as patched:
        patched.setattr(training_setup, "rankable_graphs", lambda *_: [])
        with pytest.raises(ComputeError, match=r"^epoch 1: "):
            train(diverging, tmp_path / "model")
    assert {run.info.status for run in runs(diverging)} == {"FAILED"}
    validate_with(monkeypatch, [0.25, math.nan, 0.5])
    assert train(settings(), tmp_path / "model") == 0.25
    assert (len(history(tmp_path / "model")), runs(diverging)[0].info.status) == (1, "FINISHED")


def test_nothing_to_validate_on(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture, without_valid: None, history: History
) -> None:
    config = settings(trainer__max_epochs=6, trainer__patience=2, trainer__learning_rate=1.0)
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
    config = settings(trainer__max_epochs=4, trainer__steps_per_epoch=40, trainer__configs_per_step=20, model__width=16)
    train(config, tmp_path / "model")
    ((model,), _), graphs = load_model(tmp_path / "model", CPU), open_graphs(config)
    assert min(tau_of(model, graphs.open("train", name)) for name in graphs.store.graphs("train")) > 0.4
