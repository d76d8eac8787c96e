"""The graphs of a featurized collection, cut into segments, as model inputs."""

from __future__ import annotations

from pathlib import Path

from hlorank.data.collection import Split
from hlorank.featurize.feature_store import FeatureStore, graph_folder
from hlorank.files import DataError, fingerprint
from hlorank.models.inputs import GraphInputs
from hlorank.partition.partition_store import PartitionStore
from hlorank.partition.segments import Partition, whole_graph


class GraphLoader:
    """The graphs of one collection, whole or cut into the segments of its partition.

    Args:
        features: the collection's folder under data/features.
        segments: its folder under data/segments; None leaves every graph whole.

    Attributes:
        store: the featurized graphs.
        partition: fingerprint of the partition, empty for whole graphs.
        options: the options of the partition; None for whole graphs.

    Raises:
        DataError: features or segments are missing, or the segments belong to other features.
    """

    def __init__(self, features: Path, segments: Path | None) -> None:
        self.store = FeatureStore(features)
        self._partitions = None if segments is None else PartitionStore(segments)
        if self._partitions is not None:
            self._partitions.check(self.store)
        self.partition = "" if self._partitions is None else self._partitions.spec.fingerprint
        self.options = None if self._partitions is None else self._partitions.spec.options

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the raw files, the features and the segments together."""
        return fingerprint([self.store.fingerprint, self.partition])

    def open(self, split: Split, name: str) -> GraphInputs:
        """Open one graph.

        Raises:
            DataError: `split` has no graph `name`, a file of it is damaged, or its segments are another graph's.
        """
        features = self.store.open(split, name)
        cut = self.cut(split, name)
        return GraphInputs(features, whole_graph(features) if cut is None else cut)

    def cut(self, split: Split, name: str) -> Partition | None:
        """Open the segments of one graph, and nothing else of it; None for whole graphs.

        Raises:
            DataError: a file is damaged, or the number of nodes or distinct configurations is not the graph's.
        """
        if self._partitions is None:
            return None
        partition, entry = self._partitions.open(split, name), self.store.entries(split)[name]
        if partition is None:
            return None
        for key, rows, expected, of in (
            ("segment_of", partition.segment_of, entry.nodes, "nodes"),
            ("local_codes", partition.local_codes, entry.distinct, "distinct configurations"),
        ):
            if len(rows) != expected:
                found = f"{len(rows)}; re-run the stage partition"
                folder = graph_folder(self._partitions.root, split, name)
                raise DataError(key, f"one row for each of the graph's {expected} {of}", found, file=folder)
        return partition
