"""Rules: the default configuration ranks first, and random scores depend on the seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import rankdata

from hlorank.config import Config
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import LayoutFeatures
from hlorank.models.baselines.pooled_features import PooledGraph
from hlorank.models.serialization import input_sizes
from hlorank.training.baselines.candidates import changed_share, random_scores

Settings = Callable[..., Config]
StoreOf = Callable[[Config], FeatureStore]


def test_configurations_score_by_the_share_of_nodes_they_change(small: Settings, store_of: StoreOf) -> None:
    config = small(method="default_configuration")
    store = store_of(config)
    fit = changed_share(store, [], config.baseline, config.seed)
    (candidate,) = fit.candidates
    assert (candidate.steps, candidate.train_loss, fit.step_seconds) == (1, None, None)
    features = store.open("valid", store.graphs("valid")[0])
    layouts = features.configurations
    assert isinstance(layouts, LayoutFeatures)
    codes = np.asarray(layouts.codes)
    usual = np.array([np.bincount(column).argmax() for column in codes.T])
    scores = fit.scores(PooledGraph(features, input_sizes(store.spec)), np.arange(features.distinct))
    np.testing.assert_array_equal(rankdata(scores), rankdata((codes != usual).mean(axis=1)))
    assert len(np.unique(scores)) > 2


def test_random_scores_depend_on_the_seed(small: Settings, store_of: StoreOf) -> None:
    config = small()
    fits = [random_scores(store_of(config), [], config.baseline, seed) for seed in (0, 5)]
    seeds = [vars(fit.candidates[0].predictor)["seed"] for fit in fits]
    np.testing.assert_array_equal(seeds, np.array([[0], [5]], dtype=np.int64), strict=True)
