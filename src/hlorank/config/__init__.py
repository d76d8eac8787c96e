"""The schema of the configuration: names, types, constraints and meanings of all keys.

Values are in conf/ (and, resolved, in params.yaml); there is no second set of defaults here. Every entry function
validates what it gets with `load`; components receive their own section.
"""

from hlorank.config.baseline import BaselineConfig
from hlorank.config.compute import ComputeConfig
from hlorank.config.data import ADDRESS, Address, DataConfig, Split
from hlorank.config.evaluate import EvaluateConfig
from hlorank.config.extension_point import ExtensionPoint, find, is_function
from hlorank.config.featurize import FeaturizeConfig
from hlorank.config.loss import LossTerm
from hlorank.config.model import Directions, ModelConfig
from hlorank.config.partition import PartitionConfig
from hlorank.config.pipeline import PipelineConfig
from hlorank.config.plugins import import_plugin
from hlorank.config.root import Config, PathsConfig, load
from hlorank.config.section import ConfigError, Registries, Section, parse, read_section
from hlorank.config.sweep import SweepConfig
from hlorank.config.tracking import TrackingConfig
from hlorank.config.train import EnsembleConfig, SegmentsConfig, TrainerConfig

__all__ = [
    "ADDRESS",
    "Address",
    "BaselineConfig",
    "ComputeConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "Directions",
    "EnsembleConfig",
    "EvaluateConfig",
    "ExtensionPoint",
    "FeaturizeConfig",
    "LossTerm",
    "ModelConfig",
    "PartitionConfig",
    "PathsConfig",
    "PipelineConfig",
    "Registries",
    "Section",
    "SegmentsConfig",
    "Split",
    "SweepConfig",
    "TrackingConfig",
    "TrainerConfig",
    "find",
    "import_plugin",
    "is_function",
    "load",
    "parse",
    "read_section",
]
