"""The configuration for tests: conf/ with overrides, and sections for tiny data, of which keywords change values."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from hlorank.config import BaselineConfig, ComputeConfig, FeaturizeConfig

CONF = Path(__file__).parents[1] / "conf"


@cache
def _composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def composed(*overrides: str) -> DictConfig:
    """Compose conf/ with some overrides."""
    return deepcopy(_composed(*overrides))


def _section(file: str, **changes: Any) -> dict[str, Any]:
    values: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{file}.yaml"))
    return {**values, **changes}


def baseline_config() -> BaselineConfig:
    """Make settings of small baselines."""
    rows = {"min_leaf": 1, "grades": 8, "rows_per_graph": 100, "pairs_per_graph": 50}
    return BaselineConfig(**_section("baseline/default", iterations=3, leaves=4, strengths=[0.1, 1.0], **rows))


def compute_config(**changes: Any) -> ComputeConfig:
    """Make a section of one worker process."""
    return ComputeConfig(**_section("compute/processes", **{"workers": 1, **changes}))


def featurize_config(**changes: Any) -> FeaturizeConfig:
    """Make options that keep graphs whole and add no columns."""
    plain: dict[str, Any] = {"opcode_width": 8, "prune_hops": None, "derived": []}
    return FeaturizeConfig(**_section("featurize/default", **{**plain, **changes}))
