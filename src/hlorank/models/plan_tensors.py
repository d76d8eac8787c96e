"""Plans as tensors, and the sparse sums and maxima that they describe."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from hlorank.models.compression.plan import Array, Plan, PoolIndex, Sparse

_ALIGNMENT = 16  # bytes; numbers begin at a multiple of their size


def _map_arrays(value: Any, function: Callable[[Any], Any], kind: type) -> Any:
    """Apply a function to the arrays in nested tuples."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, tuple):
        parts = [_map_arrays(part, function, kind) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


class _Place(NamedTuple):
    """The number of an array among the arrays of its type, and its shape."""

    dtype: np.dtype[Any]
    number: int
    shape: tuple[int, ...]


class _Section(NamedTuple):
    """The arrays of one type in a buffer: its first and last byte, and the number of elements of each array."""

    start: int
    stop: int
    dtype: torch.dtype
    sizes: list[int]


class PackedPlan:
    """A plan whose arrays are in one buffer, which moves to a device, or to another process, by one copy."""

    def __init__(self, plan: Plan[Array]) -> None:
        parts: dict[np.dtype[Any], list[Array]] = {}

        def place(array: Array) -> _Place:
            same = parts.setdefault(array.dtype, [])
            same.append(array.ravel())
            return _Place(array.dtype, len(same) - 1, array.shape)

        self._places = _map_arrays(plan, place, np.ndarray)
        self._sections: dict[np.dtype[Any], _Section] = {}
        stop = 0
        for dtype, same in parts.items():
            start = -(-stop // _ALIGNMENT) * _ALIGNMENT
            stop = start + sum(part.nbytes for part in same)
            sizes = [len(part) for part in same]
            self._sections[dtype] = _Section(start, stop, torch.from_numpy(same[0]).dtype, sizes)
        packed = np.empty(stop, dtype=np.uint8)
        for dtype, section in self._sections.items():
            np.concatenate(parts[dtype], out=packed[section.start : section.stop].view(dtype))
        self._buffer = torch.from_numpy(packed)

    @property
    def bytes(self) -> int:
        """Size of the buffer."""
        return len(self._buffer)

    @property
    def states(self) -> int:
        """The work; see `Plan`."""
        return int(self._places.states)

    def pin_memory(self) -> PackedPlan:
        """Return the plan in pinned memory, from which a copy to a device does not wait; called by DataLoader."""
        return self._with(self._buffer.pin_memory())

    def to(self, device: torch.device) -> PackedPlan:
        """Return the plan on a device."""
        return self._with(self._buffer.to(device, non_blocking=True))

    def _with(self, buffer: Tensor) -> PackedPlan:
        other = object.__new__(PackedPlan)
        other._places, other._sections, other._buffer = self._places, self._sections, buffer
        return other

    def unpack(self) -> Plan[Tensor]:
        """Return the plan with tensors, which are views of the buffer."""
        parts = {
            dtype: self._buffer[start:stop].view(kind).split_with_sizes(sizes)
            for dtype, (start, stop, kind, sizes) in self._sections.items()
        }

        def tensor(place: _Place) -> Tensor:
            part = parts[place.dtype][place.number]
            return part if len(place.shape) == 1 else part.view(place.shape)

        plan: Plan[Tensor] = _map_arrays(self._places, tensor, _Place)
        return plan


def tensors(arrays: Any, device: torch.device) -> Any:
    """Return nested tuples with tensors on a device in place of arrays."""
    return _map_arrays(arrays, lambda array: torch.from_numpy(array).to(device), np.ndarray)


def _sum(x: Tensor, index: Tensor, starts: Tensor, weight: Tensor | None) -> Tensor:
    if len(index) == 0:
        return x.new_zeros(len(starts), x.shape[1])
    weight = None if weight is None else weight.to(x.dtype)
    # Detached, as it would prepare for a gradient of its own; without the checks of torch.nn.functional.
    summed: Tensor = torch.embedding_bag(x.detach(), index, starts, False, 0, False, weight)[0]
    return summed


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Sparse[Tensor], added: Tensor | None) -> Tensor:
        ctx.matrix, ctx.added = matrix, 0 if added is None else added.dim()
        summed = _sum(x, matrix.column, matrix.row_starts, matrix.weight)
        if added is None:
            return summed
        return summed.add_(added) if summed.dtype == added.dtype else summed + added

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor | None]:
        if (matrix := cast("Sparse[Tensor] | None", ctx.matrix.transposed)) is None:
            raise RuntimeError("the plan was made without gradients")
        gradient = gradients[0].contiguous()
        added = gradient.sum(dim=0) if ctx.added == 1 else gradient if ctx.added else None
        return _sum(gradient, matrix.column, matrix.row_starts, matrix.weight), None, added


def propagate(x: Tensor, matrix: Sparse[Tensor], added: Tensor | None = None) -> Tensor:
    """Compute the product of a sparse matrix and (columns, width): (rows, width), 0 in a row without entries.

    With `added`, (width,) or (rows, width), this is added. No state is copied for each entry: the fused kernel of
    `embedding_bag` replaces the products of CSR matrices of `torch.sparse`, which are exact too, but took 1.3 to 1.9
    times as long forward and backward over the quotient graphs of a training step (unet_3d and a synthetic graph of
    20,000 nodes, widths 64 and 256, float32, one thread of a CPU, PyTorch 2.13).
    """
    result: Tensor = _Propagate.apply(x, matrix, added)  # type: ignore[no-untyped-call] # untyped in PyTorch
    return result


with warnings.catch_warnings():  # PyTorch warns at the first tensor of each sparse kind
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
    torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1), check_invariants=False)


def _dense(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    return values.view(-1, index.configurations, values.shape[1])


def sum_nodes(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    """Return the sum over the pooled nodes, (segments * configurations, width)."""
    if index.states is None:
        return _dense(values, index).sum(dim=0)
    sums = propagate(values, index.states)
    rows = len(index.nodes)
    return (sums[:rows].view(-1, index.configurations, sums.shape[1]) + sums[rows:, None]).flatten(0, 1)


def sum_configurable_nodes(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    """Return the sum over the pooled nodes that are configurable, (segments * configurations, width)."""
    if index.states is None:
        return _dense(values, index)[: index.configurable_nodes].sum(dim=0)
    return propagate(values, cast("Sparse[Tensor]", index.configurable))


class _Max(torch.autograd.Function):
    """The maximum over each row by `embedding_bag`, whose own gradient takes a call for each channel."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, matrix: Sparse[Tensor]) -> Tensor:
        best, _, _, place = torch._embedding_bag(values.detach(), matrix.column, matrix.row_starts, mode=2)
        ctx.place, ctx.states = place.long().clamp(min=0), len(values)  # -1 in empty rows
        return best

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return gradient.new_zeros(ctx.states, gradient.shape[1]).scatter_add_(0, ctx.place, gradient), None


def _max(values: Tensor, matrix: Sparse[Tensor]) -> Tensor:
    """Return the maximum over each row, 0 in an empty row."""
    best: Tensor
    if torch.is_grad_enabled() or not values.is_cpu:  # the product below has no places of maxima, and runs on CPUs
        best = _Max.apply(values, matrix)  # type: ignore[no-untyped-call] # untyped in PyTorch
        return best
    row_starts = torch.cat([matrix.row_starts, matrix.row_starts.new_tensor([len(matrix.column)])])
    shape = len(matrix.row_starts), len(values)
    entries = matrix.column, values.new_ones(len(matrix.column))
    ones = torch.sparse_csr_tensor(row_starts, *entries, shape, check_invariants=False)
    best = torch.sparse.mm(ones, values, "amax")  # four to seven times as fast as `embedding_bag`
    return best


def max_nodes(values: Tensor, index: PoolIndex[Tensor]) -> Tensor:
    """Return the maximum over the pooled nodes, (segments * configurations, width)."""
    if index.states is None:
        return _dense(values, index).amax(dim=0)
    best = _max(values, index.states)
    own, of_segment = cast("Tensor", index.filled)
    return torch.maximum(embedding(own, best), embedding(of_segment, best))
