"""The names that these parts had in hlorank 0.1: a plugin for models that were trained with it."""

from hlorank.models.cost_model import POOLINGS
from hlorank.models.layers.registry import LAYERS
from reproductions import ConfigurationGate, EdgeMlp, l2_sum

LAYERS["configuration_gate"] = ConfigurationGate
LAYERS["edge_mlp"] = EdgeMlp
POOLINGS["l2_sum"] = l2_sum
