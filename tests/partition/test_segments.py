"""Segments of a graph."""

from __future__ import annotations

import numpy as np
import pytest

from hlorank.files import DataError
from hlorank.partition.segments import Partition


@pytest.mark.parametrize(
    ("segment_of", "message"),
    [
        ([0, -1, 1], r"segment_of: .*-1 for node 1"),
        ([0, 0, 2], r"segment_of: .*2"),
        ([0, 0, 0], r"segment_of: .*segment 1"),
    ],
)
def test_impossible_segments_are_refused(segment_of: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Partition(np.array(segment_of, np.int32), np.zeros((1, 2), np.uint8))


def test_members_of_segments_and_of_their_halo() -> None:
    halo = np.array([[0, 1], [0, 3], [1, 0]], np.int32)
    cut = Partition(np.array([0, 1, 0, 1], np.int32), np.array([[0, 0], [1, 0]], np.uint8), halo)
    assert cut.segments == 2
    assert cut.local_counts.tolist() == [2, 1]
    assert [cut.own(j).tolist() for j in range(2)] == [[0, 2], [1, 3]]
    assert [cut.halo_of(j).tolist() for j in range(2)] == [[1, 3], [0]]
