"""Collections as datasets of PyTorch Geometric: `hlorank.datasets.load`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hlorank.data.collection import Collection

if TYPE_CHECKING:
    from hlorank.datasets.graph_dataset import GraphDataset
    from hlorank.datasets.processed import Columns

RAW = "data/raw"
"""Default root: the folder in which the stage fetch writes collections, as in conf/config.yaml."""


def load(
    collection: str,
    root: str | Path = RAW,
    columns: Columns = "official",
    cache: str | Path | None = None,
    transform: Callable[[Any], Any] | None = None,
) -> GraphDataset:
    """Return a collection as a `torch_geometric.data.Dataset`, with one `GraphData` for each graph.

    The first call reads and validates the npz files, and writes them as memory-mapped arrays into a cache; later calls
    open it. Graphs whose files, or the code that reads them, have changed since are written again.

    Args:
        collection: its address, such as `layout/cpu/random` or `tile:xla`.
        root: folder that holds layout/ or tile/, there or in npz/: the official tree, such as data/raw or an unpacked
            archive; or files without splits, such as data/sample, next to the `split.json` of their folds. By default
            data/raw in the current folder, which the stage fetch writes. A leading $HLORANK_SHARED is the folder of
            shared data.
        columns: `official`, the columns of the npz files; or `hlorank`, the features of the stage featurize, with the
            values of conf/featurize/default.yaml: scaled on train, without the nodes that are more than one edge away
            from a configurable node.
        cache: folder of the arrays; None is `root`/processed.
        transform: function of a `GraphData`, called whenever a graph is read, such as a transform of PyTorch Geometric.

    Raises:
        ConfigError: there is no such address, or no such columns.
        DataError: `root` does not have the collection, has no splits, or a file is damaged.
        ExceptionGroup: several files are damaged; it has a DataError for each.
        OSError: the cache cannot be written.
    """
    from hlorank.datasets.graph_dataset import GraphDataset
    from hlorank.datasets.processed import processed_store

    address = Collection.parse(collection)
    return GraphDataset(processed_store(address, root, columns, cache), address, columns, transform)
