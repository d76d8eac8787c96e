"""Plans as tensors: packed into one buffer where they are made, and unpacked on the device that runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hlorank.models.compression.plan import Array, Plan

_ALIGNMENT = 16  # bytes; a tensor begins at a multiple of the size of its numbers


def _map_arrays(value: Any, function: Callable[[Any], Any], kind: type) -> Any:
    """Apply a function to the arrays in nested tuples."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, tuple):
        parts = [_map_arrays(part, function, kind) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


class _Place(NamedTuple):
    """The place of an array in a buffer, in bytes, with its type and shape."""

    start: int
    stop: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class PackedPlan:
    """A plan whose arrays lie in one buffer, which moves to a device, or to another process, by one copy.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: Plan[Array]) -> None:
        stop, parts = 0, list[tuple[int, Array]]()

        def place(array: Array) -> _Place:
            nonlocal stop
            start = -(-stop // _ALIGNMENT) * _ALIGNMENT
            stop = start + array.nbytes
            parts.append((start, array))
            return _Place(start, stop, torch.from_numpy(array[:0]).dtype, array.shape)

        self._places = _map_arrays(plan, place, np.ndarray)
        packed = np.empty(stop, dtype=np.uint8)
        for start, array in parts:
            packed[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._buffer = torch.from_numpy(packed)

    @property
    def bytes(self) -> int:
        """Size of the buffer."""
        return len(self._buffer)

    @property
    def rows(self) -> int:
        """The work; see `Plan`."""
        return int(self._places.rows)

    @property
    def device(self) -> torch.device:
        """The device of the buffer."""
        return self._buffer.device

    def pin_memory(self) -> PackedPlan:
        """Return the plan in pinned memory, from which a copy to a device does not wait; called by DataLoader."""
        return self._with(self._buffer.pin_memory())

    def to(self, device: torch.device) -> PackedPlan:
        """Return the plan on a device."""
        return self if self.device == device else self._with(self._buffer.to(device, non_blocking=True))

    def _with(self, buffer: Tensor) -> PackedPlan:
        other = object.__new__(PackedPlan)
        other._places, other._buffer = self._places, buffer
        return other

    def unpack(self) -> Plan[Tensor]:
        """Return the plan with tensors, which are views of the buffer."""

        def tensor(place: _Place) -> Tensor:
            return self._buffer[place.start : place.stop].view(place.dtype).view(place.shape)

        plan: Plan[Tensor] = _map_arrays(self._places, tensor, _Place)
        return plan


def tensors(arrays: Any, device: torch.device) -> Any:
    """Return nested tuples with tensors on a device in place of arrays."""
    return _map_arrays(arrays, lambda array: torch.from_numpy(array).to(device), np.ndarray)
