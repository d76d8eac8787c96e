from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.data.collection import Collection
from hlorank.files import DataError, read_json
from hlorank_collect.left_out import LEFT_OUT, read_left_out, record_left_out

RANDOM, TILE = Collection.parse("layout:cpu:random"), Collection.parse("tile:cpu")


def test_each_program_has_its_last_reason_until_it_is_measured(tmp_path: Path) -> None:
    record_left_out(tmp_path, RANDOM, "a", None)
    assert not list(tmp_path.iterdir())
    for collection, program, reason in ((RANDOM, "a", "first"), (TILE, "a", "second"), (RANDOM, "a", "third")):
        record_left_out(tmp_path, collection, program, reason)
    record_left_out(tmp_path, RANDOM, "b", "fourth")
    expected = {"layout:cpu:random": {"a": "third", "b": "fourth"}, "tile:cpu": {"a": "second"}}
    assert read_left_out(tmp_path) == read_json(tmp_path / LEFT_OUT) == expected
    record_left_out(tmp_path, TILE, "a", None)
    record_left_out(tmp_path, RANDOM, "a", None)
    assert read_left_out(tmp_path) == {"layout:cpu:random": {"b": "fourth"}}
    assert [path.name for path in tmp_path.iterdir()] == [LEFT_OUT]


def test_reasons_are_one_line(tmp_path: Path) -> None:
    record_left_out(tmp_path, TILE, "a", "one\n" * 500)
    (reason,) = read_left_out(tmp_path)["tile:cpu"].values()
    assert reason.isprintable()
    assert len(reason) <= 500


@pytest.mark.parametrize("text", ["{", "[]", '{"tile:cpu": []}', '{"tile:cpu": {"a": 1}}'])
def test_a_damaged_file_is_named_and_kept(text: str, tmp_path: Path) -> None:
    (tmp_path / LEFT_OUT).write_text(text)
    with pytest.raises(DataError, match=LEFT_OUT):
        read_left_out(tmp_path)
    with pytest.raises(DataError, match=LEFT_OUT):
        record_left_out(tmp_path, TILE, "b", "why")
    assert (tmp_path / LEFT_OUT).read_text() == text
