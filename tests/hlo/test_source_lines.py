"""Origins of instructions: in their metadata, or in a table of stack frames; damaged tables have none."""

import pytest

from hlorank.hlo.hlo_pb2 import HloModuleProto, OpMetadata
from hlorank.hlo.source_lines import keep_origins, origin_text


@pytest.fixture
def module() -> HloModuleProto:
    """Three instructions: one with a file and a line, one with a stack frame, one without metadata."""
    result = HloModuleProto(id=3)
    first, second, _ = (result.computations.add().instructions.add(name=name) for name in "abc")
    first.metadata.CopyFrom(OpMetadata(op_name="jit(f)/add", source_file="/home/me/model.py", source_line=12))
    second.metadata.CopyFrom(OpMetadata(op_name="jit(f)/dot", stack_frame_id=2))
    table = result.stack_frame_index
    table.file_names[:] = ["/other.py", "/home/me/layers.py"]
    table.file_locations.add(file_name_id=2, line=7)
    for location in (5, 1):
        table.stack_frames.add(file_location_id=location)
    return result


def texts(module: HloModuleProto) -> list[str]:
    return [origin_text(module, computation.instructions[0]) for computation in module.computations]


def test_origins_outlive_the_table_of_frames(module: HloModuleProto) -> None:
    expected = ["jit(f)/add (model.py:12)", "jit(f)/dot (layers.py:7)", ""]
    assert texts(module) == expected
    keep_origins(module)
    assert texts(module) == expected
    assert not module.HasField("stack_frame_index")


def test_numbers_beyond_the_table(module: HloModuleProto) -> None:
    for frame in (1, 3, -1, 99):  # of a location that is not there, and frames that are not there
        module.computations[1].instructions[0].metadata.stack_frame_id = frame
        assert texts(module)[1] == "jit(f)/dot"
