"""Streams of random numbers: a training draws the numbers for each purpose from a separate stream."""

from __future__ import annotations

from enum import IntEnum, unique

import numpy as np


@unique
class Stream(IntEnum):
    """Purposes of random numbers; the value of each is part of the seed, so that no two draw the same numbers.

    Weights are initialized from the seed itself, and `random_state` of scikit-learn is the seed.
    """

    GRAPH_ORDER = 0
    """Order of the graphs in a round over all of them; key: number of the round."""
    STEP = 1
    """Configurations and segments of a step; key: epoch, number of the step within it."""
    VALIDATION = 2
    """Configurations that validation ranks; no key."""
    DROPOUT = 3
    """Dropout masks of a step; key: epoch, number of the step within it."""
    WORKING_SET = 4
    """Working set of a graph; key: number of the graph, number of the redraw."""
    TREES = 5
    """Rows that regression trees are fitted to; key: number of the graph."""
    ENSEMBLE = 6
    """Seeds of the members of an ensemble; key: number of the member."""
    HEAD_FINETUNING = 7
    """Graph and configurations of a step of head finetuning; key: epoch, number of the step within it."""
    LINEAR_RANKING = 8
    """Pairs that linear ranking is fitted to; key: number of the graph."""
    DROP_EDGE = 9
    """Edges that a step leaves out; key: epoch, number of the step within it."""


def seed_sequence(seed: int, stream: Stream, *key: int) -> np.random.SeedSequence:
    """Return the seed of one draw from a stream.

    Args:
        seed: the seed of the configuration.
        stream: the purpose.
        key: numbers that identify the draw within the stream.
    """
    return np.random.SeedSequence([seed, stream, *key])


def generator(seed: int, stream: Stream, *key: int) -> np.random.Generator:
    """Return the generator of one draw from a stream; the arguments are those of `seed_sequence`."""
    return np.random.default_rng(seed_sequence(seed, stream, *key))
