"""What fitting a baseline gives: candidates, of which valid chooses one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.predictor import Predictor


class Candidate(NamedTuple):
    """One of several ways to rank.

    Attributes:
        predictor: scores configurations.
        epoch: its number in the history, increasing.
        steps: taken to fit it; 1 for a rule.
        train_loss: None for a rule.
    """

    predictor: Predictor
    epoch: int
    steps: int
    train_loss: float | None


@dataclass(frozen=True, eq=False)
class Fit:
    """Candidates, and what they cost.

    Attributes:
        candidates: at least one.
        scores: (configurations, candidates) float64, larger = slower, of distinct configurations of a graph.
        rows: configurations that a step looks at.
        step_seconds: time of one step; None for a rule, which takes none.
    """

    candidates: Sequence[Candidate]
    scores: Callable[[PooledGraph, NDArray[np.int64]], NDArray[np.float64]]
    rows: int
    step_seconds: float | None
