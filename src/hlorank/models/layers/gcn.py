"""The graph convolutional network."""

from __future__ import annotations

from hlorank.models.compression.edges import Norm
from hlorank.models.layers.convolution import Convolution


class Gcn(Convolution):
    """Graph convolution with symmetric normalization.

    y_v = W sum over u in N(v) and v itself of x_u / sqrt(d_v d_u) + b, d = 1 + the number of edges of either
    direction (Kipf and Welling, ICLR 2017, arXiv 1609.02907, equation 2); with separate directions W differs between
    the node itself, operands and users.
    """

    norm = Norm.SYMMETRIC
    own_weights = False
