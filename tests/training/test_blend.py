"""Baselines that join cost models: fitted and saved after them, and scored with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from hlorank.config import Config
from hlorank.files import DataError, read_json, write_json
from hlorank.metrics import kendall_tau
from hlorank.models.baselines.baseline import load_joined
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.serialization import load_model, sealed
from hlorank.models.trained_model import load_trained
from hlorank.stages.train import train
from hlorank.training.sampling import validation_targets
from tests.training.training_helpers import WEIGHTS

Settings = Callable[..., Config]
OpenGraphs = Callable[..., GraphLoader]
CPU = torch.device("cpu")
MEMORY = 2**28
NAMES = ["linear_ranking", "gradient_boosting", "linear_ranking"]


def standardized(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((scores - scores.mean()) / scores.std())


def test_models_and_baselines_are_saved_and_scored_together(
    settings: Settings, open_graphs: OpenGraphs, tmp_path: Path
) -> None:
    config = settings(ensemble__baselines=f"[{','.join(NAMES)}]")
    tau = train(config, tmp_path / "joined")
    train(settings(), tmp_path / "alone")
    weights = load_file(tmp_path / "joined" / WEIGHTS)
    for name, value in load_file(tmp_path / "alone" / WEIGHTS).items():
        assert torch.equal(weights.pop(name), value)
    assert {tuple(name.split(".")[:2]) for name in weights} == {(name, str(i)) for i, name in enumerate(NAMES)}
    assert not torch.equal(weights["linear_ranking.0.weight"], weights["linear_ranking.2.weight"])  # of two seeds

    (_,), spec = load_model(tmp_path / "joined", CPU)
    assert (spec.members, spec.baselines) == (1, NAMES)
    scorer, model = load_trained(tmp_path / "joined", MEMORY), load_trained(tmp_path / "alone", MEMORY)
    graphs, taus, parts = open_graphs(config), [], []
    for name in graphs.store.trainable("valid"):
        features, cut = graphs.store.open("valid", name), graphs.open_partition("valid", name)
        baselines = [one.score(features, MEMORY) for one in load_joined(tmp_path / "joined", spec)]
        every = [model.score(features, cut), *baselines]
        expected = np.average([standardized(one) for one in every], axis=0, weights=spec.weights)
        np.testing.assert_allclose(scorer.score(features, cut), expected, atol=1e-6)
        rows, labels = validation_targets(features, config.trainer.validation_configs)
        joined = np.average([standardized(one[rows]) for one in every], axis=0, weights=spec.weights)
        taus.append(kendall_tau(joined, labels))
        parts.append([kendall_tau(one[rows], labels) for one in every])
    assert tau == pytest.approx(np.mean(taus))
    alone = np.mean(parts, axis=0)
    np.testing.assert_allclose(spec.weights, np.exp((alone - alone.max()) / 0.03))


def test_without_valid_they_join_too_with_equal_weights(
    settings: Settings, open_graphs: OpenGraphs, without_valid: None, tmp_path: Path
) -> None:
    config = settings(ensemble__baselines="[linear_ranking]")
    assert train(config, tmp_path / "model") is None
    path = tmp_path / "model" / "spec.json"
    spec = read_json(path)
    assert (spec["baselines"], spec["weights"]) == (["linear_ranking"], [1, 1])
    graphs = open_graphs(config)
    (name, *_) = graphs.store.trainable("train")
    features, cut = graphs.store.open("train", name), graphs.open_partition("train", name)
    scores = []
    for weights in ([1.0, 1.0], [], [1.0, 3.0]):
        write_json(path, sealed({**spec, "weights": weights}))
        scores.append(load_trained(tmp_path / "model", MEMORY).score(features, cut))
    np.testing.assert_array_equal(scores[0], scores[1])
    assert not np.allclose(scores[0], scores[2])


def test_arrays_that_do_not_fit_are_refused(settings: Settings, tmp_path: Path) -> None:
    train(settings(ensemble__baselines="[linear_ranking]"), tmp_path / "model")
    path = tmp_path / "model" / "spec.json"
    spec = read_json(path)
    wrong: list[dict[str, list[Any]]] = [
        {"baselines": ["xgboost"]},
        {"baselines": ["no_baseline"]},
        {"baselines": [], "weights": []},
    ]
    for changed in [*wrong, {"weights": [1.0, 0.0]}, {"weights": [1.0, 1.0, 1.0]}]:
        write_json(path, sealed({**spec, **changed}))
        with pytest.raises(DataError):
            load_trained(tmp_path / "model", MEMORY)
