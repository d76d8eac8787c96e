"""Partitions one graph, and all graphs of a collection."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hlorank
from hlorank import files as io
from hlorank.compute.workers import Workers
from hlorank.config import ConfigError, PartitionConfig
from hlorank.data.collection import SPLITS, Split
from hlorank.featurize.feature_store import FeatureStore, graph_folder, remove_other_graphs
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.files import METRICS, SPEC
from hlorank.partition.halo import halo_rows
from hlorank.partition.local_configurations import local_codes
from hlorank.partition.partition_store import PartitionSpec, is_stored, open_partition, write_partition
from hlorank.partition.partitioners import chosen_algorithm
from hlorank.partition.segments import Partition
from hlorank.partition.statistics import SegmentRow, segment_rows, summary, to_csv

SEGMENTS = "segments.csv"

_LOGGER = logging.getLogger(__name__)


def whole_graph(features: GraphFeatures) -> Partition:
    """The partition into one segment, whose local configurations are the graph's distinct configurations."""
    codes = np.arange(features.distinct, dtype=np.min_scalar_type(features.distinct - 1))
    return Partition(np.zeros(features.nodes, dtype=np.int32), codes[:, None])


def partition_graph(features: GraphFeatures, config: PartitionConfig) -> Partition:
    """Cuts one graph into segments, numbered by their first node.

    A tile kernel stays whole: its configuration is a property of the whole kernel, which is small.

    Args:
        features: of the graph.
        config: algorithm; max_nodes, which no segment of a layout graph exceeds, its halo not counted; and hops of
            the halo.

    Raises:
        ConfigError: no such algorithm, max_nodes below 1, or halo below 0.
    """
    algorithm = chosen_algorithm(config)
    if isinstance(features.configurations, TileFeatures):
        return whole_graph(features)
    _, first, labels = np.unique(algorithm(features, config.max_nodes), return_index=True, return_inverse=True)
    segment_of = np.argsort(np.argsort(first))[labels].astype(np.int32)
    halo = halo_rows(features, segment_of, config.halo)
    return Partition(segment_of, local_codes(features.configurations, segment_of, halo), halo)


def partition_collection(features: Path, config: PartitionConfig, output: Path) -> None:
    """Partitions every graph of a featurized collection, in worker processes.

    Writes `output`, as hlorank.partition.partition_store.PartitionStore reads it, with metrics.json (see `summary`) and
    segments.csv (see `SegmentRow`). Graphs whose structure, codes and options are unchanged are re-used, graphs that
    are gone are removed. After a kill the same call completes the work, with the same result.

    Args:
        features: the collection's folder under data/features.
        config: options; `workers` does not change the result.
        output: the collection's folder under data/segments.

    Raises:
        ConfigError: no such algorithm, max_nodes or workers below 1, or halo below 0.
        DataError: the features are missing or damaged.
    """
    chosen_algorithm(config)
    if config.workers < 1:
        raise ConfigError(f"partition.workers={config.workers}: set it to at least 1")
    store = FeatureStore(features)
    graphs = {split: store.graphs(split) for split in SPLITS}
    (output / SPEC).unlink(missing_ok=True)  # written last: an incomplete store can't be opened
    remove_other_graphs(output, graphs)
    tasks = [(split, name) for split, names in graphs.items() for name in names]
    work = partial(_partition, features=features, config=config, output=output)
    with Workers(config.workers) as workers:
        rows = list(chain.from_iterable(workers.map(work, tasks, "partition")))
    io.write_text(output / SEGMENTS, to_csv(rows))
    metrics = summary(rows)
    io.write_json(output / METRICS, metrics)
    spec = PartitionSpec(store.fingerprint, config.algorithm, config.max_nodes, config.halo)
    io.write_json(output / SPEC, asdict(spec))
    _LOGGER.info("%s: %d graphs, %d segments of at most %d nodes", output, len(tasks), len(rows), config.max_nodes)
    if config.halo:
        mean, largest = metrics["mean_halo"], metrics["largest_halo"]
        _LOGGER.info("%s: halos of %d hops hold %.0f nodes, at most %d", output, config.halo, mean, largest)


def _partition(graph: tuple[Split, str], features: Path, config: PartitionConfig, output: Path) -> list[SegmentRow]:
    split, name = graph
    opened = FeatureStore(features).open(split, name)
    folder = graph_folder(output, split, name)
    made_from = _fingerprint(opened, config)
    if not is_stored(folder, made_from):
        write_partition(folder, partition_graph(opened, config), made_from)
    return segment_rows(split, opened, open_partition(folder))


def _fingerprint(features: GraphFeatures, config: PartitionConfig) -> str:
    """Of all that a partition depends on: another scaling, say, cuts no graph anew."""
    arrays: list[NDArray[Any]] = [features.edge_index, features.node_splits]
    if isinstance(features.configurations, LayoutFeatures):
        arrays += [features.configurations.node_ids, features.configurations.codes]
    hashes = [[a.dtype.str, a.shape, hashlib.sha256(np.ascontiguousarray(a).data).hexdigest()] for a in arrays]
    options = [config.algorithm, config.max_nodes, config.halo]
    return io.fingerprint([hlorank.__version__, options, features.nodes, features.distinct, hashes])
