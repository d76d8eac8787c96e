"""Partition of a collection: the work of the stage partition."""

from __future__ import annotations

import hashlib
import logging
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank import files
from hlorank.compute import SERIAL, map_graphs
from hlorank.config import ComputeConfig, PartitionConfig, find
from hlorank.data.collection import SPLITS, Split
from hlorank.featurize.feature_store import FeatureStore, graph_folder, remove_other_graphs
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.files import METRICS, SPEC
from hlorank.partition.partition_store import PartitionSpec, is_stored, open_partition, write_partition
from hlorank.partition.partitioners import PARTITIONERS, partition_graph
from hlorank.partition.statistics import SegmentRow, segment_rows, summary, to_csv, whole_row

SEGMENTS = "segments.csv"
CODE = ("hlorank.partition", "hlorank.featurize")
"""Packages that turn the arrays of a graph into its partition: a change of their code partitions graphs again."""

_LOGGER = logging.getLogger(__name__)


def partition_collection(
    features: Path, config: PartitionConfig, output: Path, compute: ComputeConfig = SERIAL
) -> None:
    """Partition every graph of a featurized collection.

    Writes the store that `PartitionStore` reads, with metrics.json (see `summary`) and segments.csv (see `SegmentRow`).
    A graph's partition is reused if its structure, its codes, the options and the code in `CODE` are unchanged;
    partitions of other graphs are removed. After a kill, the same call completes the work with the same result.

    Tile kernels are one segment each: their partition is only recorded, and none of the options matters.

    Args:
        features: the collection's folder under data/features.
        config: options.
        output: the collection's folder under data/segments.
        compute: place where the graphs are partitioned; it does not change the result.

    Raises:
        ConfigError: PARTITIONERS has no `config.algorithm`.
        DataError: the features are missing or damaged.
    """
    partitioner = find(PARTITIONERS, "partition.algorithm", config.algorithm)
    store = FeatureStore(features)
    (output / SPEC).unlink(missing_ok=True)  # written last: an incomplete store cannot be opened
    (output / "graphs").mkdir(parents=True, exist_ok=True)
    if store.spec.kind == "tile":
        remove_other_graphs(output, dict.fromkeys(SPLITS, ()))
        rows = [whole_row(split, name, entry) for split in SPLITS for name, entry in store.entries(split).items()]
        spec = PartitionSpec.of_whole_graphs(store.fingerprint, max(row.nodes for row in rows))
    else:
        graphs = {split: store.graphs(split) for split in SPLITS}
        remove_other_graphs(output, graphs)
        tasks = [(split, name) for split, names in graphs.items() for name in names]
        code = files.code_digest(*CODE, partitioner.__module__)
        work = partial(_partition, features=features, config=config, code=code, output=output)
        rows = list(chain.from_iterable(map_graphs(work, tasks, compute, "partition", outputs=[output])))
        spec = PartitionSpec(features=store.fingerprint, **config.model_dump())
    metrics = summary(rows)
    files.write_text(output / SEGMENTS, to_csv(rows))
    files.write_json(output / METRICS, metrics)
    files.write_json(output / SPEC, spec.model_dump(mode="json"))
    counts = {"graph": metrics["graphs"], "segment": len(rows), "node": metrics["largest_segment"]}
    sizes = (files.counted(int(count), noun) for noun, count in counts.items())
    _LOGGER.info("%s: %s, %s of at most %s", output, *sizes)
    if spec.halo:
        mean, largest = metrics["mean_halo"], metrics["largest_halo"]
        _LOGGER.info("%s: halos of %d hops have %.0f nodes on average, at most %d", output, spec.halo, mean, largest)


def _partition(
    graph: tuple[Split, str], features: Path, config: PartitionConfig, code: str, output: Path
) -> list[SegmentRow]:
    """Partition one graph if its stored partition is out of date, and return the rows of its segments."""
    split, name = graph
    opened = FeatureStore(features).open(split, name)
    folder = graph_folder(output, split, name)
    made_from = _made_from(opened, config, code)
    if not is_stored(folder, made_from):
        write_partition(folder, partition_graph(opened, config), made_from)
    return segment_rows(split, opened, open_partition(folder))


def _made_from(features: GraphFeatures, config: PartitionConfig, code: str) -> str:
    """Return the fingerprint of all that a graph's partition depends on, which excludes scaled node features."""
    arrays: list[NDArray[Any]] = [features.edge_index, features.node_splits]
    if isinstance(features.configurations, LayoutFeatures):
        arrays += [features.configurations.node_ids, features.configurations.codes]
    hashes = [[a.dtype.str, a.shape, hashlib.sha256(np.ascontiguousarray(a).data).hexdigest()] for a in arrays]
    options = [config.algorithm, config.max_nodes, config.halo]
    return files.fingerprint([code, options, features.nodes, features.distinct, hashes])
