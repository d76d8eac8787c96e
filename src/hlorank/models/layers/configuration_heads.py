"""Multi-head attention over the configurations that are ranked together."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from hlorank.models.compression.declarations import Mixing
from hlorank.models.compression.plan import NodeIndex
from hlorank.models.layers.layer import Layer, head_width, map_nodes


class ConfigurationHeads(Layer):
    """Cross-configuration attention by dot products: each configuration of a node attends to all of them.

    y_c = W [o_c of each head] + b, o_c = sum over configurations c' of a_cc' v_c', a_c = softmax over c' of
    q_c . k_c' / sqrt(width of a head), for each node, where q, k and v are linear in x (Vaswani et al., NeurIPS 2017,
    arXiv 1706.03762, equation 1). PyTorch's fused kernels do not store the weights a_cc'.

    Args:
        width: length of a state.
        heads: number of attention heads, a divisor of `width`.

    Raises:
        ConfigError: `heads` does not divide `width`.
    """

    mixing = Mixing.CONFIGURATIONS

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._split = heads, head_width(width, heads)
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width)

    def _attend(self, x: Tensor) -> Tensor:
        parts = (part.unflatten(-1, self._split).transpose(1, 2) for part in self.inputs(x).chunk(3, dim=-1))
        result: Tensor = self.output(scaled_dot_product_attention(*parts).transpose(1, 2).flatten(-2))
        return result

    def forward(self, x: Tensor, index: NodeIndex[Tensor]) -> Tensor:
        """Compute (colours, width) to the same shape; configurations of one colour have equal results."""
        return map_nodes(self._attend, x, index)
