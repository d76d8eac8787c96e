"""Fitting on the train split."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from hlorank.featurize.feature_spec import ColumnTransform, signed_log
from hlorank.featurize.fit_spec import ColumnStatistics, opcode_embedding
from hlorank.files import DataError
from tests.featurize.conftest import MakeGraph, fitted

Scaling = Literal["standard", "minmax"]

VALUES = (np.random.default_rng(0).integers(-9, 10, (50, 4)) * [1, 0, 1000, 1]).astype(np.float32)


def fit(scaling: Scaling, *parts: np.ndarray, log_range: float = 100) -> ColumnTransform:
    statistics = ColumnStatistics(scaling, log_range)
    for part in parts:
        statistics.update(part)
    return statistics.transform()


@pytest.mark.parametrize(("scaling", "scaler"), [("standard", StandardScaler()), ("minmax", MinMaxScaler())])
def test_statistics_agree_with_scikit_learn(scaling: Scaling, scaler: StandardScaler | MinMaxScaler) -> None:
    transform = fit(scaling, VALUES[:20], VALUES[20:])
    assert transform.columns.tolist() == [0, 2, 3]  # column 1 is constant
    assert transform.logarithmic.tolist() == [False, True, False]
    prepared = VALUES[:, [0, 2, 3]].astype(np.float64)
    prepared[:, 1] = signed_log(prepared[:, 1])
    expected = scaler.fit(prepared).transform(prepared)
    result = transform(VALUES)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_all_columns_constant() -> None:
    transform = fit("standard", np.ones((3, 4), dtype=np.float32))
    assert transform(VALUES).shape == (50, 0)


def test_columns_and_opcodes_of_all_graphs_count(layout_graph: MakeGraph) -> None:
    graphs = [layout_graph(seed=seed) for seed in (0, 1)]
    spec = fitted("layout:xla:random", *graphs)
    feat = np.concatenate([graph.graph.node_feat for graph in graphs])[:, :134]
    span = feat.max(axis=0) - feat.min(axis=0)
    # Column 1 is constant; layouts (134 and up) and the opcode are categories, no numbers.
    assert spec.node_columns.columns.tolist() == np.flatnonzero(span > 0).tolist()
    assert 1 not in spec.node_columns.columns
    assert spec.node_columns.logarithmic.tolist() == (span[span > 0] > 100).tolist()
    plain = ~spec.node_columns.logarithmic
    np.testing.assert_allclose(spec.node_columns.center[plain], feat.mean(axis=0)[span > 0][plain], rtol=1e-5)
    assert spec.opcodes.tolist() == [2, 26, 34, 63, 75]
    assert spec.opcode_embedding.shape == (6, 8)
    assert not spec.opcode_embedding[0].any()  # unknown opcodes
    assert spec.opcode_embedding[1:].any(axis=1).all()
    assert spec.tile_columns is None


def test_layout_configurations_and_runtimes_do_not_matter(layout_graph: MakeGraph) -> None:
    measured, other = layout_graph("a"), layout_graph("b", seed=1, configurations=3)
    changed = replace(other, graph=measured.graph)
    specs = [fitted("layout:xla:random", graph) for graph in (measured, measured, changed, other)]
    assert len({spec.fingerprint for spec in specs[:3]}) == 1 != len({spec.fingerprint for spec in specs[2:]})
    assert specs[0].inputs == specs[1].inputs != specs[2].inputs


def test_no_graph_is_an_error() -> None:
    with pytest.raises(DataError, match="layout:xla:random"):
        fitted("layout:xla:random")


def ppmi(counts: np.ndarray) -> np.ndarray:
    """Compute positive pointwise mutual information by its definition, entry by entry."""
    contexts = np.hstack([counts, counts.T]).astype(float)
    total = contexts.sum()
    result = np.zeros_like(contexts)
    for (row, column), count in np.ndenumerate(contexts):
        if count:
            chance = contexts[row].sum() / total * contexts[:, column].sum() / total
            result[row, column] = max(0.0, np.log(count / total / chance))
    return result


@pytest.fixture
def counts() -> np.ndarray:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 50, (12, 12)) * (rng.random((12, 12)) < 0.4)
    counts[3], counts[:, 3] = 0, 0
    return np.asarray(counts, dtype=np.int64)


def test_agrees_with_scikit_learn(counts: np.ndarray) -> None:
    svd = TruncatedSVD(5, algorithm="arpack", random_state=0)
    scores = svd.fit_transform(ppmi(counts))  # U S
    expected = scores / np.sqrt(svd.singular_values_)
    embedding = opcode_embedding(counts, 5)
    np.testing.assert_allclose(np.abs(embedding), np.abs(expected), atol=1e-5)
    np.testing.assert_allclose(embedding @ embedding.T, expected @ expected.T, atol=1e-5)
    assert (embedding[np.abs(embedding).argmax(axis=0), np.arange(5)] > 0).all(), "signs are fixed"


def test_zeros_for_opcodes_without_edges_and_columns_beyond_the_rank(counts: np.ndarray) -> None:
    embedding = opcode_embedding(counts, 30)
    assert embedding.shape == (12, 30)
    assert embedding.dtype == np.float32
    assert not embedding[3].any()
    assert np.delete(embedding, 3, axis=0).any(axis=1).all()
    assert embedding[:, 10].any()
    assert not embedding[:, 11:].any()  # 11 opcodes have edges
    assert not opcode_embedding(np.zeros((2, 2), dtype=np.int64), 4).any()
