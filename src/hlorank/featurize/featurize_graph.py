"""Featurization of one graph, in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import MeasuredGraph, TileConfigurations
from hlorank.featurize.columns import node_columns, node_layout
from hlorank.featurize.copies import copy_tensors
from hlorank.featurize.distinct import distinct_rows
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.featurize.reduce import reduction
from hlorank.featurize.sizes import configured_tensors, sized_layouts
from hlorank.featurize.tile_columns import tile_columns
from hlorank.files import DataError
from hlorank.hlo.extra import Extra


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
    if isinstance(measured.configurations, TileConfigurations) != (spec.kind == "tile"):
        raise DataError(
            "configurations", f"configurations of {spec.collection}", type(measured.configurations).__name__
        )
    reduced = reduction(measured, spec.options)
    parts, row_of = _distinct_configurations(measured, reduced.node_of, spec.options.derived)
    if isinstance(parts, TileFeatures):
        assert spec.tile_columns is not None  # FeatureSpec checks it
        columns = tile_columns(measured.graph, parts.feat, spec.options.derived, spec.collection.on_tpu)
        parts = TileFeatures(spec.tile_columns(columns))
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


def official_features(measured: MeasuredGraph) -> GraphFeatures:
    """Return one raw graph in the form of features, its official columns and opcodes unchanged, no node left out.

    Configurations are merged as by `featurize_graph`.

    Returns:
        Features with `node_feat` (nodes, 140) float32, `opcode` (nodes,) uint8 0..120, and, for tiles, `feat`
        (distinct configurations, 24) float32.
    """
    graph = measured.graph
    parts, row_of = _distinct_configurations(measured, np.arange(graph.nodes), ())
    return GraphFeatures(
        name=measured.name,
        node_feat=graph.node_feat,
        opcode=graph.node_opcode,
        node_layout=node_layout(graph.node_feat),
        edge_index=graph.edge_index,
        node_splits=graph.node_splits,
        configurations=parts,
        row_of=row_of,
        runtime=measured.measurements.runtime,
        normalizer=measured.measurements.normalizer,
    )


def _distinct_configurations(
    measured: MeasuredGraph, node_of: NDArray[np.int64], derived: Sequence[str]
) -> tuple[LayoutFeatures | TileFeatures, NDArray[np.int64]]:
    """Return the distinct configurations, those of tiles with their raw columns, and the one that each raw row is.

    Args:
        measured: the graph.
        node_of: (nodes,) int64, the node of the features that each node becomes.
        derived: the setting `featurize.derived`.
    """
    configurations = measured.configurations
    if isinstance(configurations, TileConfigurations):
        first, row_of = distinct_rows(configurations.feat)
        return TileFeatures(configurations.feat[first]), row_of
    first, row_of = distinct_rows(configurations.codes)
    node_ids = configurations.node_ids
    graph, codebook, codes = measured.graph, configurations.codebook, configurations.codes[first]
    tensors = configured_tensors(graph, node_ids, codebook, codes)
    codebook, sizes, moves, codes = sized_layouts(graph, tensors, codebook, codes, moves="layout_moves" in derived)
    copies = copy_tensors(graph, node_ids, tensors)
    return LayoutFeatures(node_of[node_ids], codebook, sizes, moves, *copies, codes), row_of
