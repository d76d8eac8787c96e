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
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_loader import GraphLoader
from hlorank.models.scoring import join_scores, score_configurations
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.train_baseline import RECIPES, check_baseline, fit_baseline
from hlorank.training.samplers import usable_graphs, validation_targets

log = logging.getLogger(__name__)

WEIGHTS = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1, 0.9, 0.0, 1.0)
"""Weights of the baselines that are tried; of equal ones the first is kept, as without graphs of valid."""


class Joined(NamedTuple):
    """Fitted baselines, and what they are worth.

    Attributes:
        arrays: those of all baselines, whose names begin with that of their baseline.
        weight: of the mean of their standardized scores.
        tau: validation Kendall tau of models and baselines together; None without graphs of valid.
    """

    arrays: dict[str, NDArray[Any]]
    weight: float
    tau: float | None


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
    """Fit the baselines of `ensemble.baselines`, and choose their weight on valid.

    Args:
        config: the whole configuration.
        graphs: opens the collection's graphs.
        models: the trained cost models.
    """
    store, count = graphs.store, config.trainer.validation_configs
    train, valid = usable_graphs(store, count, config.seed)
    chosen = {name: fit_baseline(config, name, store, train, valid) for name in config.ensemble.baselines}
    for name, one in chosen.items():
        log.info("%s: validation Kendall tau %s", name, "unknown" if one.tau is None else f"{one.tau:.4f}")

    taus = []
    for name in valid:
        graph = graphs.open("valid", name)
        rows, labels = validation_targets(graph.features, count, config.seed)
        of_models = [score_configurations(model, graph, rows, config.evaluate.memory_bytes) for model in models]
        pooled = PooledGraph(graph.features, input_sizes(store.spec))
        of_baselines = [one.predictor.score(pooled, rows) for one in chosen.values()]
        taus.append([kendall_tau(join_scores(of_models, of_baselines, weight), labels) for weight in WEIGHTS])
    means = np.mean(taus, axis=0) if taus else np.zeros(len(WEIGHTS))
    best = int(means.argmax())
    arrays = {f"{name}.{key}": array for name, one in chosen.items() for key, array in vars(one.predictor).items()}
    return Joined(arrays, WEIGHTS[best], float(means[best]) if taus else None)
