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


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 8), min_size=1, unique=True)), max_size=40),
    st.integers(1, 6),
)
def test_equals_a_list_in_order_of_use(operations: list[tuple[bool, list[int]]], capacity: int) -> None:
    """The least recently used entries are evicted; a table from a checkpoint is the same."""
    table, used = EmbeddingTable(2, capacity * ENTRY + 5, "float32"), dict[int, int]()  # the step that wrote each key
    for step, (write, keys) in enumerate(operations):
        present = [key for key in keys if key in used]
        for key in keys if write else present:
            used[key] = step if write else used[key]
            used[key] = used.pop(key)  # to the end
            if len(used) > capacity:
                del used[next(iter(used))]
        if write:
            table.write(keys, rows(*(step + key / 10 for key in keys)), step)
        else:
            assert table.look_up(keys).tolist() == [key in present for key in keys]
        if step % 3 == 2:
            state, table = table.state_dict(), EmbeddingTable(2, capacity * ENTRY, "float32")
            table.load_state_dict(state)
    embeddings, written = table.read([*used])
    torch.testing.assert_close(embeddings, rows(*(step + key / 10 for key, step in used.items())).reshape(len(used), 2))
    assert written.tolist() == [*used.values()]
    assert (table.capacity, len(table), table.bytes) == (capacity, len(used), len(used) * ENTRY)
    assert table.state_dict()["keys"].tolist() == [*used]
    assert table.look_up(range(9)).tolist() == [key in used for key in range(9)]


def test_half_precision_takes_half_the_bytes() -> None:
    table = EmbeddingTable(100, 10**6, "float16")
    assert table.entry_bytes == 200 + ENTRY_OVERHEAD
    table.write([1], torch.full((1, 100), 1 / 3), step=0)
    embeddings, _ = table.read([1])
    assert embeddings.dtype == torch.float32
    assert 0 < (embeddings - 1 / 3).abs().max() < 1e-3


def test_a_checkpoint_of_another_width_is_refused() -> None:
    with pytest.raises(DataError, match="width 3"):
        EmbeddingTable(3, 3 * ENTRY, "float32").load_state_dict(EmbeddingTable(2, 3 * ENTRY, "float32").state_dict())


def test_a_budget_must_hold_the_graph_of_the_most_entries(caplog: pytest.LogCaptureFixture) -> None:
    needed = {"small": 3, "large": 7, "middle": 5}
    for capacity, warnings in ((15, 0), (14, 1), (7, 2)):  # it warns where all working sets do not fit
        EmbeddingTable(2, capacity * ENTRY, "float32").check_budget(needed)
        assert len(caplog.records) == warnings
    with pytest.raises(ConfigError) as caught:
        EmbeddingTable(2, 7 * ENTRY - 1, "float32").check_budget(needed)
    named = (f"segments.table_bytes={7 * ENTRY - 1}: ", "graph large has 7 entries", f" {7 * ENTRY} bytes")
    assert all(text in str(caught.value) for text in (*named, "segments.table_dtype"))
    with pytest.raises(ConfigError) as caught:
        EmbeddingTable(4, 7 * ENTRY - 1, "float16").check_budget(needed)
    assert "segments.table_dtype" not in str(caught.value)  # it is float16 already
