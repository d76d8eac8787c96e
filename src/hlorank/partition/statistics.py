"""Statistics of partitions: a row for each segment, and a summary of a collection."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from hlorank.featurize.feature_store import GraphEntry
from hlorank.featurize.features import GraphFeatures, LayoutFeatures
from hlorank.partition.segments import Partition


@dataclass(frozen=True)
class SegmentRow:
    """One segment, a row of segments.csv.

    Attributes:
        split: train, valid or test.
        graph: the graph's name.
        segment: 0..J-1.
        nodes: number of nodes inside.
        halo: number of nodes in the halo: nodes of other segments that are computed with this one.
        inner_edges: number of edges with both ends inside.
        cut_edges: number of edges with one end inside; each such edge counts in two segments.
        configurable_nodes: number of configurable nodes inside.
        local_configurations: number of distinct configurations of the configurable nodes inside and in the halo.
        configurations: number of distinct configurations of the whole graph.
    """

    split: str
    graph: str
    segment: int
    nodes: int
    halo: int
    inner_edges: int
    cut_edges: int
    configurable_nodes: int
    local_configurations: int
    configurations: int


def segment_rows(split: str, features: GraphFeatures, partition: Partition) -> list[SegmentRow]:
    """Compute the rows of one graph, in the order of its segments."""
    count = partition.segments
    ends = partition.segment_of[features.edge_index]
    cut = ends[:, 0] != ends[:, 1]
    configurations = features.configurations
    configurable = configurations.node_ids if isinstance(configurations, LayoutFeatures) else np.zeros(0, np.int64)
    columns = {
        "nodes": np.bincount(partition.segment_of, minlength=count),
        "halo": np.bincount(partition.halo[:, 0], minlength=count),
        "inner_edges": np.bincount(ends[~cut, 0], minlength=count),
        "cut_edges": np.bincount(ends[cut].reshape(-1), minlength=count),
        "configurable_nodes": np.bincount(partition.segment_of[configurable], minlength=count),
        "local_configurations": partition.local_counts,
    }
    return [
        SegmentRow(
            split=split,
            graph=features.name,
            segment=segment,
            configurations=features.distinct,
            **{key: int(column[segment]) for key, column in columns.items()},
        )
        for segment in range(count)
    ]


def whole_row(split: str, name: str, entry: GraphEntry) -> SegmentRow:
    """Return the row of a graph that is one segment, without reading the graph."""
    return SegmentRow(
        split=split,
        graph=name,
        segment=0,
        nodes=entry.nodes,
        halo=0,
        inner_edges=entry.edges,
        cut_edges=0,
        configurable_nodes=entry.configurable_nodes,
        local_configurations=entry.distinct,
        configurations=entry.distinct,
    )


def summary(rows: Sequence[SegmentRow]) -> dict[str, float]:
    """Summarize the segments of a collection, for metrics.json.

    Args:
        rows: rows of all graphs, at least one.

    Returns:
        graphs; segments_per_graph (mean); largest_segment and mean_segment (nodes); largest_halo and mean_halo (nodes);
        cut_edges (share of all edges); configurable_nodes_per_segment (mean); local_configurations (share of the
        graph's distinct configurations that are distinct inside the segment and its halo, mean over segments: the
        share of the work that remains).
    """
    graphs = len({(row.split, row.graph) for row in rows})
    cut = sum(row.cut_edges for row in rows) / 2
    edges = cut + sum(row.inner_edges for row in rows)
    return {
        "graphs": graphs,
        "segments_per_graph": len(rows) / graphs,
        "largest_segment": max(row.nodes for row in rows),
        "mean_segment": sum(row.nodes for row in rows) / len(rows),
        "largest_halo": max(row.halo for row in rows),
        "mean_halo": sum(row.halo for row in rows) / len(rows),
        "cut_edges": cut / max(edges, 1),
        "configurable_nodes_per_segment": sum(row.configurable_nodes for row in rows) / len(rows),
        "local_configurations": sum(row.local_configurations / row.configurations for row in rows) / len(rows),
    }


def to_csv(rows: Sequence[SegmentRow]) -> str:
    """Format rows as CSV with a header."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [field.name for field in fields(SegmentRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, rows))
    return text.getvalue()
