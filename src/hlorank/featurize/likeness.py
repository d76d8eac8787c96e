"""Distance of a graph from the graphs of training, in a few pooled features."""

from collections.abc import Sequence

import numpy as np

from hlorank.data.graph import Graph
from hlorank.featurize.columns import DIMS_PRODUCT, element_bytes
from hlorank.hlo.node_features import CONFIGURABLE, OPCODES
from hlorank.metrics import Float64

_PRODUCTS = [OPCODES["dot"], OPCODES["convolution"]]
_SHARES = [OPCODES[name] for name in (*CONFIGURABLE, "transpose", "broadcast", "reduce", "while", "concatenate")]
_SHARE_UNIT = 0.1  # a share that counts as much as a factor of two of a size
_LEAST_SCALE = 0.3
_QUANTILE = 0.95  # the largest distance of all follows from one odd graph


def pooled(graph: Graph) -> Float64:
    """Return the pooled features of a graph: logarithms of sizes, and the shares of opcodes.

    The sizes are the numbers of nodes, of bytes of all results, and of elements of the results of dots and
    convolutions (of all nodes where there is none): their mean and the largest.
    """
    elements = np.maximum(graph.node_feat[:, DIMS_PRODUCT].astype(np.float64), 1)
    products = np.isin(graph.node_opcode, _PRODUCTS)
    large = np.log2(elements[products] if products.any() else elements)
    sizes = [np.log2(graph.nodes), np.log2((elements * element_bytes(graph.node_feat)).sum() + 1)]
    shares = [(graph.node_opcode == opcode).mean() / _SHARE_UNIT for opcode in _SHARES]
    return np.array([*sizes, large.mean(), large.max(), *shares])


def training_graphs(vectors: Sequence[Float64], families: Sequence[str]) -> tuple[Float64, float]:
    """Return the pooled features of the graphs of training, (graphs, features), and the limit of `distance`.

    The limit is the quantile 0.95 of the distances of these graphs to their nearest graphs of other families; 0 where
    there is one family only.
    """
    graphs = np.array(vectors, dtype=np.float64).reshape(len(vectors), -1).round(4)
    _, family = np.unique([*families], return_inverse=True)
    if len(set(families)) < 2:
        return graphs, 0.0
    nearest = [_distances(vector, graphs)[family != own].min() for vector, own in zip(graphs, family, strict=True)]
    return graphs, float(np.quantile(nearest, _QUANTILE))


def distance(graph: Graph, graphs: Float64) -> float:
    """Return the distance of a graph to the nearest graph of training, in standard deviations over these.

    It is the root of the mean square over the features.
    """
    return float(_distances(pooled(graph), graphs).min())


def _distances(vector: Float64, graphs: Float64) -> Float64:
    scale = np.maximum(graphs.std(axis=0), _LEAST_SCALE)
    return np.asarray(np.sqrt(np.square((graphs - vector) / scale).mean(axis=1)))
