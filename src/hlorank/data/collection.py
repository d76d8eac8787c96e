"""Collections: their addresses, the official npz tree, and the reader and writer of its files."""

from __future__ import annotations

import itertools
import math
import zipfile
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hlorank.config import ConfigError
from hlorank.config.root import ADDRESS
from hlorank.config.root import Split as Split  # part of this module's interface, too
from hlorank.data.configurations import (
    LAYOUT_VALUES,
    MAX_CONFIGURATIONS,
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    TileConfigurations,
)
from hlorank.data.graph import MAX_EDGES, MAX_NODES, Graph
from hlorank.data.npz import CHUNK_BYTES, NpzFile
from hlorank.files import DataError, read_json, write_atomic

Kind = Literal["layout", "tile"]
SPLITS: tuple[Split, ...] = get_args(Split)
TPU_SOURCES = ("xla", "nlp")  # sources of TpuGraphs
MAX_UNPACKED_BYTES = 2**28
MADE_FROM = "made_from.json"  # in a collection's folder: the section `data` that its graphs were fetched with

_LEVEL = 3  # of deflate: a fourth of the time of the default for 20 to 60 % more bytes of layouts
_COMMON_KEYS = {"node_feat", "node_opcode", "edge_index", "config_runtime"}
_KEYS = {
    "layout": _COMMON_KEYS | {"node_config_feat", "node_config_ids", "node_splits"},
    "tile": _COMMON_KEYS | {"config_feat", "config_runtime_normalizers"},
}


@dataclass(frozen=True)
class Collection:
    """The address of a collection: `layout:<source>:<search>` or `tile:<source>`, whose search is None."""

    kind: Kind
    source: str
    search: str | None = None

    @classmethod
    def parse(cls, address: str) -> Collection:
        """Parse an address written with `:`, with `/` as in paths, or with `.` as in model names; else ConfigError."""
        if (match := ADDRESS.fullmatch(address)) is None:
            expected = "layout:<source>:<default|random|outputs|models> or tile:<source>"
            raise ConfigError(f"collection {address!r}: expected {expected}")
        return cls("tile", match["tile"]) if match["tile"] else cls("layout", match["layout"], match["search"])

    @property
    def parts(self) -> tuple[str, ...]:
        """Kind, source and, for layouts, search."""
        return (self.kind, self.source) if self.search is None else (self.kind, self.source, self.search)

    def __str__(self) -> str:
        return ":".join(self.parts)

    @property
    def path(self) -> Path:
        """The collection's folder in the official tree, such as layout/xla/default."""
        return Path(*self.parts)

    @property
    def backend(self) -> str:
        """The backend that its source names: cpu, gpu, or the generation of a TPU; empty for other sources."""
        if self.source in TPU_SOURCES:
            return "tpu-v3"
        return self.source if self.source in ("cpu", "gpu") or self.source.startswith("tpu-") else ""

    @property
    def model_name(self) -> str:
        """The collection's name as a registered model, such as layout.xla.default."""
        return ".".join(self.parts)


def graph_files(root: Path, collection: Collection, split: Split | None) -> list[Path]:
    """Return the npz files of one split in a tree such as data/raw, sorted by name; None is a folder without splits."""
    return npz_files(root / collection.path / (split or ""))


def npz_files(folder: Path) -> list[Path]:
    """Return the graphs of a folder, sorted by name."""
    # Version 0.2 could write other features to .extra.npz next to a graph.
    return sorted(path for path in folder.glob("*.npz") if not path.name.endswith(".extra.npz"))


def made_from(folder: Path) -> dict[str, Any]:
    """Return the section `data` that a collection's folder was fetched with; it is empty for graphs of your own."""
    path = folder / MADE_FROM
    return read_json(path) if path.is_file() else {}


def remove_stale(output: Path, keep: Container[Path]) -> None:
    """Remove graphs of an earlier fetch, except `keep`, and files that a kill left half-written, and no others."""
    for split in SPLITS:
        for path in (output / split).glob("*"):
            if path.suffix in {".npz", ".json", ".partial"} and path not in keep:
                path.unlink()


def sidecar_path(graph: Path) -> Path:
    """Return the path of the JSON file next to a graph's npz file with the facts of its measurement."""
    return graph.with_suffix(".json")


def measured_backend(graph: Path) -> str:
    """Return the backend of a measured graph by its sidecar, or by the folder of the official tree that it is in."""
    path = sidecar_path(graph)
    addresses = [str(read_json(path).get("collection", ""))] if path.is_file() else []
    folders = graph.absolute().parent.parts
    for end in range(len(folders), 1, -1):
        addresses += ["/".join(folders[end - 3 : end]), "/".join(folders[end - 2 : end])]
    return next((Collection.parse(address).backend for address in addresses if ADDRESS.fullmatch(address)), "")


def split_half_tau(graph: Path) -> float | None:
    """Return the Kendall tau between two independent halves of a graph's measurements, from its sidecar.

    None means that no sidecar has it, or that there was nothing to rank; another value than -1..1 is a DataError.
    """
    path = sidecar_path(graph)
    tau = read_json(path).get("split_half_tau") if path.is_file() else None
    if tau is not None and not (isinstance(tau, int | float) and -1 <= tau <= 1):
        raise DataError("split_half_tau", "a number in -1..1, or null", tau, file=path)
    return tau


def _int64(file: NpzFile, key: str) -> NDArray[np.int64]:
    array = file.read(key)
    if array.dtype not in (np.int32, np.int64):
        raise DataError(key, "dtype int64 or int32", array.dtype.name)
    return array.astype(np.int64)


def _layout(file: NpzFile, first: int | None, max_layouts: int | None) -> LayoutConfigurations:
    node_ids = _int64(file, "node_config_ids")
    if node_ids.ndim != 1 or len(node_ids) == 0:
        raise DataError("node_config_ids", "shape (configurable nodes,), at least one", node_ids.shape)
    shape, dtype = file.header("node_config_feat")
    if dtype != np.float32:
        raise DataError("node_config_feat", "dtype float32", dtype.name)
    if len(shape) != 3 or shape[1:] != (len(node_ids), LAYOUT_VALUES):
        raise DataError("node_config_feat", f"shape (configurations, {len(node_ids)}, {LAYOUT_VALUES})", shape)
    if first is None:
        return LayoutConfigurations.from_chunks(node_ids, file.chunks("node_config_feat"), max_layouts)
    row_bytes = len(node_ids) * LAYOUT_VALUES * dtype.itemsize
    chunks = itertools.islice(file.chunks("node_config_feat", first * row_bytes), 1)
    return LayoutConfigurations.from_chunks(node_ids, (chunk[:first] for chunk in chunks))


def check_sizes(
    file: NpzFile,
    *,
    nodes: int = MAX_NODES,
    edges: int = MAX_EDGES,
    configurations: int = MAX_CONFIGURATIONS,
    unpacked_bytes: int = MAX_UNPACKED_BYTES,
) -> int:
    """Refuse a graph by the headers of its arrays, before any array is read; return the bytes of all arrays.

    The limits are numbers of rows; `unpacked_bytes` is without the layouts, which are read in chunks.
    """
    unpacked = layouts = 0
    for key in sorted(file.keys):
        shape, dtype = file.header(key)
        limit = edges if key == "edge_index" else nodes
        if key.startswith("config_") or key == "node_config_feat":
            limit = configurations
        if shape[0] > limit:
            raise DataError(key, f"at most {limit:,} rows", f"{shape[0]:,}", file=file.path)
        size = math.prod(shape) * dtype.itemsize
        if key == "node_config_feat":
            layouts = size
        else:
            unpacked += size
    if unpacked > unpacked_bytes:
        raise DataError("arrays", f"at most {unpacked_bytes:,} bytes", f"{unpacked:,}", file=file.path)
    return unpacked + layouts


def read_graph(path: Path, kind: Kind, first: int | None = None, max_layouts: int | None = None) -> MeasuredGraph:
    """Read and validate one npz file of the official tree.

    int32 and int64 are accepted where the official files have int64, and node_splits as (k,) or (1, k).

    Args:
        path: the file.
        kind: kind of the configurations that the file must have.
        first: read (and check) only this many configurations and runtimes, at least 1; None reads all.
        max_layouts: limit of the distinct layouts.

    Raises:
        DataError: the file is damaged or too large (`check_sizes`), or an array breaks the schema; the message has the
            file, the key, the expected and the found value.
    """
    try:
        with NpzFile(path) as file:
            if file.keys != _KEYS[kind]:
                raise DataError("keys", f"{sorted(_KEYS[kind])} ({kind})", sorted(file.keys))
            check_sizes(file)
            opcodes = file.read("node_opcode")
            splits, normalizer = np.array([0, len(opcodes)], dtype=np.int64), None
            if kind == "layout":
                splits = _int64(file, "node_splits")
                if splits.ndim != 1 and splits.shape[:-1] != (1,):
                    raise DataError("node_splits", "shape (k,) or (1, k)", splits.shape)
            graph = Graph(file.read("node_feat"), opcodes, _int64(file, "edge_index"), splits.reshape(-1))
            configurations: LayoutConfigurations | TileConfigurations
            if kind == "layout":
                configurations = _layout(file, first, max_layouts)
            else:
                configurations = TileConfigurations(file.read("config_feat")[:first])
                normalizer = _int64(file, "config_runtime_normalizers")[:first]
            measurements = Measurements(_int64(file, "config_runtime")[:first], normalizer)
            return MeasuredGraph(path.stem, graph, configurations, measurements)
    except DataError as error:
        raise error.in_file(path) from None


def write_graph(path: Path, measured: MeasuredGraph, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Write one npz file of the official tree, in one step and in bounded memory.

    The file has the keys, dtypes and shapes of the official files (tile files have no node_splits); equal content
    gives equal bytes.
    """
    graph, configurations = measured.graph, measured.configurations
    arrays: dict[str, NDArray[Any]] = {
        "node_feat": graph.node_feat,
        "node_opcode": graph.node_opcode,
        "edge_index": graph.edge_index,
        "config_runtime": measured.measurements.runtime,
    }
    if isinstance(configurations, LayoutConfigurations):
        arrays["node_config_ids"] = configurations.node_ids
        arrays["node_splits"] = graph.node_splits[None, :]
    else:
        arrays["config_feat"] = configurations.feat
        assert measured.measurements.normalizer is not None  # MeasuredGraph checks it
        arrays["config_runtime_normalizers"] = measured.measurements.normalizer

    def write(output: IO[bytes]) -> None:
        # Names instead of ZipInfo get the level, and a fixed date: equal content gives equal bytes.
        with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
            for key, array in arrays.items():
                with archive.open(f"{key}.npy", "w", force_zip64=True) as stream:
                    npy.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)
            if isinstance(configurations, LayoutConfigurations):
                _write_layouts(archive, configurations, chunk_bytes)

    write_atomic(path, write)


def _write_layouts(archive: zipfile.ZipFile, configurations: LayoutConfigurations, chunk_bytes: int) -> None:
    shape = (*configurations.codes.shape, LAYOUT_VALUES)
    step = max(1, chunk_bytes // (shape[1] * LAYOUT_VALUES * 4))
    with archive.open("node_config_feat.npy", "w", force_zip64=True) as stream:
        npy.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for start in range(0, shape[0], step):
            stream.write(configurations.values(slice(start, start + step)).astype("<f4").tobytes())
