"""Graphs of a collection as NumPy arrays; a graph is read and checked when an array of it is first used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hlorank.config.extras import named_extra
from hlorank.data.collection import Kind, Split, read_graph, split_half_tau
from hlorank.data.configurations import LayoutConfigurations, MeasuredGraph
from hlorank.data.graph import Float32, Int64
from hlorank.data.npz import NpzFile
from hlorank.data.splits import family_of
from hlorank.featurize.columns import node_layout
from hlorank.featurize.features import distinct_rows
from hlorank.files import DataError

if TYPE_CHECKING:
    from torch_geometric.data import Data


class GraphView:
    """One graph with its configurations, in the official columns; what was read stays in memory with this object.

    Every array, and `row_of`, raises DataError for a file that is damaged or breaks the schema.

    Attributes:
        path: the npz file.
        name: name of the graph.
        split: train, valid or test.
    """

    def __init__(self, path: Path, split: Split, kind: Kind, labels: bool) -> None:
        self.path, self.name, self.split = path, path.stem, split
        self._kind, self._labels = kind, labels

    def __repr__(self) -> str:
        return f"<graph {self.name} of {self.split}, {self.num_configurations:,} configurations>"

    @cached_property
    def measured(self) -> MeasuredGraph:
        """Content of the file, as `Ranker` takes it; hidden runtimes are 0, as withheld labels are in official files.

        Of layouts, `measured.configurations` has the few distinct rows, `codebook`, and their small numbers, `codes`.
        """
        found = read_graph(self.path, self._kind)
        if self._labels:
            return found
        hidden = replace(found.measurements, runtime=np.zeros_like(found.measurements.runtime))
        return replace(found, measurements=hidden)

    @cached_property
    def num_configurations(self) -> int:
        """Number of configurations, for which only the header of an array is read."""
        with NpzFile(self.path) as file:
            return file.header("config_runtime")[0][0]

    @property
    def node_feat(self) -> Float32:
        """(nodes, 140) float32, the official node features."""
        return self.measured.graph.node_feat

    @property
    def opcode(self) -> NDArray[np.uint8]:
        """(nodes,) uint8, the official opcodes, 1..120; 0 is unknown."""
        return self.measured.graph.node_opcode

    @property
    def edge_index(self) -> Int64:
        """(edges, 2) int64; u consumes the output of v in a row [u, v], so u > v."""
        return self.measured.graph.edge_index

    @cached_property
    def node_layout(self) -> NDArray[np.int8]:
        """(nodes, 6) int8, the layout of the output, minor_to_major padded with -1."""
        return node_layout(self.node_feat)

    @property
    def configurable_index(self) -> Int64:
        """(configurable nodes,) int64, increasing node ids; empty for tiles."""
        found = self.measured.configurations
        return found.node_ids if isinstance(found, LayoutConfigurations) else np.zeros(0, dtype=np.int64)

    def configurations(self, rows: slice | ArrayLike = slice(None)) -> Float32:
        """Return the official values of configurations: all, or those of some rows.

        Args:
            rows: indices in the order of the npz file, or a mask; a slice, a list, an array or a tensor.

        Returns:
            Layouts: (rows, configurable nodes, 18) float32. Tiles: (rows, 24) float32.

        Raises:
            IndexError: there is no such configuration.
        """
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            rows = rows if rows.size else rows.astype(np.int64)  # an empty list has floats
        found = self.measured.configurations
        if isinstance(found, LayoutConfigurations):
            return np.asarray(found.codebook[found.codes[rows]], dtype=np.float32)
        return np.asarray(found.feat[rows])

    @property
    def runtime(self) -> Int64:
        """(configurations,) int64, nanoseconds; all 0 where the file withholds them; a DataError where hidden."""
        if not self._labels:
            raise DataError(
                "runtime", f"labels=True in hlorank.datasets.load for {self.split}", "hidden", file=self.path
            )
        return self.measured.measurements.runtime

    @property
    def normalizer(self) -> Int64 | None:
        """(configurations,) int64, runtimes of the default tile in nanoseconds; None for layouts."""
        return self.measured.measurements.normalizer

    @property
    def label(self) -> NDArray[np.float64]:
        """(configurations,) float64, what scores should rank: the runtime, or runtime / normalizer for tiles."""
        return self.runtime / (1 if self.normalizer is None else self.normalizer)

    @property
    def withheld(self) -> bool:
        """True where the file withholds the labels."""
        return not self.runtime.any()

    @cached_property
    def row_of(self) -> Int64:
        """(configurations,) int64, equal numbers for equal configurations, which are repeated measurements."""
        found = self.measured.configurations
        return distinct_rows(found.codes if isinstance(found, LayoutConfigurations) else found.feat)[1]

    @cached_property
    def family(self) -> str:
        """Model family, of which all graphs are in one split."""
        return family_of(self.path)

    @cached_property
    def split_half_tau(self) -> float | None:
        """Kendall tau between two halves of the measurements; None where nothing was measured twice."""
        return split_half_tau(self.path)

    def to_pyg(self) -> Data:
        """Return a copy as `torch_geometric.data.Data`, whose `edge_index` is (2, edges), and `opcode` int64.

        It has x, opcode, node_layout, edge_index, configurable_index, name and split, runtime unless it is hidden, and
        normalizer for tiles. In a batch, edge_index and configurable_index count the nodes of the graphs before.

        Raises:
            ConfigError: PyTorch or PyTorch Geometric is not installed, which the extra `rank` installs.
        """
        with named_extra("to_pyg"):
            import torch
            from torch_geometric.data import Data

        arrays: dict[str, NDArray[Any]] = {
            "x": self.node_feat,
            "opcode": self.opcode.astype(np.int64),
            "node_layout": self.node_layout,
        }
        arrays |= {"edge_index": self.edge_index.T, "configurable_index": self.configurable_index}
        arrays |= {"runtime": self.runtime} if self._labels else {}
        arrays |= {} if self.normalizer is None else {"normalizer": self.normalizer}
        tensors = {key: torch.from_numpy(np.array(array, order="C")) for key, array in arrays.items()}
        return Data(**tensors, name=self.name, split=self.split)


class Graphs(Sequence[GraphView]):
    """The graphs of a split, sorted by name: `graphs[0]`, `graphs["unet"]`, `graphs[:5]`, `len(graphs)`, iteration.

    Each access gives a new `GraphView`, which is freed after its use; `list(graphs)` keeps what is read of them.

    Attributes:
        names: the names.
    """

    def __init__(self, paths: Sequence[Path], split: Split, kind: Kind, labels: bool) -> None:
        self._paths = {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}
        self.names, self._about = list(self._paths), (split, kind, labels)

    def __repr__(self) -> str:
        return f"<{len(self)} graphs of {self._about[0]}: {', '.join(self.names[:3])}{', ...' * (len(self) > 3)}>"

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, key: SupportsIndex | str) -> GraphView: ...
    @overload
    def __getitem__(self, key: slice) -> Graphs: ...
    def __getitem__(self, key: SupportsIndex | str | slice) -> GraphView | Graphs:
        if isinstance(key, slice):
            return Graphs([self._paths[name] for name in self.names[key]], *self._about)
        name = key if isinstance(key, str) else self.names[key]
        if name not in self._paths:
            near = get_close_matches(name, self.names) or [f"a graph of {self._about[0]} (names has all)"]
            raise DataError("name of the graph", " or ".join(near), name)
        return GraphView(self._paths[name], *self._about)
