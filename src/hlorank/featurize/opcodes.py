"""Opcode embeddings from the neighbourhoods that opcodes have in the graphs of the train split."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def opcode_embedding(counts: NDArray[np.int64], width: int) -> NDArray[np.float32]:
    """Embeds opcodes so that those with similar neighbours in the graphs lie close.

    The context of an opcode is what it consumes and, apart from that, what consumes it. The matrix of positive
    pointwise mutual information of opcodes and contexts, max(0, log p(o, c) / (p(o) p(c))), is factorized by a
    truncated singular value decomposition; the embedding is U sqrt(S) (Levy and Goldberg, "Neural Word Embedding as
    Implicit Matrix Factorization", NeurIPS 2014). An opcode without edges has no evidence and gets zeros.

    Args:
        counts: (opcodes, opcodes), how many edges lead from a consumer (row) to a producer (column).
        width: the width of the embedding; columns beyond the rank of the matrix are zeros.

    Returns:
        (opcodes, width) float32. The sign of each column is such that its largest entry in magnitude is positive.
    """
    contexts: NDArray[Any] = np.hstack([counts, counts.T]).astype(np.float64)
    expected = contexts.sum(axis=1, keepdims=True) * contexts.sum(axis=0, keepdims=True)
    ratio = np.divide(contexts * contexts.sum(), expected, out=np.zeros_like(contexts), where=expected > 0)
    # At most 122 x 244: a full decomposition is exact, needs no seed, and takes milliseconds.
    left, singular, _ = np.linalg.svd(np.log(np.maximum(ratio, 1.0)), full_matrices=False)
    rank = min(width, int((singular > 1e-10 * max(singular[0], 1.0)).sum()))
    factors = left[:, :rank] * np.sqrt(singular[:rank])
    largest = np.take_along_axis(factors, np.abs(factors).argmax(axis=0, keepdims=True), axis=0)
    embedding = np.zeros((len(counts), width), dtype=np.float32)
    evidence = contexts.any(axis=1)  # elsewhere the decomposition leaves rounding errors
    embedding[evidence, :rank] = (factors * np.sign(largest))[evidence]
    return embedding
