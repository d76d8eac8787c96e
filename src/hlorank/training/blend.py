"""Blending of networks with baselines: a weighted mean of their standardized scores."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from hlorank.metrics import kendall_tau
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.scoring import mean_of_members, score_configurations
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.fit_baseline import fit_baseline
from hlorank.training.sampling import validation_targets
from hlorank.training.setup import Setup, Trained

_TEMPERATURE = 0.03

log = logging.getLogger(__name__)


def blend(setup: Setup, trained: Trained) -> Trained:
    """Fit the baselines of `ensemble.baselines`, each with the seed after that of the last one of its name.

    The weights are proportional to exp(tau / 0.03), with tau the mean Kendall tau of each over the graphs of valid, of
    the networks together; without such graphs they are equal. The result has the Kendall tau of all together.
    """
    config = setup.config
    names, seed, memory_bytes = config.ensemble.baselines, config.seed, config.evaluate.memory_bytes
    seeds = [seed + names[:number].count(name) for number, name in enumerate(names)]
    predictors = [fit_baseline(setup, *baseline).predictors[0] for baseline in zip(names, seeds, strict=True)]

    # Of each graph of valid, the scores of the networks and of each baseline, and the labels.
    ranked = []
    for name in setup.valid:
        graph = setup.graphs.open("valid", name)
        chosen, labels = validation_targets(graph.features, config.trainer.validation_configs)
        members = [score_configurations(model, graph, chosen, memory_bytes) for model in trained.members]
        pooled = PooledGraph(graph.features, input_sizes(setup.graphs.store.spec))
        ranked.append(([mean_of_members(members), *(one.score(pooled, chosen) for _, one in predictors)], labels))
    alone = np.zeros(1 + len(predictors))
    if ranked:
        alone = np.mean([[kendall_tau(own, labels) for own in scores] for scores, labels in ranked], axis=0)
    weights = np.exp((alone - alone.max()) / _TEMPERATURE).tolist()
    shown = zip(["networks", *names], weights, strict=True)
    log.info("weights: %s", ", ".join(f"{name} {weight:.2f}" for name, weight in shown))
    taus = [kendall_tau(mean_of_members(scores, weights), labels) for scores, labels in ranked]
    return replace(trained, predictors=predictors, weights=weights, tau=float(np.mean(taus)) if taus else None)
