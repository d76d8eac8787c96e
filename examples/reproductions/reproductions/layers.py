"""Layers of published systems."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import gelu

from hlorank.config import Directions
from hlorank.models.compression.declarations import EdgeForm, EdgeKind, Norm
from hlorank.models.layers.attention import Comparison
from hlorank.models.layers.message_passing import EdgeWise


class ConfigurationGate(Comparison):
    """TGraph's cross-configuration attention (arXiv 2405.16623): states and their comparison, of twice the width.

    Args:
        width: of the states after it, an even number.
    """

    widens = 2

    def __init__(self, width: int) -> None:  # noqa: ARG002 # every layer of a plugin gets the width
        super().__init__()


class EdgeMlp(EdgeWise):
    """The sum over the neighbours of a configurable node of an MLP of both ends; 0 for the other nodes.

    y_v = W_2 sum over neighbours u of gelu(W x_v + W_u x_u + b); with separate directions W_u differs between operands
    and users. The fourth place of the Kaggle competition on TpuGraphs (discussion 456462) uses it in place of message
    passing, with the edges from operands only, deeper MLPs, and its own layers before the pooling.

    Args:
        width: length of a state.
        directions: of the edges: separate, shared or users; see `model.directions`.
    """

    def __init__(self, width: int, directions: Directions = "separate") -> None:
        super().__init__(
            width, EdgeKind(Norm.SUM, directions, itself=False, to_configurable=True, form=EdgeForm.PIECES)
        )
        self.output = nn.Linear(width, width, bias=False)

    def combine(self, target: Tensor, source: Tensor, index: Tensor, states: int) -> Tensor:
        """Compute new states, (states, width); see `EdgeWise`."""
        hidden = gelu(target + source)
        result: Tensor = self.output(source.new_zeros(states, source.shape[1]).index_add(0, index, hidden))
        return result
