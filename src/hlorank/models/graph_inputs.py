"""The graphs of a featurized collection as inputs of a cost model, segment by segment."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hlorank.data.collection import Split
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures, distances, distinct_rows
from hlorank.files import fingerprint
from hlorank.models.compression.build_plan import build_plan
from hlorank.models.compression.declarations import Recipe
from hlorank.models.compression.plan import Array, Plan
from hlorank.models.compression.segment import ConfigurationBatch, Edges, LayoutBatch, Segment, TileBatch
from hlorank.partition.segment_store import PartitionStore
from hlorank.partition.segments import Partition, whole_graph


@dataclass(frozen=True)
class InputSizes:
    """Numbers of columns and opcodes, unknown included, that a cost model is built for; no tile columns for layouts."""

    kind: Literal["layout", "tile"]
    node_columns: int
    opcodes: int
    tile_columns: int
    on_tpu: bool = False  # the costs of layouts are those of a TPU


class GraphInputs:
    """One graph, in segments or whole; configurations stay in their memory map until a plan reads them."""

    def __init__(self, features: GraphFeatures, partition: Partition | None) -> None:
        self.features = features
        self.partition = whole_graph(features) if partition is None else partition
        self.segments = Segments(features, self.partition)

    @cached_property
    def targets(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The configurations that training ranks, and their labels; see `GraphFeatures.targets`."""
        return self.features.targets()

    def distinct(self, configurations: NDArray[np.int64], j: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the configurations that differ in segment j, and the place of each given configuration among them."""
        local = self.partition.local_codes[configurations, j]
        _, first, inverse = np.unique(local, return_index=True, return_inverse=True)
        return configurations[first], inverse

    def configurations(self, chosen: NDArray[np.int64], segment: Segment) -> ConfigurationBatch:
        """Return distinct configurations, (segments, configurations) int64, restricted to the nodes of the segments."""
        configurations = self.features.configurations
        if isinstance(configurations, TileFeatures):
            return TileBatch(np.array(configurations.feat[chosen[0]]))
        used, place = np.unique(chosen, return_inverse=True)
        of_node = place.reshape(chosen.shape)[segment.part[: len(segment.config_columns)]].T
        codes = np.asarray(configurations.codes[used])[of_node, segment.config_columns]
        # A codebook may be long; only what is used here need be embedded.
        number, used = pd.factorize(codes.ravel(), sort=True)
        return LayoutBatch(
            configurations.codebook[used].astype(np.int64),
            np.array(configurations.sizes[used]),
            np.array(configurations.costs[used]),
            number.reshape(codes.shape),
        )

    def plan(
        self,
        configurations: Mapping[int, NDArray[np.int64]],
        recipe: Recipe,
        kept_edges: NDArray[np.bool_] | None = None,
    ) -> Plan[Array]:
        """Build the plan of segments by the recipe of a model; `configurations` has the distinct ones of each segment.

        Each segment has as many embeddings as the segment with the most configurations: a shorter list is filled with
        its first configuration. Several segments need a recipe that `stacks_segments`. With the mask `kept_edges`,
        (edges of all segments,), messages pass along these edges only.
        """
        segment = self.segments.stacked(list(configurations))
        if kept_edges is not None:
            segment = replace(segment, edges=segment.edges.only(kept_edges))
        most = max(map(len, configurations.values()))
        padded = [np.append(part, np.repeat(part[:1], most - len(part))) for part in configurations.values()]
        return build_plan(segment, self.configurations(np.stack(padded), segment), recipe)


class Segments:
    """The segments of a graph, each made when it is first read: a step reads few, and many graphs may be open."""

    def __init__(self, features: GraphFeatures, partition: Partition) -> None:
        self._column = np.full(features.nodes, -1)  # of each configurable node in the configuration codes
        if isinstance(features.configurations, LayoutFeatures):
            self._column[features.configurations.node_ids] = np.arange(len(features.configurations.node_ids))
        of_node = np.concatenate([features.node_feat, features.opcode[:, None], features.node_layout], axis=1)
        self._colour_node, self._colour = distinct_rows(of_node)
        self._features, self._partition = features, partition
        self._made: dict[int, Segment] = {}

    def __len__(self) -> int:
        """Return the number of segments."""
        return self._partition.segments

    def __iter__(self) -> Iterator[Segment]:
        """Iterate over all segments."""
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, j: int) -> Segment:
        """Return a segment, made at its first use."""
        if j not in self._made:
            self._made[j] = self._make([j])
        return self._made[j]

    def stacked(self, numbers: Sequence[int]) -> Segment:
        """Return segments as one segment of several parts; equal nodes have equal colours."""
        return self[numbers[0]] if len(numbers) == 1 else self._make(numbers)

    @cached_property
    def _edges(self) -> list[NDArray[np.int64]]:
        """The edges within each segment, (edges, 2) nodes, ascending by the first."""
        edges = np.asarray(self._features.edge_index)
        segment, other = self._partition.segment_of[edges].T
        edges, segment = edges[segment == other], segment[segment == other]
        order = np.lexsort((edges[:, 0], segment))
        return np.split(edges[order], np.searchsorted(segment[order], np.arange(1, len(self))))

    @cached_property
    def _distance(self) -> NDArray[np.int64]:
        """(nodes,) edges within a segment to the nearest configurable node, -1 without a path; all 0 for tiles."""
        if isinstance(self._features.configurations, TileFeatures):
            return np.zeros(self._features.nodes, dtype=np.int64)
        return distances(np.concatenate(self._edges), self._features.nodes, self._features.configurations.node_ids)

    def _make(self, numbers: Sequence[int]) -> Segment:
        features, inner = self._features, [self._partition.inner[j] for j in numbers]
        nodes, part = np.concatenate(inner), np.repeat(np.arange(len(inner)), [*map(len, inner)])
        distance = self._distance[nodes]
        # Nodes without a path to a configurable node come last.
        order = np.lexsort((nodes, part, distance, distance < 0))
        nodes, near = nodes[order], distance[distance >= 0]
        place, columns = np.empty(features.nodes, dtype=np.int64), self._column[nodes]
        place[nodes] = np.arange(len(nodes))
        colours, initial_colour = np.unique(self._colour[nodes], return_inverse=True)
        of_colour, prefixes = self._colour_node[colours], np.cumsum(np.bincount(near, minlength=1)).tolist()
        return Segment(
            node_ids=nodes,
            part=part[order],
            parts=len(inner),
            initial_colour=initial_colour,
            colour_numeric=features.node_feat[of_colour],
            colour_opcode=features.opcode[of_colour].astype(np.int64),
            colour_layout=features.node_layout[of_colour].astype(np.int64),
            edges=Edges(place[np.concatenate([self._edges[j] for j in numbers])], len(nodes), prefixes[0]),
            hop_prefixes=prefixes,
            config_columns=columns[columns >= 0],
        )


class GraphLoader:
    """The graphs of a collection in its folders of features and, but for whole graphs, of segments.

    `partition` is the fingerprint of the segments, empty for whole graphs; `options` are their settings, or None.
    """

    def __init__(self, features: Path, segments: Path | None) -> None:
        self.store = FeatureStore(features)
        self._partitions = None if segments is None else PartitionStore(segments, self.store)
        self.partition = "" if self._partitions is None else self._partitions.spec.fingerprint
        self.options = None if self._partitions is None else self._partitions.spec.options

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the raw files, the features and the segments together."""
        return fingerprint([self.store.fingerprint, self.partition])

    def open(self, split: Split, name: str) -> GraphInputs:
        """Open one graph; a missing or damaged file, or segments of another graph, are a DataError."""
        return GraphInputs(self.store.open(split, name), self.open_partition(split, name))

    def open_partition(self, split: Split, name: str) -> Partition | None:
        """Open the segments of one graph; None for whole graphs."""
        return None if self._partitions is None else self._partitions.open(split, name)
