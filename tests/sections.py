"""Sections of the configuration for tests, without what conf/ adds; keywords change single values."""

from __future__ import annotations

from typing import Any

from hlorank.config import FeaturizeConfig, FeaturizeOptions

_FEATURIZE: dict[str, Any] = {
    "scaling": "standard",
    "log_range": 100.0,
    "opcode_width": 8,
    "prune_hops": None,
    "prune_paths": False,
    "prune_edges": False,
    "virtual_nodes": False,
    "dims_128": False,
    "walk_steps": 0,
    "protobuf": False,
}


def featurize_options(**changes: Any) -> FeaturizeOptions:
    """Make options that keep graphs whole and add no columns."""
    return FeaturizeOptions(**{**_FEATURIZE, **changes})


def featurize_config(**changes: Any) -> FeaturizeConfig:
    """Make the section of `featurize_options`, with one worker."""
    return FeaturizeConfig(**{**_FEATURIZE, "workers": 1, **changes})
