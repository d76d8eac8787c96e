"""Featurization of one graph, in memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import LAYOUT_DIMS, LayoutConfigurations, MeasuredGraph
from hlorank.featurize.columns import node_columns, node_ranks
from hlorank.featurize.distinct import distinct_rows
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.featurize.reduce import reduction
from hlorank.featurize.sizes import sized_layouts
from hlorank.files import DataError
from hlorank.hlo.extra import Extra


def node_layout(node_feat: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the layout of each node's output, minor_to_major padded with -1.

    The raw columns are padded with 0, which is also a dimension; so the rank is taken from the node's dimensions. A
    layout that is no permutation of 0..rank-1 was never captured and becomes all -1. The layout of a vector, [0],
    cannot be distinguished from padding: it counts as captured if any layout of the graph is.

    Args:
        node_feat: (nodes, 140) float32, the raw features of a whole graph.

    Returns:
        (nodes, 6) int8.
    """
    raw, positions = node_feat[:, -LAYOUT_DIMS:], np.arange(LAYOUT_DIMS)
    inside = positions < node_ranks(node_feat)[:, None]
    permutation = (np.sort(np.where(inside, raw, positions), axis=1) == positions).all(axis=1)
    captured = permutation & (raw != 0).any()
    return np.where(inside & captured[:, None], raw, -1).astype(np.int8)


def featurize_graph(measured: MeasuredGraph, spec: FeatureSpec, extra: Extra | None = None) -> GraphFeatures:
    """Compute the features of one raw graph.

    Repeated layout configurations are merged, and so are tile configurations with equal raw features; `row_of`,
    `runtime` and `normalizer` have every original row.

    Args:
        measured: the graph.
        spec: specification fitted on graphs of the same kind.
        extra: extra features of the protobuf, for a specification with the option `protobuf`.

    Raises:
        DataError: the graph's configurations are not of the specification's kind, or extra features are missing.
    """
    configurations = measured.configurations
    parts: LayoutFeatures | TileFeatures
    reduced = reduction(measured, spec.options)
    if isinstance(configurations, LayoutConfigurations) and spec.tile_columns is None:
        first, row_of = distinct_rows(configurations.codes)
        node_ids = configurations.node_ids
        sized = sized_layouts(measured.graph, node_ids, configurations.codebook, configurations.codes[first])
        parts = LayoutFeatures(reduced.node_of[node_ids], *sized)
    elif not isinstance(configurations, LayoutConfigurations) and spec.tile_columns is not None:
        first, row_of = distinct_rows(configurations.feat)
        parts = TileFeatures(spec.tile_columns(configurations.feat[first]))
    else:
        raise DataError("configurations", f"configurations of {spec.collection}", type(configurations).__name__)
    layout = node_layout(measured.graph.node_feat)[reduced.first]
    layout[reduced.virtual] = -1
    return GraphFeatures(
        name=measured.name,
        node_feat=spec.node_columns(reduced.sums(node_columns(measured.graph, spec.options, extra))),
        opcode=spec.opcode_index(reduced.opcode),
        node_layout=layout,
        edge_index=reduced.edge_index,
        node_splits=reduced.node_splits,
        configurations=parts,
        row_of=row_of,
        runtime=measured.measurements.runtime,
        normalizer=measured.measurements.normalizer,
        virtual_nodes=int(reduced.virtual.sum()),
    )
