from __future__ import annotations

from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.hlo.hlo_pb2 import ModuleTuningData, TuningData
from hlorank.hlo.wire import field_places


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=300), max_size=5))
def test_every_entry_is_found(entries: list[bytes]) -> None:
    data = TuningData(modules=entries).SerializeToString()
    found = [data[start : start + size] for start, size in field_places(BytesIO(data), 1)]
    assert found == entries


def test_other_fields_are_skipped_whatever_their_wire_type() -> None:
    varint, fixed64, delimited, fixed32 = b"\x10\xff\x01", b"\x19" + bytes(8), b"\x22\x01a", b"\x2d" + bytes(4)
    data = varint + b"\x0a\x02hi" + fixed64 + delimited + fixed32 + b"\x0a\x00"
    assert field_places(BytesIO(data), 1) == [(5, 2), (len(data), 0)]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a tag without a length
        b"\x0a\x05hi",  # fewer bytes than announced
        b"\x0a\x02hi\x0b",  # a group, which nobody writes
        b"\x0a\x02hi\x10",  # a number that is not there
        b"\xff" * 11,  # a number without an end
        b"plain text, in which no message is",
    ],
)
def test_what_is_not_a_whole_message_has_no_entries(data: bytes) -> None:
    assert field_places(BytesIO(data), 1) == []


def test_a_nested_message_is_one_entry() -> None:
    inner = ModuleTuningData(fingerprint=7)
    inner.module.computations.add().instructions.add(opcode="add")
    data = TuningData(modules=[inner.SerializeToString()] * 2).SerializeToString()
    places = field_places(BytesIO(data), 1)
    assert [ModuleTuningData.FromString(data[start : start + size]) for start, size in places] == [inner, inner]
