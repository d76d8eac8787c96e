"""Opens the graphs of a featurized collection, cut into segments, as model inputs."""

from __future__ import annotations

from pathlib import Path

import torch

from hlorank.collection import Split
from hlorank.featurize.store import FeatureStore
from hlorank.io import fingerprint
from hlorank.models.inputs import GraphInputs
from hlorank.partition.build import whole_graph
from hlorank.partition.store import PartitionStore


class GraphOpener:
    """The graphs of one collection, whole or cut into the segments of its partition.

    Args:
        features: the collection's folder under data/features.
        segments: its folder under data/segments; None leaves every graph whole.
        device: where the tensors go.

    Attributes:
        store: the featurized graphs.
        partition: fingerprint of the partition, empty for whole graphs.

    Raises:
        DataError: features or segments are missing, or the segments were cut from other features.
    """

    def __init__(self, features: Path, segments: Path | None, device: torch.device) -> None:
        self.store = FeatureStore(features)
        self.device = device
        self._partitions = None if segments is None else PartitionStore(segments)
        if self._partitions is not None:
            self._partitions.check(self.store)
        self.partition = "" if self._partitions is None else self._partitions.spec.fingerprint

    @property
    def fingerprint(self) -> str:
        """Identifies the raw files, the features and the segments together."""
        return fingerprint([self.store.fingerprint, self.partition])

    def open(self, split: Split, name: str) -> GraphInputs:
        """One graph."""
        features = self.store.open(split, name)
        cut = whole_graph(features) if self._partitions is None else self._partitions.open(split, name)
        return GraphInputs(features, cut, self.device)
