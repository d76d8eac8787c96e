"""Padding of tensors to the tiles of a TPU, by layout, and the layouts that its compiler chooses."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS
from hlorank.data.graph import Float32, Graph, Int64
from hlorank.featurize.columns import DIMS, row_major, without_ones
from hlorank.hlo.node_features import COLUMNS, OPCODES

_LANES, _SUBLANES = 128, 8
_TENSORS = (-1, len(LAYOUT_TENSORS), LAYOUT_DIMS)
_RESHAPE, _CONVOLUTION = OPCODES["reshape"], OPCODES["convolution"]
_BATCH_AND_FEATURE = COLUMNS["convolution_output_batch_and_feature"]


def tile_padding(kinds: NDArray[np.int8], shares: Float32, layouts: NDArray[np.int8], shapes: Float32) -> Float32:
    """Return the cost of padding output, input and kernel to the tiles of a TPU in `layouts`, as `copy_moves` does.

    The compiler's own choice costs nothing, and a reshape, which follows its operand, neither. `kinds`, (rows, 1), are
    the opcodes of nodes.

    Returns:
        (rows, 3): for output, input and kernel, its share times its bytes beyond those of the least padding, relative
        to those without padding. The output of a convolution has the same two minor dimensions in any layout, so its
        least padding is that of their two orders.
    """
    layout, sizes = layouts.reshape(_TENSORS).astype(np.int64), shapes.reshape(_TENSORS)
    own, other = _padding(layout, sizes), _padding(_turned(layout), sizes)
    of_convolution = (kinds == _CONVOLUTION) & (np.arange(len(LAYOUT_TENSORS)) == 0)
    extra = own - np.where(of_convolution, np.minimum(own, other), _least(sizes))
    chosen = (layout[..., 0] >= 0) & (kinds != _RESHAPE)
    return np.where(chosen, shares * extra, 0).astype(np.float32)


def without_defaults(kinds: NDArray[np.int8], layouts: NDArray[np.int8], shapes: Float32) -> NDArray[np.int8]:
    """Return layouts for a TPU, without outputs of convolutions that have less padding than in the other order.

    The compiler chooses them, so a configuration that names them compiles to the same program as one that does not.
    Arguments are as of `tile_padding`.
    """
    outputs, sizes = layouts[:, :LAYOUT_DIMS].astype(np.int64), shapes[:, :LAYOUT_DIMS]
    result = layouts.copy()
    chosen = _padding(outputs, sizes) < _padding(_turned(outputs), sizes)
    result[(kinds[:, 0] == _CONVOLUTION) & chosen, :LAYOUT_DIMS] = -1
    return result


def computed_layouts(graph: Graph, nodes: Int64) -> Int64:
    """Return the layouts in which a TPU's compiler lets nodes compute their results if it may choose: (nodes, 6).

    Of two orders of the two minor dimensions, batch and feature of a convolution, else the last two, the less padded.
    """
    sizes = graph.node_feat[nodes, DIMS]
    result = row_major((sizes > 0).sum(axis=1))
    pair = graph.node_feat[nodes, _BATCH_AND_FEATURE.start : _BATCH_AND_FEATURE.stop].astype(np.int64)[:, ::-1]
    other = (result[:, :, None] != pair[:, None]).all(axis=2)
    minor = np.hstack([pair, np.take_along_axis(result, np.argsort(~other, axis=1, kind="stable"), axis=1)])
    convolution = (graph.node_opcode[nodes] == _CONVOLUTION) & (other.sum(axis=1) == LAYOUT_DIMS - 2)
    result = np.where(convolution[:, None], minor[:, :LAYOUT_DIMS], result)
    less = _padding(_turned(result), sizes) < _padding(result, sizes)
    return np.where(less[:, None], _turned(result), result)


def padded_orders(layouts: Int64, shapes: Int64) -> tuple[NDArray[np.float64], Int64, Int64]:
    """Return the bytes of tensors in layouts (L, 6) on a TPU, and the orders in which these have elements in memory.

    `shapes` are (S, 7), sizes and the bytes of an element. The result is (S, L) bytes; (S, L) numbers of orders, equal
    where a tensor needs no copy; and, by number, that of the order with the two minor dimensions turned.
    """
    sizes = shapes[:, None, :-1]
    orders = without_ones(np.broadcast_to(layouts, (len(shapes), *layouts.shape)), sizes)
    distinct, number = np.unique(orders.reshape(-1, LAYOUT_DIMS), axis=0, return_inverse=True)
    both, number_of = np.unique(np.concatenate([distinct, _turned(distinct)]), axis=0, return_inverse=True)
    turned = np.arange(len(both))
    turned[number_of[: len(distinct)]] = number_of[len(distinct) :]
    elements = np.maximum(shapes[:, :-1], 1).astype(np.float64).prod(axis=1) * shapes[:, -1]
    return np.rint(_padding(layouts, sizes) * elements[:, None]), number_of[number].reshape(orders.shape[:2]), turned


def _turned(layouts: Int64) -> Int64:
    """Return layouts (..., 6) with the two minor dimensions in the other order."""
    return np.where(layouts[..., 1:2] < 0, layouts, layouts[..., [1, 0, *range(2, LAYOUT_DIMS)]])


def _factors(sizes: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the bytes of a tensor relative to those without padding by its minor dimension, and by the next one."""
    dims = np.maximum(sizes, 1).astype(np.float64)
    tiles = np.minimum(2 ** np.ceil(np.log2(dims)), _SUBLANES)
    lanes, sublanes = (np.ceil(dims / size) * size / dims for size in (_LANES, tiles))
    return lanes, sublanes


def _padding(layouts: Int64, sizes: NDArray[Any]) -> NDArray[np.float64]:
    """Return the bytes of tensors on a TPU relative to those without padding, by layouts and sizes (..., 6).

    A TPU pads the minor dimension to 128 lanes, and the next one to 8 sublanes, or to 1, 2 or 4 if these are enough.
    Tensors that do not exist or have no layout have some positive number.
    """
    shape = np.broadcast_shapes(layouts.shape, sizes.shape)
    minor, second = (np.broadcast_to(layouts, shape)[..., place : place + 1] for place in range(2))
    lanes, sublanes = (np.broadcast_to(part, shape) for part in _factors(sizes))
    beyond = np.where(second < 0, 1, np.take_along_axis(sublanes, second % LAYOUT_DIMS, axis=-1))
    return np.asarray((np.take_along_axis(lanes, minor % LAYOUT_DIMS, axis=-1) * beyond)[..., 0])


def _least(sizes: NDArray[Any]) -> NDArray[np.float64]:
    """Return the least `_padding` of all layouts, 1 for no tensor."""
    (lanes, sublanes), exists = _factors(sizes), sizes > 0
    pairs = np.where(exists[..., :, None] & exists[..., None, :], lanes[..., :, None] * sublanes[..., None, :], np.inf)
    pairs[..., range(LAYOUT_DIMS), range(LAYOUT_DIMS)] = np.inf
    least = pairs.min(axis=(-2, -1))
    least = np.where(np.isinf(least), np.where(exists, lanes, np.inf).min(axis=-1), least)
    return np.where(np.isinf(least), 1, least)
