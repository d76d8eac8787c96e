"""Training of a baseline: fit it to the graphs of train, and choose among its candidates on valid."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from hlorank.config import BaselineConfig, Config, ConfigError
from hlorank.data.collection import Collection
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import LOCKS, fingerprint, one_process
from hlorank.metrics import TRAIN_LOSS, TRAIN_SECONDS, VALID_TAU, kendall_tau
from hlorank.models.baselines.baseline import (
    ANALYTICAL,
    BASELINES,
    DEFAULT_CONFIGURATION,
    GRADIENT_BOOSTING,
    LAYOUT_BASELINES,
    LINEAR_RANKING,
    RANDOM,
    XGBOOST,
    BaselineSpec,
    save_baseline,
)
from hlorank.models.baselines.pooled_features import PooledGraph, pooled_columns
from hlorank.models.baselines.predictors import Analytical, Linear, Predictor, Trees
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.candidates import Fit, changed_share, random_scores
from hlorank.training.baselines.fit_linear import fit_analytical, fit_linear
from hlorank.training.baselines.fit_trees import check_xgboost, fit_trees, fit_xgboost
from hlorank.training.mlflow_run import keep_record, peak_memory_bytes, take_finished, training_run
from hlorank.training.run_description import data_settings
from hlorank.training.sampling import usable_graphs, validation_targets
from hlorank.version import __version__

log = logging.getLogger(__name__)


class Recipe(NamedTuple):
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

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        GRADIENT_BOOSTING: Recipe(fit_trees, lambda _: Trees.none(), (*_TREES, "min_leaf")),
        XGBOOST: Recipe(fit_xgboost, lambda _: Trees.none(), (*_TREES, "min_hessian", "columns", "grades")),
        LINEAR_RANKING: Recipe(fit_linear, Linear.none, ("pairs_per_graph", "strengths")),
        ANALYTICAL: Recipe(fit_analytical, lambda _: Analytical.none(), ("rows_per_graph", "strengths")),
        RANDOM: Recipe(random_scores, None),
        DEFAULT_CONFIGURATION: Recipe(changed_share, None),
    }
)


class Epoch(NamedTuple):
    """A candidate as a row of the history.

    Attributes:
        epoch: its number.
        train_loss: None for a rule.
        valid_kendall_tau: mean over the validation graphs; None without such graphs.
        step_seconds: time of one step; None for a rule.
    """

    epoch: int
    train_loss: float | None
    valid_kendall_tau: float | None
    step_seconds: float | None


def fit_baseline(
    config: Config, method: str, store: FeatureStore, train: Sequence[str], valid: Sequence[str]
) -> tuple[Fit, list[Epoch], int]:
    """Fit a baseline to graphs of train, and choose among its candidates on those of valid.

    Returns:
        The candidates, the history of all, and the number of the best.
    """
    fit = RECIPES[method].fit(store, train, config.baseline, config.seed)
    history = _history(fit, store, valid, config.trainer.validation_configs, config.seed)
    return fit, history, max(range(len(history)), key=lambda number: _merit(history[number]))


def train_baseline(config: Config, output: Path) -> float | None:
    """Fit the baseline `method` to one collection, and choose among its candidates on valid.

    Writes the model folder (weights.safetensors, spec.json, history.csv, run.json) and one MLflow run, as all
    trainings do; an epoch is a candidate. Graphs are read whole, without segments. An interrupted training starts
    again from the beginning. The same seed gives the same bytes.

    Args:
        config: the whole configuration.
        output: the model folder.

    Returns:
        The best validation Kendall tau; None where no graph could be validated.

    Raises:
        DataError: features are missing or damaged.
        ConfigError: `method` reads layouts, and `collection` is one of tiles; or the library of `method` is
            not installed.
    """
    collection = Collection.parse(config.collection)
    check_baseline(config.method, config.collection)
    graphs = GraphLoader(Path(config.paths.features) / collection.path, None)
    store = graphs.store
    spec = BaselineSpec(
        version=__version__,
        collection=str(collection),
        method=config.method,
        data=graphs.fingerprint,
        steps=0,
        features=store.spec,
        settings=config.baseline,
    )
    identity = [
        *(config.method, config.seed, config.baseline.model_dump(mode="json"), config.trainer.validation_configs),
        *(str(collection), spec.data, __version__),
    ]
    key = fingerprint(identity)
    locks = Path(config.paths.state) / LOCKS
    with one_process(locks / key, "this training") as waited:
        if (tau := take_finished(config.tracking, key, output, locks, waited=waited)) is not None:
            return tau
        return _fit(config, spec, key, graphs, output)


def _parameters(config: Config, graphs: GraphLoader) -> dict[str, Any]:
    """Return the settings that the baseline reads, and those that its graphs were made with, by section."""
    return {
        **config.model_dump(mode="json", include={"collection", "method", "seed"}),
        "baseline": config.baseline.model_dump(mode="json", include=set(RECIPES[config.method].settings)),
        "trainer": config.trainer.model_dump(mode="json", include={"validation_configs"}),
        **data_settings(graphs, config.featurize, config.partition),
    }


def _fit(config: Config, spec: BaselineSpec, key: str, graphs: GraphLoader, output: Path) -> float | None:
    """Fit and record; `key` is the fingerprint of the training."""
    store = graphs.store
    started, recipe = time.perf_counter(), RECIPES[config.method]
    train, valid = usable_graphs(store, config.trainer.validation_configs, config.seed)
    locks, parameters = Path(config.paths.state) / LOCKS, _parameters(config, graphs)
    with training_run(config.tracking, spec, parameters, key, store, locks) as run_id:
        if train or recipe.untrained is None:
            fit, history, best = fit_baseline(config, config.method, store, train, valid)
            _log_history(history, fit, time.perf_counter() - started)
            if not valid:
                log.warning("no graph of valid can be ranked: the candidate with the smallest training loss is kept")
            tau = history[best].valid_kendall_tau
            predictor, _, steps, _ = fit.candidates[best]
        else:
            log.warning("%s: no graph to train on; the model gives all configurations the same score", spec.collection)
            predictor, steps = recipe.untrained(pooled_columns(input_sizes(store.spec))), 0
            history, tau = [], None
        save_baseline(output, predictor, spec.model_copy(update={"steps": steps}))
        rows = [epoch._asdict() for epoch in history]
        keep_record(config.tracking, run_id, rows, output, tau, time.perf_counter() - started)
    return tau


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


def _history(fit: Fit, store: FeatureStore, valid: Sequence[str], max_targets: int, seed: int) -> list[Epoch]:
    """Return a row for each candidate, validated on at most `max_targets` configurations of each graph of valid."""
    sizes = input_sizes(store.spec)
    taus = []
    for name in valid:
        graph = store.open("valid", name)
        rows, labels = validation_targets(graph, max_targets, seed)
        taus.append([kendall_tau(score, labels) for score in fit.scores(PooledGraph(graph, sizes), rows).T])
    means = np.mean(taus, axis=0).tolist() if taus else [None] * len(fit.candidates)
    return [
        Epoch(candidate.epoch, candidate.train_loss, tau, fit.step_seconds)
        for candidate, tau in zip(fit.candidates, means, strict=True)
    ]


def _merit(epoch: Epoch) -> float:
    """Return the value that the best epoch maximizes: tau, or without validation graphs the negative training loss."""
    return epoch.valid_kendall_tau if epoch.valid_kendall_tau is not None else -(epoch.train_loss or 0.0)


def _log_history(history: Sequence[Epoch], fit: Fit, seconds: float) -> None:
    """Log the metrics of each candidate.

    Args:
        history: the history of the candidates.
        fit: the candidates.
        seconds: time of the whole training, of which an earlier candidate needs fewer steps.
    """
    import mlflow

    last = fit.candidates[-1].steps
    for epoch, candidate in zip(history, fit.candidates, strict=True):
        figures = {TRAIN_LOSS: epoch.train_loss, VALID_TAU: epoch.valid_kendall_tau}
        known = {name: value for name, value in figures.items() if value is not None}
        words = {TRAIN_LOSS: "loss", VALID_TAU: "validation Kendall tau"}
        shown = ", ".join(f"{words[name]} {value:.4f}" for name, value in known.items())
        log.info("epoch %d of %d: %s", epoch.epoch, history[-1].epoch, shown)
        saved = (last - candidate.steps) * (fit.step_seconds or 0.0)
        mlflow.log_metrics({**known, TRAIN_SECONDS: seconds - saved}, step=epoch.epoch)
    cost = {"train/peak_memory_bytes": float(peak_memory_bytes())}
    if fit.step_seconds is not None:
        cost["train/step_seconds"] = fit.step_seconds
    mlflow.log_metrics(cost, step=history[-1].epoch)
