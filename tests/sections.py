"""Sections of the configuration for tests, without what conf/ adds; keywords change single values."""

from __future__ import annotations

from typing import Any

from hlorank.config import BaselineConfig, ComputeConfig, FeaturizeConfig

_FEATURIZE: dict[str, Any] = {
    "scaling": "standard",
    "log_range": 100.0,
    "opcode_width": 8,
    "prune_hops": None,
    "prune_edges": False,
    "protobuf": False,
    "derived": [],
}
_COMPUTE: dict[str, Any] = {
    "form": "processes",
    "workers": 1,
    "retries": 2,
    "address": None,
    "cpus": 1,
    "gpus": 0,
    "memory_bytes": None,
}


_BASELINE: dict[str, Any] = {
    "iterations": 3,
    "learning_rate": 0.1,
    "leaves": 4,
    "min_leaf": 1,
    "min_hessian": 1.0,
    "l2": 0.0,
    "columns": 1.0,
    "grades": 8,
    "rows_per_graph": 100,
    "pairs_per_graph": 50,
    "strengths": [0.1, 1.0],
}


def baseline_config() -> BaselineConfig:
    """Make settings of small baselines."""
    return BaselineConfig(**_BASELINE)


def compute_config(**changes: Any) -> ComputeConfig:
    """Make a section of one worker process."""
    return ComputeConfig(**{**_COMPUTE, **changes})


def featurize_config(**changes: Any) -> FeaturizeConfig:
    """Make options that keep graphs whole and add no columns."""
    return FeaturizeConfig(**{**_FEATURIZE, **changes})
