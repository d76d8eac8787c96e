"""Recognition of collections whose graphs are one segment each."""

from __future__ import annotations

from pathlib import Path

from hlorank.files import METRICS, read_json


def one_segment(segments: Path) -> bool:
    """Return whether every graph of a collection is one segment, so that methods on segments equal `full`.

    Args:
        segments: the collection's folder under data/segments, with metrics.json of the stage partition; a missing
            file gives False.

    Raises:
        DataError: metrics.json is not a JSON object.
    """
    file = segments / METRICS
    return file.is_file() and read_json(file).get("segments_per_graph") == 1
