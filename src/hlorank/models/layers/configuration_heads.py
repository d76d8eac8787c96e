"""Multi-head attention over the configurations that are ranked together."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from hlorank.models.compression.colouring import NodeStates
from hlorank.models.inputs import Segment
from hlorank.models.layers.heads import head_width
from hlorank.models.layers.layer import Layer, Mixing


class ConfigurationHeads(Layer):
    """Cross-configuration attention by dot products: each configuration of a node looks at the others.

    y_c = W [o_c of each head] + b, o_c = sum over configurations c' of a_cc' v_c', a_c = softmax over c' of
    q_c . k_c' / sqrt(width of a head), for each node, where q, k and v are linear in x (Vaswani et al., NeurIPS 2017,
    arXiv 1706.03762, equation 1). The weights a_cc' are not kept, where PyTorch has a kernel that does without.

    Args:
        width: of states.
        heads: divides the width.

    Raises:
        ConfigError: it does not.
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

    def forward(self, x: Tensor, _: Segment) -> Tensor:
        """The dense form: (nodes, configurations, width) to the same shape."""
        return self._attend(x)

    def spread(self, state: NodeStates, _: Segment) -> NodeStates:
        """The same: configurations with equal states all see what one alone would see."""
        return state._replace(values=state.map_nodes(self._attend))
