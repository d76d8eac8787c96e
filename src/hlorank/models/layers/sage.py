"""GraphSAGE."""

from __future__ import annotations

from hlorank.models.compression.edges import Norm
from hlorank.models.layers.convolution import Convolution


class Sage(Convolution):
    """GraphSAGE with mean aggregation.

    y_v = W_own x_v + W_operands mean of x_u over operands u + W_users mean of x_u over users u + b; with shared
    directions one mean over all neighbours (Hamilton et al., NeurIPS 2017, arXiv 1706.02216, equation 2).
    """

    norm = Norm.MEAN
    own_weights = True
