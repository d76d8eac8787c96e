"""The GPS layer: message passing and global attention side by side."""

from __future__ import annotations

from torch import Tensor, nn

from hlorank.config import Directions
from hlorank.models.compression.plan import QuotientGraph
from hlorank.models.compression.recipe import Mixing
from hlorank.models.layers.layer import Layer
from hlorank.models.layers.linear_attention import LinearAttention
from hlorank.models.layers.parts import mlp
from hlorank.models.layers.sage import Sage


class Gps(Layer):
    """A local and a global view of each node, and an MLP over their sum.

    y = norm(z + MLP(z)), z = norm(x + GraphSAGE(x)) + norm(x + LinearAttention(x)) (Rampasek et al., NeurIPS 2022,
    arXiv 2205.12454), with layer normalization, and twice the width within the MLP. It has its own
    residual connections.

    Args:
        width: length of a state.
        heads: number of attention heads, a divisor of `width`.
        directions: of the edges; see `EdgeKind`.

    Raises:
        ConfigError: `heads` does not divide `width`.
    """

    mixing = Mixing.SEGMENT

    def __init__(self, width: int, heads: int, directions: Directions) -> None:
        super().__init__()
        self.near = Sage(width, width, directions)
        self.edges = self.near.edges
        self.far = LinearAttention(width, heads)
        self.mlp = mlp(width, 2 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, x: Tensor, graph: QuotientGraph[Tensor]) -> Tensor:
        """Compute the dense form: (nodes, configurations, width) to the same shape."""
        after_near, after_far, last = self.norms
        both = after_near(x + self.near(x.flatten(0, 1), graph).view_as(x)) + after_far(x + self.far(x, None))
        result: Tensor = last(both + self.mlp(both))
        return result
