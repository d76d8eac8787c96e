"""Streams of random numbers, samplers of configurations, and the graphs and configurations of validation."""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum, unique
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hlorank.data.collection import Split
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures, TileFeatures

Labels = NDArray[np.float64]
Indices = NDArray[np.int64]
Sampler = Callable[[np.random.Generator, Labels, int], Indices]
"""Function of a generator, labels (configurations,) and a number, at most `configurations`, to that many indices."""

Targets = tuple[NDArray[np.int64], NDArray[np.float64]]
"""(configurations,) distinct configurations, and their runtimes."""

FAST_SLOPE = 3.0  # the probability of being drawn first falls by e^-3 = 1 / 20 from the fastest to the slowest


@unique
class Stream(IntEnum):
    """Purposes of random numbers; the value of each is part of the seed, so that no two draw the same numbers.

    Weights are initialized from the seed itself, and `random_state` of scikit-learn is the seed.
    """

    GRAPH_ORDER = 0  # order of the graphs in a round over all of them; key: number of the round
    STEP = 1  # configurations and segments of a step; key: epoch, number of the step within it
    VALIDATION = 2  # configurations that validation ranks, whatever the seed; key: digest of the name of the graph
    DROPOUT = 3  # dropout masks of a step; key: epoch, number of the step within it
    WORKING_SET = 4  # working set of a graph; key: number of the graph, number of the redraw
    TREES = 5  # rows that regression trees are fitted to; key: number of the graph
    ENSEMBLE = 6  # seeds of the members of an ensemble; key: number of the member
    HEAD_FINETUNING = 7  # graph and configurations of a step of head finetuning; key: epoch, number of the step
    LINEAR_RANKING = 8  # pairs that linear ranking is fitted to; key: number of the graph
    DROP_EDGE = 9  # edges that a step leaves out; key: epoch, number of the step within it


def seed_sequence(seed: int, stream: Stream, *key: int) -> np.random.SeedSequence:
    """Return the seed of a draw from a stream; the numbers of `key` identify the draw."""
    return np.random.SeedSequence([seed, stream, *key])


def generator(seed: int, stream: Stream, *key: int) -> np.random.Generator:
    """Return the generator of a draw from a stream; the numbers of `key` identify the draw."""
    return np.random.default_rng(seed_sequence(seed, stream, *key))


def uniform(rng: np.random.Generator, labels: Labels, count: int) -> Indices:
    """Draw without replacement, each configuration with equal probability."""
    return rng.choice(len(labels), size=count, replace=False)


def gumbel_top_k(rng: np.random.Generator, labels: Labels, count: int) -> Indices:
    """Draw without replacement, fast configurations more often, by Gumbel top-k (Kool et al., ICML 2019)."""
    rank = np.argsort(np.argsort(labels, kind="stable"), kind="stable")
    logits = -FAST_SLOPE * rank / max(1, len(labels) - 1)
    return np.argsort(-(logits + rng.gumbel(size=len(labels))), kind="stable")[:count]


SAMPLERS: Mapping[str, Sampler] = MappingProxyType({"uniform": uniform, "gumbel_top_k": gumbel_top_k})
"""Samplers by the names of `trainer.sampling`."""


def rankable_graphs(store: FeatureStore, split: Split, names: Iterable[str], count: int) -> list[str]:
    """Return the names of the graphs whose labels that validation draws, `count` at most, are not all equal."""
    drawn = {name: validation_targets(store.open(split, name), count)[1] for name in names}
    return [name for name, labels in drawn.items() if labels.min() < labels.max()]


def validation_targets(features: GraphFeatures, count: int) -> Targets:
    """Return at most `count` targets of a graph: the same ones for every seed, member and method of its collection."""
    chosen, labels = features.targets()
    name = int.from_bytes(hashlib.sha256(features.name.encode()).digest()[:8], "big")
    rng = generator(0, Stream.VALIDATION, name)
    drawn = np.sort(rng.choice(len(chosen), size=min(count, len(chosen)), replace=False))
    return chosen[drawn], labels[drawn]


def tile_sample(store: FeatureStore) -> NDArray[np.float32]:
    """Return configurations of kernels of train, at most 100 of each of at most 1,000: (configurations, columns)."""
    names = store.trainable("train")
    parts = []
    for name in names[:: math.ceil(len(names) / 1000) or 1]:
        tiles = store.open("train", name).configurations
        assert isinstance(tiles, TileFeatures)
        parts.append(tiles.feat[:: math.ceil(len(tiles.feat) / 100)])
    return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)
