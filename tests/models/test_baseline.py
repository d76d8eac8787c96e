"""Trees as plain arrays, and the folders that hold them: what is saved comes back, and damage is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from hlorank.config import BaselineConfig
from hlorank.featurize.features import GraphFeatures
from hlorank.featurize.store import FeatureStore
from hlorank.io import DataError, read_json, sha256_file, write_json
from hlorank.models.baseline import Baseline, BaselineSpec, Trees, load_baseline, save_baseline
from hlorank.models.folder import SPEC, WEIGHTS, input_sizes, load_model

SETTINGS = BaselineConfig(iterations=3, learning_rate=0.1, leaves=4, min_leaf=1, l2=0.0, rows_per_graph=100)

Saved = tuple[Path, Trees, BaselineSpec]


def make_trees(column: int = 1) -> Trees:
    """x[column] <= 0.5 ? 1 : (x[0] <= -1 ? 10 : 20), then a tree of one leaf, then x[0] <= 3 ? 1000 : 2000."""
    return Trees(
        root=np.array([0, 5, 6], dtype=np.int32),
        feature=np.array([column, 0, 0, 0, 0, 0, 0, 0, 0], dtype=np.int32),
        threshold=np.array([0.5, 0, -1, 0, 0, 0, 3, 0, 0]),
        left=np.array([1, 1, 3, 3, 4, 5, 7, 7, 8], dtype=np.int32),
        right=np.array([2, 1, 4, 3, 4, 5, 8, 7, 8], dtype=np.int32),
        value=np.array([0, 1, 0, 10, 20, 300, 0, 1000, 2000], dtype=np.float64),
        base=np.array([0.25]),
    )


def test_sums_of_trees() -> None:
    x = np.array([[0, 0.5], [-1, 0.75], [4, 0.75]], dtype=np.float32)
    staged = [[0.25, 1.25, 301.25, 1301.25], [0.25, 10.25, 310.25, 1310.25], [0.25, 20.25, 320.25, 2320.25]]
    trees = make_trees()
    trees.check(columns=2)
    np.testing.assert_array_equal(trees.staged(x), staged)
    for count in range(4):
        first = trees.first(count)
        first.check(columns=2)
        np.testing.assert_array_equal(first.staged(x), np.array(staged)[:, : count + 1])
    assert len(trees.first(1).value) == 5
    np.testing.assert_array_equal(Trees.none().staged(x), np.zeros((3, 1)))
    assert trees.staged(x[:0]).shape == (0, 4)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("root", lambda a: a + 5, r"root: expected nodes in 0\.\.8"),
        ("root", lambda a: a - 1, r"root: expected nodes in 0\.\.8"),
        ("feature", lambda a: a + 1, r"feature: expected columns in 0\.\.1, found others, first at 0"),
        ("feature", lambda a: a - 1, "feature: expected columns"),
        ("left", lambda a: a * 0, "left, right: expected later nodes"),  # a cycle
        ("right", lambda a: a + 1, "left, right: expected later nodes"),
        ("value", lambda a: a / 0, "threshold, value: expected finite"),
        ("threshold", lambda a: a * np.nan, "threshold, value: expected finite"),
        ("threshold", lambda a: a[:-1], r"threshold: expected float64 of shape \(9,\), found float64 of shape \(8,\)"),
        ("left", lambda a: a.astype(np.int64), "left: expected int32"),
        ("base", lambda a: a[0], r"base: expected float64 of shape \(1,\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_trees_that_lead_nowhere(name: str, change: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        replace(make_trees(), **{name: change(getattr(make_trees(), name))}).check(columns=2)


@pytest.fixture
def store(tiny_collections: Path) -> FeatureStore:
    return FeatureStore(tiny_collections / "features/layout/synthetic/random")


@pytest.fixture
def graph(store: FeatureStore) -> GraphFeatures:
    return store.open("valid", store.graphs("valid")[0])


@pytest.fixture
def saved(store: FeatureStore, tmp_path: Path) -> Saved:
    spec = BaselineSpec(
        version="1.2.3",
        collection="layout:synthetic:random",
        method="gradient_boosting",
        data="0" * 16,
        steps=3,
        features=store.spec,
        settings=SETTINGS,
    )
    changed = 1 + len(store.spec.opcodes) + 1 + len(store.spec.node_columns.columns) + 18 * 7  # overall
    trees = replace(make_trees(changed), threshold=np.array([0.4, 0, -1, 0, 0, 0, 3, 0, 0]))
    save_baseline(tmp_path / "model", trees, spec)
    return tmp_path / "model", trees, spec


def test_a_loaded_baseline_gives_the_same_scores(saved: Saved, graph: GraphFeatures) -> None:
    folder, trees, spec = saved
    loaded, loaded_spec = load_baseline(folder)
    assert loaded_spec.to_json() == spec.to_json()
    assert loaded_spec.settings == SETTINGS
    for name, array in vars(trees).items():
        np.testing.assert_array_equal(getattr(loaded.trees, name), array, strict=True)
    scores = loaded.score(graph, 2**30)
    assert scores.shape == (graph.distinct,)
    assert len(np.unique(scores)) == 2
    np.testing.assert_array_equal(scores, Baseline(trees, input_sizes(spec.features)).score(graph, 2**30))
    np.testing.assert_array_equal(loaded.score(graph, 1), scores)


def test_files_are_plain_and_equal_ones_are_equal_bytes(saved: Saved, tmp_path: Path) -> None:
    folder, trees, spec = saved
    assert sorted(path.name for path in folder.iterdir()) == [SPEC, WEIGHTS]
    assert json.loads((folder / SPEC).read_text())["weights_sha256"] == sha256_file(folder / WEIGHTS)
    assert load_file(folder / WEIGHTS).keys() == vars(trees).keys()
    save_baseline(tmp_path / "again", trees, spec)
    for name in (WEIGHTS, SPEC):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"), [(Path.unlink, "no such file"), (flip_a_bit, r"sha256: expected [0-9a-f]{64}, as spec.json")]
)
def test_damaged_weights(damage: Callable[[Path], object], message: str, saved: Saved) -> None:
    folder, *_ = saved
    damage(folder / WEIGHTS)
    with pytest.raises(DataError, match=rf"weights\.safetensors: .*{message}"):
        load_baseline(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"other": np.zeros(1)}, "weights: expected the arrays .* found .*'other'"),
        ({"feature": np.full(9, 10**6, dtype=np.int32)}, "feature: expected columns in"),
    ],
)
def test_weights_of_something_else(changes: dict[str, Any], message: str, saved: Saved) -> None:
    folder, *_ = saved
    save_file({**load_file(folder / WEIGHTS), **changes}, folder / WEIGHTS)
    write_json(folder / SPEC, read_json(folder / SPEC) | {"weights_sha256": sha256_file(folder / WEIGHTS)})
    with pytest.raises(DataError, match=rf"weights\.safetensors: {message}"):
        load_baseline(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, r"keys: expected .* found .*'colour'"),
        ({"steps": "3"}, "steps: expected"),
        ({"features": []}, "features: expected"),
        ({"settings": {**asdict(SETTINGS), "colour": 1}}, "settings: expected the values of a BaselineConfig.*colour"),
        ({"settings": {**asdict(SETTINGS), "leaves": "many"}}, "settings: expected .*many"),
        ({"settings": {"leaves": 3}}, "settings: expected"),
    ],
)
def test_damaged_specs(change: dict[str, Any], message: str, saved: Saved) -> None:
    folder, *_ = saved
    write_json(folder / SPEC, read_json(folder / SPEC) | change)
    with pytest.raises(DataError, match=rf"model/spec\.json: {message}"):
        load_baseline(folder)


def test_a_baseline_is_no_cost_model(saved: Saved) -> None:
    with pytest.raises(DataError, match=r"spec\.json: keys: expected .*'partition'"):
        load_model(saved[0], torch.device("cpu"))
