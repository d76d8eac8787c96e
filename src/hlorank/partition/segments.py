"""The segments of one graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.files import DataError


def no_halo() -> NDArray[np.int32]:
    """The halo of a partition that drops the edges between segments."""
    return np.zeros((0, 2), dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Partition:
    """A graph cut into segments.

    Attributes:
        segment_of: (nodes,) int32, the segment of each node, 0..J-1, none of them empty.
        local_codes: (distinct configurations, J), unsigned; equal entries of a column have the same configuration
            at all configurable nodes of that segment and of its halo.
        halo: (halo rows, 2) int32 in increasing order; [j, v] says that node v of another segment is computed with
            segment j, as it lies near, but not pooled.

    Raises:
        DataError: a node has no segment, a segment is empty, the shapes do not agree, or a row of the halo is
            impossible.
    """

    segment_of: NDArray[np.int32]
    local_codes: NDArray[np.unsignedinteger[Any]]
    halo: NDArray[np.int32] = field(default_factory=no_halo)

    def __post_init__(self) -> None:
        if (negative := self.segment_of < 0).any():
            node = int(np.argmax(negative))
            raise DataError("segment_of", "a segment for every node", f"{self.segment_of[node]} for node {node}")
        sizes = np.bincount(self.segment_of, minlength=self.local_codes.shape[1])
        if len(sizes) != self.local_codes.shape[1]:
            raise DataError("segment_of", f"segments 0..{self.local_codes.shape[1] - 1}", len(sizes) - 1)
        if not sizes.all():
            raise DataError("segment_of", "no empty segment", f"segment {int(np.argmin(sizes))} is empty")
        self._check_halo(np.array([len(sizes), len(self.segment_of)]))

    def _check_halo(self, bounds: NDArray[np.int64]) -> None:
        if self.halo.ndim != 2 or self.halo.shape[1] != 2:
            raise DataError("halo", "shape (any, 2)", self.halo.shape)
        outside = ((self.halo < 0) | (self.halo >= bounds)).any(axis=1)
        if outside.any():
            expected = f"segments 0..{bounds[0] - 1} and nodes 0..{bounds[1] - 1}"
            raise DataError("halo", expected, self.halo[np.argmax(outside)].tolist())
        own = self.segment_of[self.halo[:, 1]] == self.halo[:, 0]
        if own.any():
            raise DataError("halo", "nodes of other segments", self.halo[np.argmax(own)].tolist())
        if (np.diff(self.halo.astype(np.int64) @ [bounds[1], 1]) <= 0).any():
            raise DataError("halo", "rows [segment, node] in increasing order", "another order")

    @property
    def segments(self) -> int:
        """J, the number of segments."""
        return int(self.local_codes.shape[1])

    @cached_property
    def local_counts(self) -> NDArray[np.int64]:
        """(J,) the number of distinct local configurations of each segment."""
        counts: NDArray[np.int64] = self.local_codes.max(axis=0).astype(np.int64) + 1
        return counts

    @cached_property
    def _members(self) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
        inner = np.arange(1, self.segments)
        order = np.argsort(self.segment_of, kind="stable")
        own = np.split(order, np.searchsorted(self.segment_of[order], inner))
        halo = np.split(self.halo[:, 1].astype(np.int64), np.searchsorted(self.halo[:, 0], inner))
        return own, halo

    def own(self, j: int) -> NDArray[np.int64]:
        """The nodes of a segment, increasing."""
        return self._members[0][j]

    def halo_of(self, j: int) -> NDArray[np.int64]:
        """The nodes of a segment's halo, increasing."""
        return self._members[1][j]
