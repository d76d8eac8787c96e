"""Partitions of a collection on disk, memory-mapped when they are read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hlorank import files as io
from hlorank.config import PartitionConfig
from hlorank.data.collection import Split
from hlorank.featurize.feature_store import FeatureStore, graph_folder
from hlorank.files import SPEC, DataError
from hlorank.partition.segments import Partition

_SEGMENT_OF, _LOCAL_CODES, _HALO, _MADE_FROM = "segment_of.npy", "local_codes.npy", "halo.npy", "made_from.json"


@dataclass(frozen=True)
class PartitionSpec:
    """How a collection was partitioned.

    Attributes:
        features: fingerprint of the feature store that was cut.
        algorithm: topological, metis or computation.
        max_nodes: bound of a segment's nodes, its halo not counted.
        halo: hops of the halos.
    """

    features: str
    algorithm: str
    max_nodes: int
    halo: int

    @property
    def options(self) -> PartitionConfig:
        """The options again; a single worker."""
        return PartitionConfig(algorithm=self.algorithm, max_nodes=self.max_nodes, halo=self.halo, workers=1)

    @property
    def fingerprint(self) -> str:
        """Identifies features and options together."""
        return io.fingerprint(asdict(self))


class PartitionStore:
    """The partitions of a collection: a folder for each graph under train/, valid/ and test/, and spec.json.

    Attributes:
        root: the collection's folder under data/segments.
        spec: how it was partitioned.

    Raises:
        DataError: no complete partition at `root`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._path = root / SPEC
        if not self._path.is_file():
            raise DataError("segments", "a complete partition", "none; run the stage partition", file=root)
        values = io.read_json(self._path)
        if values.keys() != {field.name for field in fields(PartitionSpec)}:
            raise DataError("keys", "those of a partition; re-run the stage partition", sorted(values), file=self._path)
        self.spec = PartitionSpec(**values)

    def check(self, features: FeatureStore) -> None:
        """Makes sure that these features are the ones that were cut.

        Raises:
            DataError: they have another fingerprint.
        """
        if self.spec.features != features.fingerprint:
            expected = f"the fingerprint {features.fingerprint} of {features.root}"
            raise DataError("features", expected, f"{self.spec.features}; re-run the stage partition", file=self._path)

    def open(self, split: Split, name: str) -> Partition:
        """Opens one graph's partition; its local codes stay on disk until they are read.

        Raises:
            DataError: no such graph, or a file is damaged.
        """
        return open_partition(graph_folder(self.root, split, name))


def write_partition(folder: Path, partition: Partition, made_from: str) -> None:
    """Writes one graph's partition in one step.

    Args:
        folder: replaced if it exists.
        partition: of the graph.
        made_from: fingerprint of what it was computed from, for `is_stored`.
    """
    with io.atomic_folder(folder) as temporary:
        io.write_array(temporary / _SEGMENT_OF, partition.segment_of)
        io.write_array(temporary / _LOCAL_CODES, partition.local_codes)
        io.write_array(temporary / _HALO, partition.halo)
        io.write_json(temporary / _MADE_FROM, {"fingerprint": made_from})


def is_stored(folder: Path, made_from: str) -> bool:
    """Whether a graph's folder holds the partition that was computed from this."""
    path = folder / _MADE_FROM
    return path.is_file() and io.read_json(path) == {"fingerprint": made_from}


def open_partition(folder: Path) -> Partition:
    """Opens what `write_partition` wrote."""
    try:
        return Partition(*(io.map_array(folder / name) for name in (_SEGMENT_OF, _LOCAL_CODES, _HALO)))
    except DataError as error:
        raise error.in_file(error.file or folder) from None
