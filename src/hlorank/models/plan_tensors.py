"""Plans as tensors: packed into one buffer where they are made, and unpacked on the device that runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hlorank.models.compression.plan import Array, Plan

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
    """The place of an array among those of its type, with its shape."""

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
    """A plan whose arrays lie in one buffer, which moves to a device, or to another process, by one copy.

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
    def rows(self) -> int:
        """The work; see `Plan`."""
        return int(self._places.rows)

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
