"""Baselines that join the cost models of an ensemble."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.config import Config, ConfigError
from hlorank.metrics import kendall_tau
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.baselines.predictors import Predictor
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphLoader
from hlorank.models.scoring import mean_of_members, score_configurations
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.train_baseline import RECIPES, check_baseline, fit_baseline
from hlorank.training.sampling import usable_graphs, validation_targets

_TEMPERATURE = 0.03

log = logging.getLogger(__name__)


class Joined(NamedTuple):
    """Baselines that join cost models.

    Attributes:
        arrays: those of all baselines; their names begin with the name and the number of their baseline.
        weights: of the mean of the cost models, and of each baseline.
        valid_tau: the validation Kendall tau of all together; None without graphs of valid.
    """

    arrays: dict[str, NDArray[Any]]
    weights: list[float]
    valid_tau: float | None


def check_baselines(config: Config) -> None:
    """Check the names of the baselines that join.

    Raises:
        ConfigError: there is no such baseline, its library is not installed, or it does not fit the collection.
    """
    for name in config.ensemble.baselines:
        if name not in RECIPES:
            raise ConfigError(f"ensemble.baselines: expected some of {', '.join(RECIPES)}, found {name}")
        check_baseline(name, config.collection)


def join_baselines(config: Config, graphs: GraphLoader, models: Sequence[CostModel]) -> Joined:
    """Fit the baselines of `ensemble.baselines`, each with the seed after that of the last one of its name.

    The weights are proportional to exp(tau / 0.03), with tau the mean Kendall tau of each over the graphs of valid, of
    the cost models together; without such graphs they are equal.

    Args:
        config: the whole configuration.
        graphs: opens the collection's graphs.
        models: the trained cost models.
    """
    store, count = graphs.store, config.trainer.validation_configs
    train, valid = usable_graphs(store, count, config.seed)
    fitted = list[Predictor]()
    names = config.ensemble.baselines
    for number, name in enumerate(names):
        own = config.model_copy(update={"seed": config.seed + names[:number].count(name)})
        fit, history, best = fit_baseline(own, name, store, train, valid)
        fitted.append(fit.candidates[best].predictor)
        tau = history[best].valid_kendall_tau
        log.info("%s: validation Kendall tau %s", name, "unknown" if tau is None else f"{tau:.4f}")

    ranked = []  # of each graph of valid, the scores of cost models and of each baseline, and the labels
    for name in valid:
        graph = graphs.open("valid", name)
        rows, labels = validation_targets(graph.features, count, config.seed)
        scores = [score_configurations(model, graph, rows, config.evaluate.memory_bytes) for model in models]
        pooled = PooledGraph(graph.features, input_sizes(store.spec))
        ranked.append(([mean_of_members(scores), *(one.score(pooled, rows) for one in fitted)], labels))
    alone = np.zeros(1 + len(fitted))
    if valid:
        alone = np.mean([[kendall_tau(own, labels) for own in scores] for scores, labels in ranked], axis=0)
    weights = np.exp((alone - alone.max()) / _TEMPERATURE).tolist()
    log.info(
        "weights: %s",
        ", ".join(f"{name} {weight:.2f}" for name, weight in zip(["models", *names], weights, strict=True)),
    )
    taus = [kendall_tau(mean_of_members(scores, weights), labels) for scores, labels in ranked]
    arrays = {
        f"{name}.{number}.{key}": array
        for number, (name, one) in enumerate(zip(names, fitted, strict=True))
        for key, array in vars(one).items()
    }
    return Joined(arrays, weights, float(np.mean(taus)) if taus else None)
