"""Graph convolution by sums."""

from __future__ import annotations

from hlorank.models.compression.edges import Norm
from hlorank.models.layers.convolution import Convolution


class GraphConv(Convolution):
    """Message passing with sum aggregation, which depends on the number of neighbours.

    y_v = W_own x_v + W_operands sum of x_u over operands u + W_users sum of x_u over users u + b; with shared
    directions one sum over all neighbours (Morris et al., AAAI 2019, arXiv 1810.02244, equation 5; the official tile
    baseline calls it GraphSAGE).
    """

    norm = Norm.SUM
    own_weights = True
