"""Extension of hlorank: layers and a pooling that only reproductions of published systems need."""

from torch import Tensor
from torch.nn.functional import normalize

from hlorank.models.compression.plan import PoolIndex
from hlorank.models.plan_tensors import sum_nodes
from reproductions.layers import ConfigurationGate, EdgeMlp

__all__ = ["ConfigurationGate", "EdgeMlp", "l2_sum"]


def l2_sum(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    """Return the sum over the pooled nodes, scaled to unit L2 norm: (segments * configurations, width)."""
    return normalize(sum_nodes(values, index), dim=-1)
