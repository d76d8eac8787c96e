"""Segments of a graph."""

from __future__ import annotations

import numpy as np
import pytest

from hlorank.files import DataError
from hlorank.partition.segments import Partition, no_halo

IN_TWO = np.array([0, 0, 1, 1], np.int32)


@pytest.mark.parametrize(
    ("segment_of", "halo"),
    [
        ([0, -1, 1, 1], []),
        ([0, 0, 2, 1], []),
        ([0, 0, 0, 0], []),
        (IN_TWO, [[0, 1]]),  # a node of the segment
        (IN_TWO, [[2, 0]]),
        (IN_TWO, [[0, 4]]),
        (IN_TWO, [[0, -1]]),
        (IN_TWO, [[1, 0], [0, 3]]),  # not in order
        (IN_TWO, [[0, 3], [0, 3]]),
        (IN_TWO, [[0, 3, 0]]),
    ],
)
def test_impossible_segments_and_halos_are_refused(segment_of: list[int], halo: list[list[int]]) -> None:
    rows = np.array(halo, np.int32) if halo else no_halo()
    with pytest.raises(DataError, match="halo: " if halo else "segment_of: "):
        Partition(np.array(segment_of, np.int32), np.zeros((1, 2), np.uint8), rows)


def test_members_of_segments_and_of_their_halo() -> None:
    halo = np.array([[0, 1], [0, 3], [1, 0]], np.int32)
    cut = Partition(np.array([0, 1, 0, 1], np.int32), np.array([[0, 0], [1, 0]], np.uint8), halo)
    assert cut.segments == 2
    assert cut.local_counts.tolist() == [2, 1]
    assert [cut.own(j).tolist() for j in range(2)] == [[0, 2], [1, 3]]
    assert [cut.halo_of(j).tolist() for j in range(2)] == [[1, 3], [0]]
