"""Opcode embeddings."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD

from hlorank.featurize.opcodes import opcode_embedding


def ppmi(counts: np.ndarray) -> np.ndarray:
    """By the definition, entry by entry."""
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


def test_signs_are_fixed(counts: np.ndarray) -> None:
    embedding = opcode_embedding(counts, 5)
    assert (embedding[np.abs(embedding).argmax(axis=0), np.arange(5)] > 0).all()


def test_an_opcode_without_edges_gets_zeros(counts: np.ndarray) -> None:
    embedding = opcode_embedding(counts, 5)
    assert not embedding[3].any()
    assert np.delete(embedding, 3, axis=0).any(axis=1).all()


def test_columns_beyond_the_rank_are_zeros(counts: np.ndarray) -> None:
    embedding = opcode_embedding(counts, 30)
    assert embedding.shape == (12, 30)
    assert embedding.dtype == np.float32
    assert embedding[:, 10].any()
    assert not embedding[:, 11:].any()  # 11 opcodes have edges


def test_equal_neighbours_give_equal_embeddings() -> None:
    # 1 and 2 consume 0 alike, and 3 and 4 consume them alike.
    counts = np.zeros((6, 6), dtype=np.int64)
    counts[1, 0] = counts[2, 0] = 7
    counts[3, 1] = counts[3, 2] = counts[4, 1] = counts[4, 2] = 3
    counts[5, 3] = 9
    embedding = opcode_embedding(counts, 4)
    np.testing.assert_allclose(embedding[1], embedding[2], atol=1e-6)
    assert not np.allclose(embedding[1], embedding[3], atol=0.1)


def test_no_edges_at_all() -> None:
    assert not opcode_embedding(np.zeros((2, 2), dtype=np.int64), 4).any()
