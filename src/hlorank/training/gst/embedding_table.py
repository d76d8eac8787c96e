"""Embedding table (E): embeddings of segments as they were last computed, in bounded memory."""

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hlorank.config import ConfigError
from hlorank.files import DataError

log = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "float16": torch.float16}
# Bytes that Python needs for an entry in addition to its embedding: its place in the order of use, its key, its slot.
ENTRY_OVERHEAD = 200
_SEGMENT_BITS, _LOCAL_BITS = 20, 24


def entry_keys(graph: int, segment: int | NDArray[np.int64], local: NDArray[Any]) -> NDArray[np.int64]:
    """Return keys of local configurations of segments: 19 bits of the graph, 20 of the segment, 24 of the rest."""
    keys: NDArray[np.int64] = ((graph << _SEGMENT_BITS | segment) << _LOCAL_BITS) + local.astype(np.int64)
    return keys


def graph_numbers(keys: Tensor) -> NDArray[np.int64]:
    """Return the numbers of the graphs that keys belong to."""
    numbers: NDArray[np.int64] = keys.numpy() >> (_SEGMENT_BITS + _LOCAL_BITS)
    return numbers


class EmbeddingTable:
    """Embeddings keyed by (graph, segment, segment-local configuration); the least recently used are evicted.

    `capacity` entries of `entry_bytes` fit into the budget; a ConfigError says that it is smaller than one entry.
    """

    def __init__(self, width: int, budget_bytes: int, dtype: str) -> None:
        self._budget_bytes = budget_bytes
        self.entry_bytes = width * _DTYPES[dtype].itemsize + ENTRY_OVERHEAD
        self.capacity = budget_bytes // self.entry_bytes
        if self.capacity < 1:
            raise ConfigError(f"segments.table_bytes={budget_bytes}: one entry takes {self.entry_bytes} bytes")
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._embeddings = torch.zeros(0, width, dtype=_DTYPES[dtype])
        self._written = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def bytes(self) -> int:
        """Memory of the entries."""
        return len(self) * self.entry_bytes

    def check_budget(self, entries: Mapping[str, int]) -> None:
        """Check that the entries of each graph's working set fit: an entry evicted before it is read is useless.

        Where the entries of all graphs together do not fit, a warning says so: the entries that the table lacks are
        computed in each step, or left out. `entries` are the numbers of entries by graph.
        """
        graph, count = max(entries.items(), key=lambda item: item[1], default=("", 0))
        half = "" if self._embeddings.dtype == torch.float16 else ", or set segments.table_dtype to float16"
        remedy = f"set it to at least that, lower segments.configs_per_graph{half}"
        if count > self.capacity:
            raise ConfigError(
                f"segments.table_bytes={self._budget_bytes}: the working set of the graph {graph} has {count} entries, "
                f"which take {count * self.entry_bytes} bytes; {remedy}"
            )
        if (total := sum(entries.values())) > self.capacity:
            log.warning(
                "segments.table_bytes=%d holds %d of at most %d entries of the working sets, which take %d bytes; %s",
                *(self._budget_bytes, self.capacity, total, total * self.entry_bytes, remedy),
            )

    def look_up(self, keys: Sequence[int]) -> NDArray[np.bool_]:
        """Return for each key whether the table has an entry, (keys,); a look-up of an entry counts as a use."""
        present = np.fromiter((key in self._slots for key in keys), dtype=np.bool_, count=len(keys))
        for place in np.flatnonzero(present).tolist():
            self._slots.move_to_end(keys[place])
        return present

    def read(self, keys: Sequence[int]) -> tuple[Tensor, NDArray[np.int64]]:
        """Read the entries of keys, all present: (keys, width) float32, and (keys,), the steps that wrote them."""
        slots = np.fromiter(map(self._slots.__getitem__, keys), dtype=np.int64, count=len(keys))
        chosen = torch.from_numpy(slots).to(self._embeddings.device)
        return self._embeddings.index_select(0, chosen).float(), self._written[slots]

    def write(self, keys: Sequence[int], embeddings: Tensor, step: int) -> None:
        """Write entries of distinct keys, which counts as a use; evict the least recently used if the table is full."""
        keys, embeddings = keys[-self.capacity :], embeddings[-self.capacity :]
        self.to(embeddings.device)
        for key in keys:
            if key in self._slots:
                self._slots.move_to_end(key)
            else:
                full = len(self._slots) == self.capacity
                self._slots[key] = self._slots.popitem(last=False)[1] if full else len(self._slots)
        if (needed := len(self._slots)) > (held := len(self._written)):
            rows = min(self.capacity, max(needed, 2 * held))
            grown = self._embeddings.new_empty(rows, self._embeddings.shape[1])  # memory is taken by what is written
            grown[:held] = self._embeddings
            self._embeddings, self._written = grown, np.pad(self._written, (0, rows - held))
        slots = [self._slots[key] for key in keys]
        self._embeddings[slots] = embeddings.detach().to(self._embeddings.dtype)
        self._written[slots] = step

    def to(self, device: torch.device) -> None:
        """Move the embeddings to a device; loading a checkpoint leaves them on the CPU."""
        self._embeddings = self._embeddings.to(device)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the entries as tensors, from the least to the most recently used."""
        slots = list(self._slots.values())
        return {
            "keys": torch.tensor(list(self._slots), dtype=torch.int64),
            "embeddings": self._embeddings[slots].cpu(),
            "written": torch.from_numpy(self._written[slots]),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replace all entries; of more than fit, the last are kept. Embeddings of another width are a DataError."""
        state = {name: values[-self.capacity :] for name, values in state.items()}
        embeddings = state["embeddings"]
        if embeddings.shape[1] != self._embeddings.shape[1]:
            raise DataError("table", f"embeddings of width {self._embeddings.shape[1]}", embeddings.shape[1])
        self._slots.clear()
        keys, written = state["keys"].tolist(), state["written"].numpy()
        self._slots.update((key, slot) for slot, key in enumerate(keys))
        self._embeddings = embeddings.to(self._embeddings.dtype)
        self._written = written.copy()
