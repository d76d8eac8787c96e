"""The segments of one graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.io import DataError


@dataclass(frozen=True, eq=False)
class Partition:
    """A graph cut into segments.

    Attributes:
        segment_of: (nodes,) int32, the segment of each node, 0..J-1, none of them empty.
        local_codes: (distinct configurations, J), unsigned; equal entries of a column have the same configuration
            at all configurable nodes of that segment.

    Raises:
        DataError: a segment is empty, or the shapes do not agree.
    """

    segment_of: NDArray[np.int32]
    local_codes: NDArray[np.unsignedinteger[Any]]

    def __post_init__(self) -> None:
        sizes = np.bincount(self.segment_of, minlength=self.local_codes.shape[1])
        if len(sizes) != self.local_codes.shape[1]:
            raise DataError("segment_of", f"segments 0..{self.local_codes.shape[1] - 1}", len(sizes) - 1)
        if not sizes.all():
            raise DataError("segment_of", "no empty segment", f"segment {int(np.argmin(sizes))} is empty")

    @property
    def segments(self) -> int:
        """J, the number of segments."""
        return int(self.local_codes.shape[1])

    @cached_property
    def local_counts(self) -> NDArray[np.int64]:
        """(J,) the number of distinct local configurations of each segment."""
        counts: NDArray[np.int64] = self.local_codes.max(axis=0).astype(np.int64) + 1
        return counts
