"""Compilation of the first configurations: equal programs give way, and copies are listed with their sources."""

from pathlib import Path

import numpy as np
import pytest

from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph, Measurements
from hlorank.files import DataError
from hlorank.hlo.layout_space import layout_space
from hlorank.hlo.reader import featurize, read_records
from hlorank.hlo.xla_process import has_jaxlib
from hlorank.ranking.inputs import InputGraph
from hlorank.ranking.verify import verify

pytestmark = pytest.mark.skipif(not has_jaxlib(), reason="needs jax (extra collect)")
PROGRAM = Path(__file__).parent / "verify.before_layout-assignment.txt"


@pytest.fixture
def given() -> InputGraph:
    """A product of matrices, and five configurations: the default twice, row-major, and two others."""
    record = next(read_records(PROGRAM))
    rows = np.tile(layout_space(record.module).default, (5, 1, 1))
    rows[1, 0, :2] = rows[1, 0, 6:8] = 1, 0  # what the compiler chooses
    rows[2, 0, 6:8], rows[3, 0, :2] = (0, 1), (0, 1)
    configurations = LayoutConfigurations.from_chunks(layout_space(record.module).node_ids, [rows])
    graph = featurize(record)[0].graph
    measured = MeasuredGraph("m", graph, configurations, Measurements(np.zeros(5, dtype=np.int64)))
    return InputGraph(PROGRAM, measured, record.module, {"backend": "cpu"})


def test_what_changes_nothing_gives_way_and_copies_have_bytes_and_sources(given: InputGraph) -> None:
    found = verify(given, np.array([1, 2, 4, 3, 0]), 3)
    assert (found.same, found.failed) == ([1, 4], [])
    assert [*found.moves] == [0, 2, 3]
    assert found.moves[0] == {"bytes": 0, "added": [], "removed": []}
    operand, output = (found.moves[index] for index in (2, 3))
    assert operand["bytes"] == 2 * 64 * 32 * 4  # there and back
    assert output["bytes"] == 2 * 64 * 16 * 4
    copied = {row["opcode"]: row["count"] for row in operand["added"]}
    assert copied == {"copy": 1}
    assert any(row["origin"] == "f/dot (net.py:3)" for row in output["added"])
    few = verify(given, np.array([1, 4, 2, 3]), 1)
    assert ([*few.moves], few.same) == ([0], [1])


def test_measured_files_are_refused(given: InputGraph) -> None:
    with pytest.raises(DataError, match="--verify"):
        verify(InputGraph(given.file, given.measured, None, None), np.arange(5), 1)
