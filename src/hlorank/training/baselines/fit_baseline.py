"""Fitting of a baseline to the graphs of train, and choice among its candidates on valid."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from hlorank.config import BaselineConfig, ConfigError
from hlorank.data.collection import Collection
from hlorank.featurize.feature_store import FeatureStore
from hlorank.metrics import kendall_tau
from hlorank.models.baselines.baseline import (
    ANALYTICAL,
    BASELINES,
    DEFAULT_CONFIGURATION,
    GRADIENT_BOOSTING,
    LAYOUT_BASELINES,
    LINEAR_RANKING,
    RANDOM,
    XGBOOST,
)
from hlorank.models.baselines.pooled_features import PooledGraph, pooled_columns
from hlorank.models.baselines.predictors import Analytical, Linear, Predictor, Trees
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.candidates import Candidate, Fit, changed_share, random_scores
from hlorank.training.baselines.fit_linear import fit_analytical, fit_linear
from hlorank.training.baselines.fit_trees import check_xgboost, fit_trees, fit_xgboost
from hlorank.training.sampling import validation_targets
from hlorank.training.setup import Setup, Trained

log = logging.getLogger(__name__)


class FitRecipe(NamedTuple):
    """Fitting of a baseline.

    Attributes:
        fit: function of the store, the names of training graphs, the settings and the seed.
        untrained: function of the number of columns, for a collection without graphs to train on; None for a rule,
            which needs none.
        settings: keys of the section `baseline` that it reads.
    """

    fit: Callable[[FeatureStore, Sequence[str], BaselineConfig, int], Fit]
    untrained: Callable[[int], Predictor] | None
    settings: Sequence[str] = ()


_TREES = ("iterations", "learning_rate", "leaves", "l2", "rows_per_graph")

RECIPES: Mapping[str, FitRecipe] = MappingProxyType(
    {
        GRADIENT_BOOSTING: FitRecipe(fit_trees, lambda _: Trees.none(), (*_TREES, "min_leaf")),
        XGBOOST: FitRecipe(fit_xgboost, lambda _: Trees.none(), (*_TREES, "min_hessian", "columns", "grades")),
        LINEAR_RANKING: FitRecipe(fit_linear, Linear.none, ("pairs_per_graph", "strengths")),
        ANALYTICAL: FitRecipe(fit_analytical, lambda _: Analytical.none(), ("rows_per_graph", "strengths")),
        RANDOM: FitRecipe(random_scores, None),
        DEFAULT_CONFIGURATION: FitRecipe(changed_share, None),
    }
)


def settings_of(method: str) -> set[str]:
    """Return the keys of the section `baseline` that a baseline reads."""
    return set(RECIPES[method].settings)


def check_baseline(method: str, collection: str) -> None:
    """Check that a baseline can be fitted.

    Raises:
        ConfigError: its library is not installed, or it is not one for the kind of the collection.
    """
    if method == XGBOOST:
        check_xgboost()
    if method in LAYOUT_BASELINES and Collection.parse(collection).kind == "tile":
        others = ", ".join(name for name in BASELINES if name not in LAYOUT_BASELINES)
        raise ConfigError(
            f"method={method}: it reads layouts, which {collection} has not; set method to one of {others}, or "
            "collection to one of layouts"
        )


class Fitted(NamedTuple):
    """The best candidate of a baseline, and a row for each candidate."""

    best: Candidate
    tau: float | None
    history: list[dict[str, Any]]


def fit_baseline(setup: Setup) -> Trained:
    """Fit the baseline of a setup; the same seed gives the same bytes, and an interrupted fit starts again."""
    method, started = setup.config.method, time.perf_counter()
    untrained = RECIPES[method].untrained
    if not setup.train and untrained is not None:
        log.warning(
            "%s: no graph to train on; the model gives all configurations the same score", setup.spec.collection
        )
        predictor = untrained(pooled_columns(input_sizes(setup.graphs.store.spec)))
        return Trained(predictors=[(method, predictor)], seconds=time.perf_counter() - started)
    best, tau, history = fit_candidates(setup, method, setup.config.seed)
    for row in history:
        words = {"train_loss": "loss", "valid_kendall_tau": "validation Kendall tau"}
        shown = ", ".join(f"{word} {row[key]:.4f}" for key, word in words.items() if row[key] is not None)
        log.info("epoch %d of %d: %s", row["epoch"], history[-1]["epoch"], shown)
    if not setup.valid:
        log.warning("no graph of valid can be ranked: the candidate with the smallest training loss is kept")
    return Trained(
        predictors=[(method, best.predictor)],
        steps=best.steps,
        history=history,
        tau=tau,
        seconds=time.perf_counter() - started,
    )


def fit_candidates(setup: Setup, method: str, seed: int) -> Fitted:
    """Fit a baseline to the graphs of train, and choose among its candidates on those of valid.

    Returns:
        The best candidate, its validation Kendall tau, and a row of each candidate: epoch, train_loss (None for a
        rule), valid_kendall_tau (None without validation graphs), step_seconds (None for a rule), seconds.
    """
    store, config, started = setup.graphs.store, setup.config, time.perf_counter()
    fit = RECIPES[method].fit(store, setup.train, config.baseline, seed)
    taus = _validate(fit, store, setup.valid, config.trainer.validation_configs)
    # Without validation graphs the best has the smallest training loss.
    merits = [-(one.train_loss or 0.0) if tau is None else tau for one, tau in zip(fit.candidates, taus, strict=True)]
    best = max(range(len(merits)), key=merits.__getitem__)
    seconds, last = time.perf_counter() - started, fit.candidates[-1].steps
    history = [
        {
            "epoch": candidate.epoch,
            "train_loss": candidate.train_loss,
            "valid_kendall_tau": tau,
            "step_seconds": fit.step_seconds,
            "seconds": seconds - (last - candidate.steps) * (fit.step_seconds or 0.0),  # it takes fewer steps
        }
        for candidate, tau in zip(fit.candidates, taus, strict=True)
    ]
    return Fitted(fit.candidates[best], taus[best], history)


def _validate(fit: Fit, store: FeatureStore, valid: Sequence[str], max_targets: int) -> list[float | None]:
    """Return the mean Kendall tau of each candidate over the graphs of valid, None without such graphs."""
    sizes, taus = input_sizes(store.spec), []
    for name in valid:
        graph = store.open("valid", name)
        chosen, labels = validation_targets(graph, max_targets)
        taus.append([kendall_tau(score, labels) for score in fit.scores(PooledGraph(graph, sizes), chosen).T])
    means: list[float | None] = np.mean(taus, axis=0).tolist() if taus else [None] * len(fit.candidates)
    return means
