"""Plans as tensors: packed into few buffers where they are made, and unpacked on the device that runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hlorank.models.compression.plan import Array, Plan


def _map_arrays(value: Any, function: Callable[[Any], Any], kind: type) -> Any:
    """Apply a function to the arrays in nested tuples."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, tuple):
        parts = [_map_arrays(part, function, kind) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


class _Place(NamedTuple):
    """The place of an array among those of its type, with its shape."""

    dtype: np.dtype[Any]
    number: int
    shape: tuple[int, ...]


class PackedPlan:
    """A plan whose arrays lie in one buffer for each type, which moves to a device, or to another process, by one copy.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: Plan[Array]) -> None:
        parts: dict[np.dtype[Any], list[Array]] = {}

        def place(array: Array) -> _Place:
            same = parts.setdefault(array.dtype, [])
            same.append(array.ravel())
            return _Place(array.dtype, len(same) - 1, array.shape)

        self._places = _map_arrays(plan, place, np.ndarray)
        self._sizes = {dtype: [len(part) for part in same] for dtype, same in parts.items()}
        self._buffers = {dtype: torch.from_numpy(np.concatenate(same)) for dtype, same in parts.items()}

    @property
    def bytes(self) -> int:
        """Size of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    @property
    def rows(self) -> int:
        """The work; see `Plan`."""
        return int(self._places.rows)

    def pin_memory(self) -> PackedPlan:
        """Return the plan in pinned memory, from which a copy to a device does not wait; called by DataLoader."""
        return self._map(Tensor.pin_memory)

    def to(self, device: torch.device) -> PackedPlan:
        """Return the plan on a device."""
        return self._map(lambda buffer: buffer.to(device, non_blocking=True))

    def _map(self, function: Callable[[Tensor], Tensor]) -> PackedPlan:
        other = object.__new__(PackedPlan)
        other._places, other._sizes = self._places, self._sizes
        other._buffers = {dtype: function(buffer) for dtype, buffer in self._buffers.items()}
        return other

    def unpack(self) -> Plan[Tensor]:
        """Return the plan with tensors, which are views of the buffers."""
        parts = {dtype: buffer.split_with_sizes(self._sizes[dtype]) for dtype, buffer in self._buffers.items()}

        def tensor(place: _Place) -> Tensor:
            part = parts[place.dtype][place.number]
            return part if len(place.shape) == 1 else part.view(place.shape)

        plan: Plan[Tensor] = _map_arrays(self._places, tensor, _Place)
        return plan


def tensors(arrays: Any, device: torch.device) -> Any:
    """Return nested tuples with tensors on a device in place of arrays."""
    return _map_arrays(arrays, lambda array: torch.from_numpy(array).to(device), np.ndarray)
