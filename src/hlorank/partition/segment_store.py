"""Segments of a collection on disk: the work of the stage partition, and the reader of its result."""

import hashlib
import logging
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from hlorank import files
from hlorank.compute import SERIAL, map_graphs
from hlorank.config import ComputeConfig, PartitionConfig, Section, find, read_section
from hlorank.data.collection import SPLITS, Split
from hlorank.featurize.feature_store import FeatureStore, graph_folder, remove_other_graphs
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.files import METRICS, SPEC, DataError
from hlorank.partition.partitioners import PARTITIONERS, partition_graph
from hlorank.partition.segments import Partition

SEGMENTS = "segments.csv"
CODE = ("hlorank.partition", "hlorank.featurize")
"""Packages that turn the arrays of a graph into its partition: a change of their code partitions graphs again."""

_SEGMENT_OF, _LOCAL_CODES, _MADE_FROM = "segment_of.npy", "local_codes.npy", "made_from.json"
_WHOLE = "whole"
_COLUMNS = (
    *("split", "graph", "segment", "nodes", "inner_edges", "cut_edges"),
    *("configurable_nodes", "local_configurations", "configurations"),
)

_log = logging.getLogger(__name__)


class PartitionSpec(Section):
    """Specification of the partition of a collection: the content of spec.json."""

    features: str  # fingerprint of the feature store that was partitioned
    algorithm: str  # name in PARTITIONERS; whole, if each graph is one segment, of which nothing is stored
    max_nodes: int = Field(ge=1)  # bound of a segment's nodes

    @property
    def options(self) -> PartitionConfig:
        """Options that the collection was partitioned with."""
        return PartitionConfig(**self.model_dump(exclude={"features"}))

    @property
    def fingerprint(self) -> str:
        """Identifier of features and options together."""
        return files.fingerprint(self.model_dump(mode="json"))


class PartitionStore:
    """Reader of the partitions of a collection; DataError where `root` has no complete partition of these features."""

    def __init__(self, root: Path, features: FeatureStore) -> None:
        self.root, self._features, path = root, features, root / SPEC
        if not path.is_file():
            raise DataError("segments", "a complete partition", "none; run the stage partition", file=root)
        self.spec = read_section(PartitionSpec, path, "run the stage partition again")
        if self.spec.features != features.fingerprint:
            expected = f"the fingerprint {features.fingerprint} of {features.root}"
            raise DataError("features", expected, f"{self.spec.features}; re-run the stage partition", file=path)

    def open(self, split: Split, name: str) -> Partition | None:
        """Open the partition of one graph, None if graphs are whole; DataError for missing or other graphs' files."""
        if self.spec.algorithm == _WHOLE:
            return None
        entry = self._features.entries(split)[name]
        return _open_partition(graph_folder(self.root, split, name), entry.nodes, entry.distinct)


def partition_collection(
    features: Path, config: PartitionConfig, output: Path, compute: ComputeConfig = SERIAL
) -> None:
    """Partition every graph of a collection: from its folder under data/features to its folder under data/segments.

    Writes the store that `PartitionStore` reads, with metrics.json (see `_summary`) and segments.csv. A graph's
    partition is reused if its structure, its codes, the options and the code in `CODE` are unchanged; partitions of
    other graphs are removed. After a kill, the same call completes the work with the same result.

    Tile kernels are one segment each: their partition is only recorded, and none of the options matters.
    """
    partitioner = find(PARTITIONERS, "partition.algorithm", config.algorithm)
    store = FeatureStore(features)
    (output / "graphs").mkdir(parents=True, exist_ok=True)
    whole = store.spec.kind == "tile"
    remove_other_graphs(output, {split: () if whole else store.graphs(split) for split in SPLITS}, output / SPEC)
    if whole:
        table = _whole_graphs(store)
        largest = int(table["nodes"].max())
        spec = PartitionSpec(features=store.fingerprint, algorithm=_WHOLE, max_nodes=largest)
    else:
        tasks = [(split, name) for split in SPLITS for name in store.graphs(split)]
        code = files.code_digest(*CODE, partitioner.__module__)
        work = partial(_partition, features=features, config=config, code=code, output=output)
        table = pd.concat(map_graphs(work, tasks, compute, "partition", outputs=[output]))
        spec = PartitionSpec(features=store.fingerprint, **config.model_dump())
    metrics = _summary(table)
    table["graph"] = table["graph"].map(files.csv_cell)
    files.write_text(output / SEGMENTS, table.to_csv(index=False, lineterminator="\n"))
    files.write_json(output / METRICS, metrics)
    files.write_json(output / SPEC, spec.model_dump(mode="json"))
    counts = {"graph": metrics["graphs"], "segment": len(table), "node": metrics["largest_segment"]}
    _log.info("%s: %s, %s of at most %s", output, *(files.counted(int(count), noun) for noun, count in counts.items()))


def _partition(
    graph: tuple[Split, str], features: Path, config: PartitionConfig, code: str, output: Path
) -> pd.DataFrame:
    """Partition one graph if its stored partition is out of date or damaged, and return the rows of its segments."""
    split, name = graph
    opened = FeatureStore(features).open(split, name)
    folder = graph_folder(output, split, name)
    made_from = _made_from(opened, config, code)
    with suppress(DataError):  # a file is missing or damaged
        if files.read_json(folder / _MADE_FROM) == {"fingerprint": made_from}:
            return segment_rows(split, opened, _open_partition(folder, opened.nodes, opened.distinct))
    (output / SPEC).unlink(missing_ok=True)  # written last: an incomplete store cannot be opened
    partition = partition_graph(opened, config)
    with files.atomic_folder(folder) as temporary:
        files.write_array(temporary / _SEGMENT_OF, partition.segment_of)
        files.write_array(temporary / _LOCAL_CODES, partition.local_codes)
        files.write_json(temporary / _MADE_FROM, {"fingerprint": made_from})
    return segment_rows(split, opened, partition)


def _made_from(features: GraphFeatures, config: PartitionConfig, code: str) -> str:
    """Return the fingerprint of all that a graph's partition depends on, which excludes scaled node features."""
    arrays: list[NDArray[Any]] = [features.edge_index, features.node_splits]
    if isinstance(features.configurations, LayoutFeatures):
        arrays += [features.configurations.node_ids, features.configurations.codes]
    hashes = [[a.dtype.str, a.shape, hashlib.sha256(np.ascontiguousarray(a).data).hexdigest()] for a in arrays]
    options = [config.algorithm, config.max_nodes]
    return files.fingerprint([code, options, features.nodes, features.distinct, hashes])


def _open_partition(folder: Path, nodes: int, distinct: int) -> Partition:
    """Open the partition of a graph of these numbers of nodes and distinct configurations, memory-mapped."""
    try:
        partition = Partition(*(files.map_array(folder / name) for name in (_SEGMENT_OF, _LOCAL_CODES)))
        for key, rows, expected, of in (
            ("segment_of", partition.segment_of, nodes, "nodes"),
            ("local_codes", partition.local_codes, distinct, "distinct configurations"),
        ):
            if len(rows) != expected:
                found = f"{len(rows)}; re-run the stage partition"
                raise DataError(key, f"one row for each of the graph's {expected} {of}", found)
    except DataError as error:
        raise error.in_file(error.file or folder) from None
    return partition


def segment_rows(split: str, features: GraphFeatures, partition: Partition) -> pd.DataFrame:
    """Return the rows of segments.csv of one graph.

    A cut edge has one end inside, so it counts in two segments. Local configurations are distinct at the configurable
    nodes inside.
    """
    count = partition.segments
    ends = partition.segment_of[features.edge_index]
    cut = ends[:, 0] != ends[:, 1]
    configurations = features.configurations
    configurable = configurations.node_ids if isinstance(configurations, LayoutFeatures) else np.zeros(0, np.int64)
    columns = (
        split,
        features.name,
        np.arange(count),
        np.bincount(partition.segment_of, minlength=count),
        np.bincount(ends[~cut, 0], minlength=count),
        np.bincount(ends[cut].reshape(-1), minlength=count),
        np.bincount(partition.segment_of[configurable], minlength=count),
        partition.local_counts,
        features.distinct,
    )
    return pd.DataFrame(dict(zip(_COLUMNS, columns, strict=True)))


def _whole_graphs(store: FeatureStore) -> pd.DataFrame:
    """Return the rows of graphs that are one segment each, without reading the graphs."""
    rows = [
        (split, name, 0, entry.nodes, entry.edges, 0, entry.configurable_nodes, entry.distinct, entry.distinct)
        for split in SPLITS
        for name, entry in store.entries(split).items()
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _summary(table: pd.DataFrame) -> dict[str, float]:
    """Summarize the segments of a collection for metrics.json.

    cut_edges is the share of all edges whose ends are in two segments.
    local_configurations is the mean share of a graph's configurations that differ in a segment: the work that remains.
    """
    segments, graphs = len(table), table.groupby(["split", "graph"]).ngroups
    cut = table["cut_edges"].sum() / 2
    nodes, configurable = table[["nodes", "configurable_nodes"]].sum().tolist()
    shares = (table["local_configurations"] / table["configurations"]).tolist()
    return {
        "graphs": graphs,
        "segments_per_graph": segments / graphs,
        "largest_segment": int(table["nodes"].max()),
        "mean_segment": nodes / segments,
        "cut_edges": float(cut / max(cut + table["inner_edges"].sum(), 1)),
        "configurable_nodes_per_segment": configurable / segments,
        "local_configurations": sum(shares) / segments,
    }
