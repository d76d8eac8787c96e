"""Partitions of a collection on disk, memory-mapped when they are read."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hlorank import files
from hlorank.config import PartitionConfig, Section, read_section
from hlorank.data.collection import Split
from hlorank.featurize.feature_store import FeatureStore, graph_folder
from hlorank.files import SPEC, DataError
from hlorank.partition.segments import Partition

_SEGMENT_OF, _LOCAL_CODES, _HALO, _MADE_FROM = "segment_of.npy", "local_codes.npy", "halo.npy", "made_from.json"
_WHOLE = "whole"


class PartitionSpec(Section):
    """Specification of the partition of a collection: the content of spec.json."""

    features: str
    """Fingerprint of the feature store that was partitioned."""
    algorithm: str
    """Name in PARTITIONERS; whole, if each graph is one segment, of which nothing is stored."""
    max_nodes: int = Field(ge=1)
    """Bound of a segment's nodes, its halo not counted."""
    halo: int = Field(ge=0)
    """Hops of the halos."""

    @classmethod
    def of_whole_graphs(cls, features: str, max_nodes: int) -> PartitionSpec:
        """Return the specification of a collection whose graphs are one segment each.

        Args:
            features: fingerprint of the feature store.
            max_nodes: nodes of the largest graph.
        """
        return cls(features=features, algorithm=_WHOLE, max_nodes=max_nodes, halo=0)

    @property
    def whole(self) -> bool:
        """True if each graph is one segment."""
        return self.algorithm == _WHOLE

    @property
    def options(self) -> PartitionConfig:
        """Options that the collection was partitioned with."""
        return PartitionConfig(algorithm=self.algorithm, max_nodes=self.max_nodes, halo=self.halo)

    @property
    def fingerprint(self) -> str:
        """Identifier of features and options together."""
        return files.fingerprint(self.model_dump(mode="json"))


class PartitionStore:
    """Reader of the partitions of a collection: a folder for each graph under train/, valid/ and test/, and spec.json.

    Attributes:
        root: the collection's folder under data/segments.
        spec: the specification of the partition.

    Raises:
        DataError: `root` has no complete partition.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._path = root / SPEC
        if not self._path.is_file():
            raise DataError("segments", "a complete partition", "none; run the stage partition", file=root)
        self.spec = read_section(PartitionSpec, self._path, "run the stage partition again")

    def check(self, features: FeatureStore) -> None:
        """Check that the partitions were computed from these features.

        Raises:
            DataError: the features have another fingerprint than those that were partitioned.
        """
        if self.spec.features != features.fingerprint:
            expected = f"the fingerprint {features.fingerprint} of {features.root}"
            raise DataError("features", expected, f"{self.spec.features}; re-run the stage partition", file=self._path)

    def open(self, split: Split, name: str) -> Partition | None:
        """Open the partition of one graph, None if the graphs are whole; local codes are memory-mapped.

        Raises:
            DataError: `split` has no graph `name`, or a file of it is damaged.
        """
        return None if self.spec.whole else open_partition(graph_folder(self.root, split, name))


def write_partition(folder: Path, partition: Partition, made_from: str) -> None:
    """Write the partition of one graph in one step.

    Args:
        folder: replaced if it exists.
        partition: the segments of the graph.
        made_from: fingerprint of what the partition was computed from, for `is_stored`.
    """
    with files.atomic_folder(folder) as temporary:
        files.write_array(temporary / _SEGMENT_OF, partition.segment_of)
        files.write_array(temporary / _LOCAL_CODES, partition.local_codes)
        files.write_array(temporary / _HALO, partition.halo)
        files.write_json(temporary / _MADE_FROM, {"fingerprint": made_from})


def is_stored(folder: Path, made_from: str) -> bool:
    """Return whether a graph's folder has the partition with this fingerprint of its inputs."""
    path = folder / _MADE_FROM
    return path.is_file() and files.read_json(path) == {"fingerprint": made_from}


def open_partition(folder: Path) -> Partition:
    """Open what `write_partition` wrote.

    Raises:
        DataError: a file in `folder` is missing or damaged.
    """
    try:
        return Partition(*(files.map_array(folder / name) for name in (_SEGMENT_OF, _LOCAL_CODES, _HALO)))
    except DataError as error:
        raise error.in_file(error.file or folder) from None
