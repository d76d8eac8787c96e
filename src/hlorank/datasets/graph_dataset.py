"""Dataset of PyTorch Geometric over a processed store."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data, Dataset

from hlorank.data.collection import SPLITS, Collection, Split
from hlorank.data.graph import MAX_OPCODE
from hlorank.featurize.feature_store import FeatureStore, GraphStore, graph_folder
from hlorank.featurize.features import LayoutFeatures
from hlorank.files import map_array

Rows = slice | Sequence[int] | NDArray[np.int64] | Tensor


class GraphData(Data):  # type: ignore[misc] # PyTorch Geometric ships no types
    """One graph, with its configurations.

    In a batch, `edge_index` and `configurable_index` count the nodes of the graphs before, tensors are concatenated,
    and `folder`, `name` and `split` become lists; `batch[i]` is a graph of it again. `DataLoader(...,
    follow_batch=["runtime"])` adds `runtime_batch`, (configurations,) int64, the graph of each runtime.

    Attributes:
        x: (nodes, columns) float32, the official 140 node features, or the features that hlorank keeps, scaled.
        opcode: (nodes,) int64, the official opcodes, 0..120, or indices of hlorank's vocabulary; 0 is unknown.
        node_layout: (nodes, 6) int8, the layout of the output, minor_to_major padded with -1.
        edge_index: (2, edges) int64, the official edges: u consumes the output of v in a column [u, v].
        configurable_index: (configurable nodes,) int64, increasing node ids; empty for tiles.
        runtime: (configurations,) int64, nanoseconds; all 0 if the labels are withheld, as in official test files.
        normalizer: (configurations,) int64, runtimes of the default tile in nanoseconds; tiles only.
        folder: folder of the arrays of configurations, which stay on disk.
        name: name of the graph.
        split: train, valid or test.
    """

    folder: Path

    def configuration(self, rows: Rows) -> Tensor:
        """Return features of some configurations; other configurations are not read.

        Args:
            rows: indices of configurations, in the order of the npz file, or a mask of them; a slice, a list, an array
                or a tensor.

        Returns:
            Layouts: (rows, configurable nodes, 18) float32, the official values. Tiles: (rows, 24) float32, or (rows,
            columns kept), scaled, with hlorank's features.

        Raises:
            IndexError: there is no such configuration.
        """
        if not isinstance(rows, slice):
            chosen = rows.numpy(force=True) if isinstance(rows, Tensor) else np.asarray(rows)
            rows = chosen if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        distinct = self.row_of[rows]
        if "normalizer" in self:
            return torch.from_numpy(self._mapped("feat")[distinct])
        return torch.from_numpy(self.codebook[self.codes[distinct]].astype(np.float32))

    def _mapped(self, name: str) -> NDArray[Any]:
        return map_array(self.folder / f"{name}.npy")

    @property
    def codes(self) -> NDArray[np.unsignedinteger[Any]]:
        """(distinct configurations, configurable nodes) rows of `codebook`, memory-mapped; layouts only."""
        return self._mapped("codes")

    @property
    def codebook(self) -> NDArray[np.int8]:
        """(U, 18) int8 layout values, memory-mapped; layouts only."""
        return self._mapped("codebook")

    @property
    def sizes(self) -> NDArray[np.float32]:
        """(U, 18) float32 sizes of the dimensions in the order of the codebook's layouts; layouts only."""
        return self._mapped("sizes")

    @property
    def row_of(self) -> NDArray[np.int64]:
        """(configurations,) int64, the distinct row of each configuration: `codes[row_of]` has all of them."""
        return self._mapped("row_of")


class GraphDataset(Dataset):  # type: ignore[misc] # PyTorch Geometric ships no types
    """Graphs of a collection: train, then valid, then test, each by name.

    Attributes:
        store: the processed store.
        collection: the address.
        graphs: split and name of each graph.
        num_opcodes: number of values that `opcode` can have.
    """

    def __init__(
        self, store: GraphStore, collection: Collection, transform: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(None, transform)
        self.store, self.collection = store, collection
        self.graphs: list[tuple[Split, str]] = [(split, name) for split in SPLITS for name in store.graphs(split)]
        self.num_opcodes = 1 + (len(store.spec.opcodes) if isinstance(store, FeatureStore) else MAX_OPCODE)

    def len(self) -> int:
        """Return the number of graphs."""
        return len(self.graphs)

    def get(self, idx: int) -> GraphData:
        """Read one graph; its configurations stay on disk.

        Raises:
            DataError: a file of the store is damaged; the message names it.
        """
        split, name = self.graphs[idx]
        graph, folder = self.store.open(split, name), graph_folder(self.store.root, split, name)
        parts = graph.configurations
        tensors = {
            "x": graph.node_feat,
            "opcode": graph.opcode.astype(np.int64),
            "node_layout": graph.node_layout,
            "edge_index": np.ascontiguousarray(graph.edge_index.T),
            "configurable_index": parts.node_ids if isinstance(parts, LayoutFeatures) else np.zeros(0, dtype=np.int64),
            "runtime": graph.runtime,
        }
        if graph.normalizer is not None:
            tensors["normalizer"] = graph.normalizer
        # Copies: tensors can be written to, memory maps cannot.
        copies = {key: torch.from_numpy(np.array(array)) for key, array in tensors.items()}
        return GraphData(**copies, folder=folder, name=name, split=split)

    def get_idx_split(self) -> dict[Split, Tensor]:
        """Return the indices of the graphs of each split, (graphs,) int64, as the datasets of OGB do."""
        return {
            split: torch.tensor([row for row, (found, _) in enumerate(self.graphs) if found == split], dtype=torch.long)
            for split in SPLITS
        }
