"""Settings of small baselines."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.featurize.feature_store import FeatureStore

Settings = Callable[..., Config]

RIVALS = ("xgboost",)
"""Baselines of the extra `rivals`, by the names of their libraries."""
needs_xgboost = pytest.mark.skipif(find_spec("xgboost") is None, reason="xgboost needs the extra rivals")


def with_library(method: str, *others: Any) -> Any:
    """Return the parameters of a test of a baseline, skipped where the library of the baseline is not installed."""
    return pytest.param(method, *others, marks=needs_xgboost if method in RIVALS else ())


@pytest.fixture
def small(settings: Settings) -> Settings:
    """Settings of a few small trees and some pairs, without segments."""

    def make(**values: Any) -> Config:
        few = {"baseline__iterations": 12, "baseline__min_leaf": 4, "baseline__pairs_per_graph": 200}
        return settings(**{"method": "gradient_boosting", "paths__segments": "none", **few, **values})

    return make


class SmallData(NamedTuple):
    """A configuration, its collection, and the graphs of train."""

    config: Config
    store: FeatureStore
    names: Sequence[str]


@pytest.fixture
def data_of(small: Settings) -> Callable[..., SmallData]:
    """A function that makes small settings and opens their collection."""

    def make(**values: Any) -> SmallData:
        config = small(**values)
        store = FeatureStore(Path(config.paths.features) / Collection.parse(config.collection).path)
        return SmallData(config, store, store.trainable("train"))

    return make
