"""Samplers of the configurations of a graph that a training step ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.float64]
Indices = NDArray[np.int64]
Sampler = Callable[[np.random.Generator, Labels, int], Indices]
"""Draws distinct indices: a generator, the labels (configurations,), and how many to draw (at most that many)."""

# From the fastest to the slowest configuration the probability of being drawn first falls by the factor e^-3 = 1 / 20.
FAST_SLOPE = 3.0


def uniform(rng: np.random.Generator, labels: Labels, count: int) -> Indices:
    """Draw without replacement, each configuration with equal probability."""
    return rng.choice(len(labels), size=count, replace=False)


def gumbel_top_k(rng: np.random.Generator, labels: Labels, count: int) -> Indices:
    """Draw without replacement, fast configurations more often, by Gumbel top-k (Kool et al., ICML 2019)."""
    rank = np.argsort(np.argsort(labels, kind="stable"), kind="stable")
    logits = -FAST_SLOPE * rank / max(1, len(labels) - 1)
    return np.argsort(-(logits + rng.gumbel(size=len(labels))), kind="stable")[:count]


def stratified(rng: np.random.Generator, labels: Labels, count: int) -> Indices:
    """Draw one configuration from each of `count` equal strata of the runtimes."""
    order = np.argsort(labels, kind="stable")
    bounds = np.arange(count + 1) * len(labels) // count
    return order[rng.integers(bounds[:-1], bounds[1:])]


SAMPLERS: Mapping[str, Sampler] = MappingProxyType(
    {"uniform": uniform, "gumbel_top_k": gumbel_top_k, "stratified": stratified}
)
"""Samplers by the names of `trainer.sampling`."""
