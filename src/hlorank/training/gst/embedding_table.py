"""The embedding table: embeddings of segments as they were last computed, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hlorank.config import ConfigError
from hlorank.files import DataError

DTYPES = {"float32": torch.float32, "float16": torch.float16}
# What Python keeps for an entry besides its embedding: a place in the order of use, a key and a slot.
ENTRY_OVERHEAD = 200
_SEGMENT_BITS, _LOCAL_BITS = 20, 24


def entry_keys(graph: int, segment: int | NDArray[np.int64], local: NDArray[Any]) -> NDArray[np.int64]:
    """The keys of some local configurations of segments.

    Args:
        graph: number of the graph, below 2^19.
        segment: below 2^20, of a shape that goes with that of `local`.
        local: segment-local configurations, below 2^24.
    """
    keys: NDArray[np.int64] = ((graph << _SEGMENT_BITS | segment) << _LOCAL_BITS) + local.astype(np.int64)
    return keys


class EmbeddingTable:
    """Embeddings keyed by (graph, segment, segment-local configuration); the least recently used make place.

    Args:
        width: numbers in an embedding.
        budget_bytes: bound of all that the table holds.
        dtype: float32 or float16.

    Raises:
        ConfigError: the dtype has no such name, or the budget holds no entry.

    Attributes:
        entry_bytes: what one entry takes.
        capacity: how many entries the budget holds.
    """

    def __init__(self, width: int, budget_bytes: int, dtype: str) -> None:
        if dtype not in DTYPES:
            raise ConfigError(f"segments.table_dtype: expected one of {', '.join(DTYPES)}, found {dtype!r}")
        self._budget_bytes = budget_bytes
        self.entry_bytes = width * DTYPES[dtype].itemsize + ENTRY_OVERHEAD
        self.capacity = budget_bytes // self.entry_bytes
        if self.capacity < 1:
            raise ConfigError(f"segments.table_bytes={budget_bytes}: one entry takes {self.entry_bytes} bytes")
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._embeddings = torch.zeros(0, width, dtype=DTYPES[dtype])
        self._written = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def bytes(self) -> int:
        """What the entries take."""
        return len(self) * self.entry_bytes

    def check_budget(self, entries: Mapping[str, int]) -> None:
        """Makes sure that the entries of any one graph fit: one that goes before it is met again serves nothing.

        Args:
            entries: how many the working set of each graph has.

        Raises:
            ConfigError: the budget is too small for a graph.
        """
        graph = max(entries, key=entries.__getitem__)
        if entries[graph] > self.capacity:
            half = "" if self._embeddings.dtype == torch.float16 else ", or set segments.table_dtype to float16"
            raise ConfigError(
                f"segments.table_bytes={self._budget_bytes}: the working set of the graph {graph} has "
                f"{entries[graph]} entries, which take {entries[graph] * self.entry_bytes} bytes; set it to at least "
                f"that, lower segments.configs_per_graph{half}"
            )

    def present(self, keys: Sequence[int]) -> NDArray[np.bool_]:
        """(keys,) which entries there are."""
        return np.fromiter((key in self._slots for key in keys), dtype=np.bool_, count=len(keys))

    def read(self, keys: Sequence[int]) -> tuple[Tensor, NDArray[np.int64]]:
        """Entries that are there, which counts as a use.

        Returns:
            (keys, width) float32 embeddings, and (keys,) int64, the steps that they were written at.
        """
        for key in keys:
            self._slots.move_to_end(key)
        slots = [self._slots[key] for key in keys]
        return self._embeddings[slots].float(), self._written[slots]

    def write(self, keys: Sequence[int], embeddings: Tensor, step: int) -> None:
        """Writes entries, which counts as a use; the least recently used ones go where there is no place left.

        Args:
            keys: different ones.
            embeddings: (keys, width); no gradient goes through the table.
            step: the present step.
        """
        keys, embeddings = keys[-self.capacity :], embeddings[-self.capacity :]
        self.to(embeddings.device)
        for key in keys:
            if key in self._slots:
                self._slots.move_to_end(key)
            else:
                full = len(self._slots) == self.capacity
                self._slots[key] = self._slots.popitem(last=False)[1] if full else len(self._slots)
        self._grow(len(self._slots))
        slots = [self._slots[key] for key in keys]
        self._embeddings[slots] = embeddings.detach().to(self._embeddings.dtype)
        self._written[slots] = step

    def to(self, device: torch.device) -> None:
        """Moves the embeddings; a checkpoint leaves them on the CPU."""
        self._embeddings = self._embeddings.to(device)

    def _grow(self, needed: int) -> None:
        if needed > len(self._written):
            rows = min(self.capacity, max(needed, 2 * len(self._written)))
            # Not filled, so that rows take memory when they are written.
            embeddings = self._embeddings.new_empty(rows, self._embeddings.shape[1])
            embeddings[: len(self._written)] = self._embeddings
            self._embeddings = embeddings
            self._written = np.pad(self._written, (0, rows - len(self._written)))

    def state_dict(self) -> dict[str, Tensor]:
        """The entries, from the least to the most recently used, as tensors."""
        slots = list(self._slots.values())
        return {
            "keys": torch.tensor(list(self._slots), dtype=torch.int64),
            "embeddings": self._embeddings[slots].cpu(),
            "written": torch.from_numpy(self._written[slots]),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes the place of all entries.

        Raises:
            DataError: embeddings of another width.
        """
        embeddings = state["embeddings"]
        if embeddings.shape[1] != self._embeddings.shape[1]:
            raise DataError("table", f"embeddings of width {self._embeddings.shape[1]}", embeddings.shape[1])
        self._slots.clear()
        keys, written = state["keys"].tolist(), state["written"].numpy()
        self._slots.update((key, slot) for slot, key in enumerate(keys))
        self._embeddings = embeddings.to(self._embeddings.dtype)
        self._written = written.copy()
