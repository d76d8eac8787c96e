"""Sections of the configuration for tests, without what conf/ adds; keywords change single values."""

from __future__ import annotations

from typing import Any

from hlorank.config import ComputeConfig, FeaturizeConfig

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


def compute_config(**changes: Any) -> ComputeConfig:
    """Make a section of one worker process."""
    return ComputeConfig(**{**_COMPUTE, **changes})


def featurize_config(**changes: Any) -> FeaturizeConfig:
    """Make options that keep graphs whole and add no columns."""
    return FeaturizeConfig(**{**_FEATURIZE, **changes})
