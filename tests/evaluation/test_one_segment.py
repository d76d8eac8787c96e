from __future__ import annotations

from pathlib import Path

from hlorank.evaluation.one_segment import one_segment
from hlorank.files import write_json


def test_graphs_of_one_segment_are_recognised(tmp_path: Path) -> None:
    assert not one_segment(tmp_path)
    for mean, expected in ((1.0, True), (1.02, False)):
        write_json(tmp_path / "metrics.json", {"graphs": 22, "segments_per_graph": mean})
        assert one_segment(tmp_path) == expected
