"""Folders of baselines: loading returns what was saved, and damage is an error with the name of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures
from hlorank.files import SPEC, WEIGHTS, DataError, read_json, sha256_file, write_json
from hlorank.models.baselines.baseline import BASELINES, Baseline, BaselineSpec, load_baseline, save_baseline
from hlorank.models.baselines.copied_bytes import COPY_COLUMNS
from hlorank.models.baselines.pooled_features import changed_column, pooled_columns
from hlorank.models.baselines.predictors import Analytical, Linear, Predictor, RandomRanker, Trees
from hlorank.models.serialization import input_sizes, load_model, sealed
from hlorank.version import __version__
from tests.sections import baseline_config

SETTINGS = baseline_config()


@pytest.fixture
def store(tiny_collections: Path) -> FeatureStore:
    return FeatureStore(tiny_collections / "features/layout/synthetic/random")


@pytest.fixture
def graph(store: FeatureStore) -> GraphFeatures:
    return store.open("valid", store.graphs("valid")[0])


@pytest.fixture
def predictors(store: FeatureStore) -> dict[str, Predictor]:
    """A predictor of each kind, with different scores for different configurations."""
    sizes = input_sizes(store.spec)
    columns, changed = pooled_columns(sizes), changed_column(sizes)
    rng = np.random.default_rng(0)
    stump = Trees(
        root=np.array([0], dtype=np.int32),
        feature=np.array([changed, 0, 0], dtype=np.int32),
        threshold=np.array([0.4, 0, 0]),
        left=np.array([1, 1, 2], dtype=np.int32),
        right=np.array([2, 1, 2], dtype=np.int32),
        value=np.array([0, 1.0, 2.0]),
        base=np.array([0.25]),
    )
    return {
        **dict.fromkeys(("gradient_boosting", "lightgbm", "xgboost"), stump),
        "linear_ranking": Linear(rng.normal(size=columns), np.full(columns, 2.0)),
        "analytical": Analytical(rng.uniform(size=COPY_COLUMNS)),
        "random": RandomRanker(np.array([7])),
        "default_configuration": Linear.of_column(changed, columns),
    }


def spec_of(method: str, store: FeatureStore) -> BaselineSpec:
    return BaselineSpec(
        version=__version__,
        collection="layout:synthetic:random",
        method=method,
        data="0" * 16,
        steps=3,
        features=store.spec,
        settings=SETTINGS,
    )


@pytest.fixture
def saved(store: FeatureStore, predictors: dict[str, Predictor], tmp_path: Path) -> Path:
    save_baseline(tmp_path / "model", predictors["gradient_boosting"], spec_of("gradient_boosting", store))
    return tmp_path / "model"


@pytest.mark.parametrize("method", [*BASELINES, "lightgbm"])  # which earlier versions had
def test_a_loaded_baseline_gives_the_same_scores(
    method: str, predictors: dict[str, Predictor], store: FeatureStore, graph: GraphFeatures, tmp_path: Path
) -> None:
    predictor, spec = predictors[method], spec_of(method, store)
    save_baseline(tmp_path, predictor, spec)
    loaded, loaded_spec = load_baseline(tmp_path)
    assert loaded_spec.model_dump(mode="json") == spec.model_dump(mode="json")
    assert loaded_spec.settings == SETTINGS
    assert type(loaded.predictor) is type(predictor)
    for name, array in vars(predictor).items():
        np.testing.assert_array_equal(getattr(loaded.predictor, name), array, strict=True)
    scores = loaded.score(graph, 2**30)
    assert scores.shape == (graph.distinct,)
    assert len(np.unique(scores)) > 1
    np.testing.assert_array_equal(scores, Baseline(predictor, input_sizes(store.spec)).score(graph, 2**30))
    np.testing.assert_array_equal(loaded.score(graph, 1), scores)
    assert len(loaded.embed(graph)) == graph.distinct
    save_baseline(tmp_path / "again", predictor, spec)
    for name in (WEIGHTS, SPEC):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize(
    ("arrays", "method", "message"),
    [
        ({"other": np.zeros(1)}, "xgboost", "weights: .*'other'"),
        ({"feature": np.full(3, 10**6, dtype=np.int32)}, "xgboost", "feature: "),
        ({}, "linear_ranking", "weights: .*'scale', 'weight'"),
    ],
)
def test_weights_of_something_else(arrays: dict[str, Any], method: str, message: str, saved: Path) -> None:
    save_file({**load_file(saved / WEIGHTS), **arrays}, saved / WEIGHTS)
    digest = {"weights_sha256": sha256_file(saved / WEIGHTS), "method": method}
    write_json(saved / SPEC, sealed(read_json(saved / SPEC) | digest))
    with pytest.raises(DataError, match=rf"weights\.safetensors: {message}"):
        load_baseline(saved)


@pytest.mark.parametrize(
    ("change", "key"), [({"method": "gst"}, "method"), ({"settings": {"leaves": 3}}, r"settings\.learning_rate")]
)
def test_damaged_specs(change: dict[str, Any], key: str, saved: Path) -> None:
    write_json(saved / SPEC, sealed(read_json(saved / SPEC) | change))
    with pytest.raises(DataError, match=rf"model/spec\.json: .*{key}"):
        load_baseline(saved)


def test_a_baseline_is_no_cost_model(saved: Path) -> None:
    with pytest.raises(DataError, match=r"spec\.json: .*partition"):
        load_model(saved, torch.device("cpu"))
