"""Which configurations of a graph a training step sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hlorank.config import ConfigError

Labels = NDArray[np.float64]
Indices = NDArray[np.int64]
Sampler = Callable[[np.random.Generator, Labels, int], Indices]

# From the fastest to the slowest configuration the chance of being drawn first falls by the factor e^-3 = 1 / 20.
FAST_SLOPE = 3.0


def uniform(rng: np.random.Generator, labels: Labels, count: int) -> Indices:
    """Draws without replacement, each configuration alike."""
    return rng.choice(len(labels), size=count, replace=False)


def fast(rng: np.random.Generator, labels: Labels, count: int) -> Indices:
    """Draws without replacement, skewed to fast configurations, by Gumbel top-k (Kool et al., ICML 2019)."""
    rank = np.argsort(np.argsort(labels, kind="stable"), kind="stable")
    logits = -FAST_SLOPE * rank / max(1, len(labels) - 1)
    return np.argsort(-(logits + rng.gumbel(size=len(labels))), kind="stable")[:count]


def quantile(rng: np.random.Generator, labels: Labels, count: int) -> Indices:
    """Draws one configuration from each of `count` equal strata of the runtimes."""
    order = np.argsort(labels, kind="stable")
    bounds = np.arange(count + 1) * len(labels) // count
    return order[rng.integers(bounds[:-1], bounds[1:])]


SAMPLERS: Mapping[str, Sampler] = MappingProxyType({"uniform": uniform, "gumbel_top_k": fast, "stratified": quantile})


def sampler_named(name: str) -> Sampler:
    """The sampler of `trainer.sampling`.

    A sampler takes a generator, the labels (targets,) and how many to draw (at most `targets`), and returns that
    many different indices.

    Raises:
        ConfigError: there is no such sampler.
    """
    if name not in SAMPLERS:
        raise ConfigError(f"trainer.sampling: expected one of {', '.join(SAMPLERS)}, found {name!r}")
    return SAMPLERS[name]
