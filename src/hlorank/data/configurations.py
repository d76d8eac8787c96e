"""Layout and tile configurations of a graph, their measured runtimes, and the content of one npz file.

Objects are validated on construction: an array of another dtype, shape or range than documented is a DataError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import Float32, Graph, Int64, check_array, check_finite, check_name
from hlorank.files import DataError

LAYOUT_VALUES = 18
LAYOUT_DIMS = 6
LAYOUT_MIN, LAYOUT_MAX = -1, 5
TILE_FEATURES = 24
LAYOUT_TENSORS = ("output", "input", "kernel")
# Limits of what is read from a file, several times the largest of TpuGraphs.
MAX_CONFIGURATIONS = 2**24
MAX_LAYOUTS = 2**22  # distinct rows of layouts of a graph; the real files of the tests have 14 to 62

_RADIX = LAYOUT_MAX - LAYOUT_MIN + 2  # 8: three bits a value, so that 18 values fit in one 64-bit key
_POWERS = np.array([_RADIX**i for i in reversed(range(LAYOUT_VALUES))], dtype=np.int64)
# The key is summed tensor by tensor: 18 bits, which float32 has exactly, so that a product of matrices does it.
_TENSOR_BITS = 3 * LAYOUT_DIMS
_TENSOR_POWERS = np.kron(np.eye(len(LAYOUT_TENSORS)), _POWERS[-LAYOUT_DIMS:, None]).astype(np.float32)


def pack_layouts(values: NDArray[Any], first: int = 0) -> Int64:
    """Pack rows (..., 18) of layout values of any real dtype into one int64 each, in lexicographic order.

    Other values than whole numbers in -1..5 are refused with DataError, which counts rows from `first`.
    """
    inside = values.size == 0 or (values.min() >= LAYOUT_MIN and values.max() <= LAYOUT_MAX)
    if not (inside and (np.issubdtype(values.dtype, np.integer) or (np.rint(values) == values).all())):
        wrong = ~((values >= LAYOUT_MIN) & (values <= LAYOUT_MAX))
        if not wrong.any():
            wrong = values != np.trunc(values)
        row, *rest = np.argwhere(wrong)[0].tolist()
        found = f"{values[row, *rest]} at {[first + row, *rest]}"
        raise DataError("node_config_feat", f"whole numbers in {LAYOUT_MIN}..{LAYOUT_MAX}", found)
    offsets = -LAYOUT_MIN * _TENSOR_POWERS.sum(axis=0)
    tensors = (values.astype(np.float32, copy=False) @ _TENSOR_POWERS + offsets).astype(np.int64)
    keys: Int64 = tensors[..., 0]
    for tensor in range(1, len(LAYOUT_TENSORS)):
        keys = (keys << _TENSOR_BITS) | tensors[..., tensor]
    return keys


def unpack_layouts(keys: Int64) -> NDArray[np.int8]:
    """Return the rows of `pack_layouts`: (...,) int64 to (..., 18) int8."""
    rows = np.empty((*keys.shape, LAYOUT_VALUES), dtype=np.int8)
    for column, power in enumerate(_POWERS):  # one column at a time, as 18 numbers of 64 bits for each key are many
        rows[..., column] = keys // power % _RADIX + LAYOUT_MIN
    return rows


def order_fingerprint(chunks: Iterable[NDArray[Any]]) -> str:
    """Return the identity of configurations in their order: 16 digits of the SHA-256 of their values, row by row.

    Layouts, (..., nodes, 18), count as int8 and tiles, (..., 24), as float32, however a file stores them.
    """
    digest = hashlib.sha256()
    with np.errstate(invalid="ignore"):  # of values that no layout has
        for chunk in chunks:
            digest.update(np.ascontiguousarray(chunk, dtype=np.int8 if chunk.ndim == 3 else "<f4").data)
    return digest.hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class LayoutConfigurations:
    """Layout configurations of the configurable nodes of one graph, as codes into their distinct rows.

    A row has the output, input and kernel layout, six minor-to-major dimensions each, padded with -1.
    """

    node_ids: Int64  # (configurable nodes,), increasing
    codebook: NDArray[np.int8]  # (U, 18), the distinct rows in lexicographic order
    codes: NDArray[np.unsignedinteger[Any]]  # (configurations, configurable nodes); `codebook[codes]` is the raw array

    def __len__(self) -> int:
        return len(self.codes)

    def __post_init__(self) -> None:
        check_array("node_config_ids", self.node_ids, np.int64, (None,))
        check_array("node_config_feat", self.codebook, np.int8, (None, LAYOUT_VALUES))
        if len(self.node_ids) == 0:
            raise DataError("node_config_ids", "at least one configurable node", "none")
        if (np.diff(self.node_ids) <= 0).any() or self.node_ids[0] < 0:
            raise DataError("node_config_ids", "increasing node ids", self.node_ids.tolist()[:20])
        if not np.issubdtype(self.codes.dtype, np.unsignedinteger):
            raise DataError("node_config_feat", "unsigned codes", self.codes.dtype.name)
        if self.codes.ndim != 2 or self.codes.shape[1] != len(self.node_ids):
            expected = f"a row for each of {len(self.node_ids)} configurable nodes"
            raise DataError("node_config_feat", expected, f"shape {self.codes.shape}")
        if len(self.codes) == 0:
            raise DataError("node_config_feat", "at least one configuration", "none")
        if int(self.codes.max()) >= len(self.codebook):
            raise DataError("node_config_feat", f"codes below {len(self.codebook)}", int(self.codes.max()))
        if (np.diff(pack_layouts(self.codebook)) <= 0).any():
            raise DataError("node_config_feat", "a codebook of distinct rows in lexicographic order", "another order")
        for name, start in zip(LAYOUT_TENSORS, range(0, LAYOUT_VALUES, LAYOUT_DIMS), strict=True):
            layouts = np.sort(self.codebook[:, start : start + LAYOUT_DIMS], axis=1)
            repeated = ((layouts[:, 1:] == layouts[:, :-1]) & (layouts[:, 1:] >= 0)).any(axis=1)
            if repeated.any():
                row = self.codebook[np.argmax(repeated), start : start + LAYOUT_DIMS].tolist()
                raise DataError("node_config_feat", f"each dimension once in the {name} layout", row)

    @classmethod
    def from_chunks(
        cls, node_ids: Int64, chunks: Iterable[NDArray[Any]], max_distinct: int | None = None
    ) -> LayoutConfigurations:
        """Encode chunks of raw values, (configurations of the chunk, configurable nodes, 18) each.

        A DataError says that a chunk has another shape or other values, or that there are more distinct rows than
        `max_distinct`, by default MAX_LAYOUTS; no chunk is read after that.
        """
        from pandas import factorize  # a heavy import

        limit = MAX_LAYOUTS if max_distinct is None else max_distinct
        known: dict[int, int] = {}  # keys in the order in which they were found, and their numbers
        parts: list[NDArray[Any]] = []
        rows = 0
        for chunk in chunks:
            if chunk.ndim != 3 or chunk.shape[1:] != (len(node_ids), LAYOUT_VALUES):
                expected = f"shape (configurations, {len(node_ids)}, {LAYOUT_VALUES})"
                raise DataError("node_config_feat", expected, chunk.shape)
            # By hashing: sorting the keys of a chunk takes as long as unpacking it from a file.
            inverse, keys = factorize(pack_layouts(chunk, rows).ravel())
            numbers = np.array([known.setdefault(key, len(known)) for key in keys.tolist()], dtype=np.int64)
            parts.append(numbers.astype(np.min_scalar_type(len(known)))[inverse].reshape(chunk.shape[:2]))
            rows += len(chunk)
            if len(known) > limit:
                raise DataError("node_config_feat", f"at most {limit:,} distinct layouts", f"{len(known):,}")
        distinct = np.fromiter(known, np.int64, len(known))
        order = np.argsort(distinct)
        rank = np.empty(len(distinct), dtype=np.min_scalar_type(max(len(distinct) - 1, 0)))
        rank[order] = np.arange(len(distinct))
        codes: NDArray[Any] = np.empty((rows, len(node_ids)), dtype=rank.dtype)
        start = 0
        while parts:  # each is freed after it is copied
            part = parts.pop(0)
            codes[start : start + len(part)] = rank[part]
            start += len(part)
        return cls(node_ids, unpack_layouts(distinct[order]), codes)

    def values(self, rows: slice | Int64 = slice(None)) -> NDArray[np.int8]:
        """Return the raw values of configurations: (rows, configurable nodes, 18)."""
        values: NDArray[np.int8] = self.codebook[self.codes[rows]]
        return values


@dataclass(frozen=True, eq=False)
class TileConfigurations:
    """Tile configurations of one kernel."""

    feat: Float32  # (configurations, 24): kernel, output and input bounds, six values, sum and product each

    def __len__(self) -> int:
        return len(self.feat)

    def __post_init__(self) -> None:
        check_array("config_feat", self.feat, np.float32, (None, TILE_FEATURES))
        if len(self.feat) == 0:
            raise DataError("config_feat", "at least one configuration", "none")
        check_finite("config_feat", self.feat)


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measured runtimes of configurations, in nanoseconds."""

    runtime: Int64  # (configurations,), all positive, or all 0 where labels are withheld
    normalizer: Int64 | None = None  # (configurations,), of the default tile on the same machine; None for layouts

    def __len__(self) -> int:
        return len(self.runtime)

    def __post_init__(self) -> None:
        check_array("config_runtime", self.runtime, np.int64, (None,))
        if len(self.runtime) and self.runtime.min() < 0:
            raise DataError("config_runtime", "runtimes of at least 0 ns", int(self.runtime.min()))
        if (self.runtime == 0).any() and not self.withheld:
            expected = "positive runtimes, or 0 for every configuration (labels withheld)"
            raise DataError("config_runtime", expected, f"0 at {int(np.argmin(self.runtime))} among others")
        if self.normalizer is not None:
            check_array("config_runtime_normalizers", self.normalizer, np.int64, (len(self.runtime),))
            if len(self.normalizer) and self.normalizer.min() <= 0:
                raise DataError("config_runtime_normalizers", "positive runtimes", int(self.normalizer.min()))

    @property
    def withheld(self) -> bool:
        """True where the labels are withheld, as in the official test files."""
        return not self.runtime.any()

    @cached_property
    def label(self) -> NDArray[np.float64]:
        """Labels of the ranking, (configurations,) float64: the runtime in ns, or runtime / normalizer for tiles."""
        runtime = self.runtime.astype(np.float64)
        return runtime if self.normalizer is None else runtime / self.normalizer


@dataclass(frozen=True, eq=False)
class MeasuredGraph:
    """A graph with its configurations and their runtimes, the content of one npz file; the parts must fit."""

    name: str
    graph: Graph
    configurations: LayoutConfigurations | TileConfigurations
    measurements: Measurements

    def __post_init__(self) -> None:
        check_name(self.name)
        if len(self.configurations) != len(self.measurements):
            expected = f"one runtime for each of {len(self.configurations)} configurations"
            raise DataError("config_runtime", expected, len(self.measurements))
        if isinstance(self.configurations, LayoutConfigurations):
            last = int(self.configurations.node_ids[-1])
            if last >= self.graph.nodes:
                raise DataError("node_config_ids", f"node ids in 0..{self.graph.nodes - 1}", last)
            if self.measurements.normalizer is not None:
                raise DataError("config_runtime_normalizers", "none for layout configurations", "an array")
        elif self.measurements.normalizer is None:
            raise DataError("config_runtime_normalizers", "an array for tile configurations", "none")
