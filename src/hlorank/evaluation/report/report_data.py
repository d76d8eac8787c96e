"""The graphs that runs were trained and evaluated on, where they still lie on this machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hlorank.config import ConfigError
from hlorank.data.collection import SPLITS, Split
from hlorank.evaluation.report.drawing import MOST_NODES, Drawing, draw
from hlorank.evaluation.report.groups import Group
from hlorank.featurize.feature_store import FeatureStore
from hlorank.files import DataError, fingerprint
from hlorank.partition.partition_store import PartitionStore


@dataclass(frozen=True)
class Data:
    """The features that models were trained on, and the segments if one of them was trained on any."""

    store: FeatureStore
    partitions: PartitionStore | None

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest graph of train, 0 without any."""
        return max((entry.nodes for entry in self.store.entries("train").values()), default=0)

    def draw(self, split: Split, name: str) -> Drawing:
        """Draws one graph."""
        partition = None if self.partitions is None else self.partitions.open(split, name)
        return draw(split, self.store.open(split, name), partition, self.store.spec.opcodes.tolist())

    def named(self, names: Sequence[str]) -> list[tuple[Split, str]]:
        """The graphs of these names, as far as there are any.

        Raises:
            ConfigError: one of them has too many nodes to be read in a drawing.
        """
        found = [(split, name) for split in SPLITS for name in self.store.graphs(split) if name in names]
        for split, name in found:
            if (nodes := self.store.entries(split)[name].nodes) > MOST_NODES:
                raise ConfigError(f"graph {name}: {nodes} nodes can't be read in a drawing; at most {MOST_NODES} can")
        return found

    def largest(self, evaluated: Collection[tuple[Split, str]]) -> list[tuple[Split, str]]:
        """The largest graph that can be read in a drawing, of those evaluated if there are any; empty without one."""
        nodes = {
            (split, name): entry.nodes
            for split in SPLITS
            for name, entry in self.store.entries(split).items()
            if entry.nodes <= MOST_NODES and (not evaluated or (split, name) in evaluated)
        }
        return [max(nodes, key=lambda graph: nodes[graph])] if nodes else []


def open_data(groups: Sequence[Group], features: Path, segments: Path) -> Data | str:
    """The data of the runs of one collection, or why they are not there.

    Args:
        groups: at least one, all of one collection.
        features: the folder of featurized collections.
        segments: the folder of partitioned ones.
    """
    collection = groups[0].collection
    wanted = {run.spec.get("data") for group in groups for run in group.runs}
    try:
        store = FeatureStore(features / collection.path)
    except DataError as error:
        return f"the features are not on this machine ({error})"
    try:
        partitions = PartitionStore(segments / collection.path)
    except DataError:
        partitions = None
    if partitions is not None and fingerprint([store.fingerprint, partitions.spec.fingerprint]) in wanted:
        return Data(store, partitions)
    if fingerprint([store.fingerprint, ""]) in wanted:
        return Data(store, None)
    return f"{store.root} holds other features or segments than those that these models were trained on"
