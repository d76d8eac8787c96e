"""Fitting of a baseline to the graphs of train, choice among its candidates on valid, and blending with networks."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from hlorank.config import BaselineConfig, ConfigError
from hlorank.data.collection import Collection
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import SPEC, read_json
from hlorank.metrics import Float64, kendall_tau
from hlorank.models.baselines import baseline
from hlorank.models.baselines.pooled_features import PooledGraph, changed_column, cost_columns, pooled_columns
from hlorank.models.baselines.predictors import Linear, RandomRanker
from hlorank.models.scoring import mean_of_members, score_configurations
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.candidates import Candidate, Fit
from hlorank.training.baselines.fit_linear import fit_analytical, fit_linear
from hlorank.training.baselines.fit_trees import fit_trees, fit_xgboost
from hlorank.training.sampling import validation_targets
from hlorank.training.setup import Setup, Trained

log = logging.getLogger(__name__)

_TEMPERATURE = 0.03  # of the weights in a blend
_LEAST_GRAPHS = 2  # in train and in valid, for a baseline to join networks


def random_scores(store: FeatureStore, names: Sequence[str], settings: BaselineConfig, seed: int) -> Fit:  # noqa: ARG001 - not fitted
    """Return random scores, drawn from the seed."""
    return Fit([Candidate(RandomRanker(np.array([seed], dtype=np.int64)))])


def changed_share(store: FeatureStore, names: Sequence[str], settings: BaselineConfig, seed: int) -> Fit:  # noqa: ARG001 - not fitted
    """Return the rank by configurable nodes with an unusual layout as score: the default configuration is first."""
    sizes = input_sizes(store.spec)
    return Fit([Candidate(Linear.of_column(changed_column(sizes), pooled_columns(sizes)))])


class FitRecipe(NamedTuple):
    """Fitting of a baseline to training graphs of a store, by their names, with settings and a seed."""

    fit: Callable[[FeatureStore, Sequence[str], BaselineConfig, int], Fit]
    settings: Sequence[str] = ()  # keys of the section `baseline` that it reads; none of a rule, which is not fitted


_TREES = ("iterations", "learning_rate", "leaves", "l2", "rows_per_graph")

RECIPES: Mapping[str, FitRecipe] = MappingProxyType(
    {
        baseline.GRADIENT_BOOSTING: FitRecipe(fit_trees, (*_TREES, "min_leaf")),
        baseline.XGBOOST: FitRecipe(fit_xgboost, (*_TREES, "min_hessian", "columns", "grades")),
        baseline.LINEAR_RANKING: FitRecipe(fit_linear, ("pairs_per_graph", "strengths")),
        baseline.ANALYTICAL: FitRecipe(fit_analytical, ("rows_per_graph", "strengths")),
        baseline.RANDOM: FitRecipe(random_scores),
        baseline.DEFAULT_CONFIGURATION: FitRecipe(changed_share),
    }
)


def check_baseline(method: str, collection: str) -> None:
    """Raise ConfigError if the library of a baseline is not installed, or it reads layouts and these are tiles."""
    if method == baseline.XGBOOST and find_spec("xgboost") is None:
        remedy = "pip install 'hlorank[rivals]', or set method to gradient_boosting, which needs no extra"
        raise ConfigError(f"method=xgboost: the library is not installed; {remedy}")
    if method in (baseline.GRADIENT_BOOSTING, baseline.LINEAR_RANKING) and find_spec("sklearn") is None:
        raise ModuleNotFoundError(name="sklearn")
    if method in baseline.LAYOUT_BASELINES and Collection.parse(collection).kind == "tile":
        others = ", ".join(name for name in baseline.BASELINES if name not in baseline.LAYOUT_BASELINES)
        remedy = f"set method to one of {others}, or collection to a collection of layouts"
        raise ConfigError(f"method={method}: it reads layouts, which {collection} has not; {remedy}")


def pretrained_weights(setup: Setup) -> Float64 | None:
    """Return the weights of the pretrained model of a training of `analytical`; None without, and in a blend."""
    config, spec = setup.config, setup.graphs.store.spec
    if (folder := config.paths.pretrained) is None or config.method not in baseline.BASELINES:
        return None
    fits = read_json(Path(folder) / SPEC).get("method") == config.method == baseline.ANALYTICAL
    weight: Float64 = vars(baseline.load_baseline(Path(folder))[0].predictor)["weight"] if fits else np.zeros(0)
    if len(weight) != cost_columns(input_sizes(spec)):
        remedy = "expected method=analytical and a model of it, both for TPUs or both not, or networks"
        raise ConfigError(f"paths.pretrained={folder}: {remedy}")
    return weight


def fit_baseline(setup: Setup, method: str, seed: int) -> Trained:
    """Fit a baseline to the graphs of train, and keep the candidate that is best on the graphs of valid.

    The same seed gives the same bytes, and an interrupted fit starts again. The history has a row for each candidate:
    epoch, train_loss (None for a rule), valid_kendall_tau (None without validation graphs), step_seconds (None for a
    rule), seconds.
    """
    store, config, started = setup.graphs.store, setup.config, time.perf_counter()
    settings, prior = config.baseline, pretrained_weights(setup)
    recipe = RECIPES[method].fit if prior is None else partial(fit_analytical, prior=prior)
    if not setup.valid:  # the smallest training loss would be that of the smallest strength
        settings = settings.model_copy(update={"strengths": [max(settings.strengths)]})
    fit = recipe(store, setup.train, settings, seed)
    taus = _validate(fit, store, setup.valid, config.trainer.validation_configs)
    if not setup.valid:
        log.warning("no graph of valid can be ranked: the largest strength and the smallest training loss are kept")
    both = list(zip(fit.candidates, taus, strict=True))
    best, tau = max(both, key=lambda pair: -(pair[0].train_loss or 0.0) if pair[1] is None else pair[1])
    seconds, last = time.perf_counter() - started, fit.candidates[-1].steps
    history = [
        {
            "epoch": candidate.epoch,
            "train_loss": candidate.train_loss,
            "valid_kendall_tau": tau,
            "step_seconds": fit.step_seconds,
            "seconds": seconds - (last - candidate.steps) * (fit.step_seconds or 0.0),  # it takes fewer steps
        }
        for candidate, tau in both
    ]
    shown = "unknown" if tau is None else f"{tau:.4f}"
    log.info("%s: candidate %d of %d, validation Kendall tau %s", method, best.epoch, fit.candidates[-1].epoch, shown)
    return Trained((), [(method, best.predictor)], steps=best.steps, history=history, tau=tau, seconds=seconds)


def _validate(fit: Fit, store: FeatureStore, valid: Sequence[str], max_targets: int) -> list[float | None]:
    """Return the mean Kendall tau of each candidate over the graphs of valid, None without such graphs."""
    sizes, taus = input_sizes(store.spec), []
    for name in valid:
        graph = store.open("valid", name)
        chosen, labels = validation_targets(graph, max_targets)
        taus.append([kendall_tau(score, labels) for score in fit.scores(PooledGraph(graph, sizes), chosen).T])
    means: list[float | None] = np.mean(taus, axis=0).tolist() if taus else [None] * len(fit.candidates)
    return means


def blend(setup: Setup, trained: Trained) -> Trained:
    """Fit the baselines of `ensemble.baselines`, and join those that validation supports with the networks.

    The n-th baseline of a name has seed + n - 1. The networks together are a part of the blend, and so is each
    baseline. The first part is the first of the baselines, in their order, and of the networks, after them, that is
    not behind the best part (the one-standard-error rule; Breiman et al., Classification and Regression Trees, 1984).
    Others join by descending tau where the blend is then ahead. Ahead means that the mean difference of Kendall tau
    over the graphs of valid is larger than its standard error. Weights are proportional to exp(tau / 0.03); that of
    networks that do not join is 0. There are only networks where fewer than two graphs train, or fewer than two others
    validate. The result has the tau of the blend.
    """
    config = setup.config
    names, seed, memory_bytes = config.ensemble.baselines, config.seed, config.evaluate.memory_bytes
    if min(len(setup.train), len(setup.valid)) < _LEAST_GRAPHS:
        log.warning("no baseline joins: that takes %d graphs in train and in valid, as support", _LEAST_GRAPHS)
        names = []
    seeds = [seed + names[:number].count(name) for number, name in enumerate(names)]
    predictors = [fit_baseline(setup, *baseline).predictors[0] for baseline in zip(names, seeds, strict=True)]

    # Of each graph of valid, the scores of the networks and of each baseline, and the labels.
    ranked = []
    for name in setup.valid:
        graph = setup.graphs.open("valid", name)
        chosen, labels = validation_targets(graph.features, config.trainer.validation_configs)
        members = [score_configurations(model, graph, chosen, memory_bytes) for model in trained.members]
        pooled = PooledGraph(graph.features, input_sizes(setup.graphs.store.spec))
        baselines = [predictor.score(pooled, chosen) for _, predictor in predictors]
        ranked.append(([mean_of_members(members), *baselines], labels))
    if not ranked:
        return trained
    each = np.array([[kendall_tau(score, labels) for score in scores] for scores, labels in ranked])
    alone = each.mean(axis=0)

    def joined(parts: Sequence[int]) -> tuple[Float64, list[float]]:
        weights = np.exp((alone[parts] - alone[parts].max()) / _TEMPERATURE).tolist()
        blended = [(mean_of_members([scores[part] for part in parts], weights), labels) for scores, labels in ranked]
        return np.array([kendall_tau(*pair) for pair in blended]), weights

    order = [int(part) for part in np.argsort(-alone, kind="stable")]
    simple = (part for part in range(1, len(alone)) if not _ahead(each[:, order[0]] - each[:, part]))
    parts = [first := next(simple, order[0])]
    taus, weights = joined(parts)
    for part in (part for part in order if part != first):
        found, found_weights = joined(tried := sorted([*parts, part]))
        if _ahead(found - taus):
            parts, taus, weights = tried, found, found_weights
    if 0 not in parts:
        parts, weights = [0, *parts], [0.0, *weights]
    shown = zip(["networks", *(names[part - 1] for part in parts[1:])], weights, strict=True)
    log.info("weights: %s", ", ".join(f"{name} {weight:.2f}" for name, weight in shown))
    return replace(
        trained, predictors=[predictors[part - 1] for part in parts[1:]], weights=weights, tau=float(taus.mean())
    )


def _ahead(gains: Float64) -> bool:
    """Return whether the mean of differences of tau, of each graph, is larger than its standard error."""
    return bool(gains.mean() > gains.std(ddof=1) / math.sqrt(len(gains)))
