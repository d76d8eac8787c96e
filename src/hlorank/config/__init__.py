"""The schema of the configuration: names, types, constraints and meanings of all keys.

Values are in conf/ (and, resolved, in params.yaml); there is no second set of defaults here. Every entry function
validates what it gets with `load`; components receive their own section.
"""

from hlorank.config.extension_point import ExtensionPoint, find, import_plugin, is_function
from hlorank.config.root import (
    ComputeConfig,
    Config,
    DataConfig,
    EvaluateConfig,
    FeaturizeConfig,
    PartitionConfig,
    Split,
    TrackingConfig,
    load,
)
from hlorank.config.section import ConfigError, Section, parse, read_section
from hlorank.config.train_sections import (
    BaselineConfig,
    Directions,
    LossTerm,
    ModelConfig,
    SegmentsConfig,
    SweepConfig,
    TrainerConfig,
)

__all__ = ["BaselineConfig", "ComputeConfig", "Config", "ConfigError", "DataConfig", "Directions", "EvaluateConfig"]
__all__ += ["ExtensionPoint", "FeaturizeConfig", "LossTerm", "ModelConfig", "PartitionConfig", "Section"]
__all__ += ["SegmentsConfig", "Split", "SweepConfig", "TrackingConfig", "TrainerConfig"]
__all__ += ["find", "import_plugin", "is_function", "load", "parse", "read_section"]
