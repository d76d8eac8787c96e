"""The embedding table: entries that it keeps, entries that it evicts, and its state in a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.config import ConfigError
from hlorank.files import DataError
from hlorank.training.gst.embedding_table import ENTRY_OVERHEAD, EmbeddingTable, entry_keys

ENTRY = 2 * 4 + ENTRY_OVERHEAD


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([[value, -value] for value in values])


def test_keys_are_different() -> None:
    keys = [
        key
        for graph in (0, 1, 2**19 - 1)
        for segment in (0, 1, 2**20 - 1)
        for key in entry_keys(graph, segment, np.array([0, 1, 2**24 - 1], dtype=np.uint32))
    ]
    assert len(set(keys)) == 27
    assert all(0 <= key < 2**63 for key in keys)


def test_reads_what_was_written_last() -> None:
    table = EmbeddingTable(2, 10 * ENTRY, "float32")
    table.write([7, 3], rows(1, 2), step=1)
    table.write([3, 5], rows(4, 5), step=6)
    assert table.look_up([3, 4, 5, 7]).tolist() == [True, False, True, True]
    embeddings, written = table.read([5, 7, 3, 3])
    assert embeddings.tolist() == rows(5, 1, 4, 4).tolist()
    assert written.tolist() == [6, 1, 6, 6]
    assert (len(table), table.bytes) == (3, 3 * ENTRY)


def test_the_least_recently_used_entries_are_evicted() -> None:
    table = EmbeddingTable(2, 3 * ENTRY + 5, "float32")
    assert table.capacity == 3
    table.write([1, 2, 3], rows(1, 2, 3), step=0)
    table.look_up([1])
    table.write([4], rows(4), step=1)
    assert table.look_up([1, 2, 3, 4]).tolist() == [True, False, True, True]
    assert table.read([1, 4, 3])[0].tolist() == rows(1, 4, 3).tolist()
    table.write([5, 6, 7, 8], rows(5, 6, 7, 8), step=2)
    assert table.look_up([5, 6, 7, 8, 1]).tolist() == [False, True, True, True, False]
    assert table.read([8, 6])[0].tolist() == rows(8, 6).tolist()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=60), st.integers(1, 6))
def test_equals_a_list_in_order_of_use(operations: list[tuple[bool, int]], capacity: int) -> None:
    table, plain = EmbeddingTable(2, capacity * ENTRY, "float32"), list[tuple[int, int]]()
    for step, (write, key) in enumerate(operations):
        known = dict(plain)
        if write or key in known:
            plain = [entry for entry in plain if entry[0] != key]
            plain.append((key, step if write else known[key]))
            plain = plain[-capacity:]
        if write:
            table.write([key], rows(step), step)
        elif table.look_up([key])[0]:
            assert table.read([key])[0].tolist() == rows(known[key]).tolist()
    assert table.look_up(range(9)).tolist() == [key in dict(plain) for key in range(9)]


def test_half_precision_takes_half_the_bytes() -> None:
    table = EmbeddingTable(100, 10**6, "float16")
    assert table.entry_bytes == 200 + ENTRY_OVERHEAD
    table.write([1], torch.full((1, 100), 1 / 3), step=0)
    embeddings, _ = table.read([1])
    assert embeddings.dtype == torch.float32
    assert 0 < (embeddings - 1 / 3).abs().max() < 1e-3


def test_a_checkpoint_keeps_entries_and_their_order() -> None:
    table = EmbeddingTable(2, 3 * ENTRY, "float32")
    table.write([1, 2, 3], rows(1, 2, 3), step=4)
    table.look_up([1])
    again = EmbeddingTable(2, 3 * ENTRY, "float32")
    again.load_state_dict(table.state_dict())
    for one in (table, again):
        one.write([9], rows(9), step=5)
        assert one.look_up([1, 2, 3, 9]).tolist() == [True, False, True, True]
        assert one.read([3, 1, 9])[1].tolist() == [4, 4, 5]
    with pytest.raises(DataError, match="width 3"):
        EmbeddingTable(3, 3 * ENTRY, "float32").load_state_dict(table.state_dict())


def test_the_table_moves_with_the_model() -> None:
    table = EmbeddingTable(2, 3 * ENTRY, "float32")
    table.write([1], rows(1.0), step=0)
    table.to(torch.device("meta"))
    assert table.read([1])[0].device.type == "meta"


def test_a_budget_must_hold_the_graph_of_the_most_entries() -> None:
    needed = {"small": 3, "large": 7, "middle": 5}
    EmbeddingTable(2, 7 * ENTRY, "float32").check_budget(needed)
    with pytest.raises(ConfigError) as caught:
        EmbeddingTable(2, 7 * ENTRY - 1, "float32").check_budget(needed)
    message = str(caught.value)
    assert f"segments.table_bytes={7 * ENTRY - 1}: " in message
    assert "graph large has 7 entries" in message
    assert f" {7 * ENTRY} bytes" in message
    assert "segments.table_dtype" in message
    with pytest.raises(ConfigError) as caught:
        EmbeddingTable(4, 7 * ENTRY - 1, "float16").check_budget(needed)
    assert "segments.table_dtype" not in str(caught.value)  # it is float16 already


@pytest.mark.parametrize(("capacity", "warnings"), [(9, 0), (8, 1)])
def test_a_budget_below_all_working_sets_warns(capacity: int, warnings: int, caplog: pytest.LogCaptureFixture) -> None:
    EmbeddingTable(2, capacity * ENTRY, "float32").check_budget({"small": 2, "large": 7})
    assert len(caplog.records) == warnings
