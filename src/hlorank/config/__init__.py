"""The schema of the configuration: names, types, constraints and meanings of all keys.

Values are in conf/ (and, resolved, in params.yaml); there is no second set of defaults here. Every entry function
validates what it gets with `load`; components receive their own section.
"""

from hlorank.config.data_sections import ADDRESS as ADDRESS
from hlorank.config.data_sections import Address as Address
from hlorank.config.data_sections import ComputeConfig as ComputeConfig
from hlorank.config.data_sections import DataConfig as DataConfig
from hlorank.config.data_sections import EvaluateConfig as EvaluateConfig
from hlorank.config.data_sections import FeaturizeConfig as FeaturizeConfig
from hlorank.config.data_sections import PartitionConfig as PartitionConfig
from hlorank.config.data_sections import PipelineConfig as PipelineConfig
from hlorank.config.data_sections import Split as Split
from hlorank.config.data_sections import TrackingConfig as TrackingConfig
from hlorank.config.extension_point import ExtensionPoint as ExtensionPoint
from hlorank.config.extension_point import find as find
from hlorank.config.extension_point import import_plugin as import_plugin
from hlorank.config.extension_point import is_function as is_function
from hlorank.config.root import Config as Config
from hlorank.config.root import PathsConfig as PathsConfig
from hlorank.config.root import load as load
from hlorank.config.section import ConfigError as ConfigError
from hlorank.config.section import Registries as Registries
from hlorank.config.section import Section as Section
from hlorank.config.section import parse as parse
from hlorank.config.section import read_section as read_section
from hlorank.config.train_sections import BaselineConfig as BaselineConfig
from hlorank.config.train_sections import Directions as Directions
from hlorank.config.train_sections import EnsembleConfig as EnsembleConfig
from hlorank.config.train_sections import LossTerm as LossTerm
from hlorank.config.train_sections import ModelConfig as ModelConfig
from hlorank.config.train_sections import SegmentsConfig as SegmentsConfig
from hlorank.config.train_sections import SweepConfig as SweepConfig
from hlorank.config.train_sections import TrainerConfig as TrainerConfig
