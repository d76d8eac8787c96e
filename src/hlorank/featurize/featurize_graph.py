"""Featurization of one graph in memory, pruned around its configurable nodes."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlorank.config import FeaturizeConfig
from hlorank.data.configurations import LAYOUT_DIMS, LayoutConfigurations, MeasuredGraph, TileConfigurations
from hlorank.data.graph import Int64
from hlorank.featurize.columns import NUMERIC_COLUMNS, node_layout
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures, distances, distinct_rows
from hlorank.featurize.relayout import Codes, configured_tensors, copy_tensors, sized_layouts
from hlorank.featurize.tile_columns import tile_columns
from hlorank.files import DataError


class PrunedNodes(NamedTuple):
    """Nodes and edges of a graph that the features keep, in the order of the graph."""

    kept: Int64  # (kept,) increasing, the nodes that are kept
    node_of: Int64  # (nodes,) the number of each node among the kept ones, -1 for a node that is left out
    edge_index: Int64  # (kept edges, 2) numbers of kept nodes
    node_splits: Int64  # (computations + 1,) without computations that are left out


def prune(measured: MeasuredGraph, options: FeaturizeConfig) -> PrunedNodes:
    """Leave out the nodes and edges that the options do not keep; tiles keep all."""
    graph, configurations = measured.graph, measured.configurations
    keep: NDArray[np.bool_] = np.ones(graph.nodes, dtype=np.bool_)
    kept_edges: NDArray[np.bool_] = np.ones(len(graph.edge_index), dtype=np.bool_)
    if isinstance(configurations, LayoutConfigurations):
        if options.prune_hops is not None:
            distance = distances(graph.edge_index, graph.nodes, configurations.node_ids)
            keep = np.asarray((distance >= 0) & (distance <= options.prune_hops))
            kept_edges = np.asarray(keep[graph.edge_index].all(axis=1))
        if options.prune_edges:
            kept_edges &= np.asarray(np.isin(graph.edge_index, configurations.node_ids).any(axis=1))
    before = np.concatenate([[0], np.cumsum(keep)])  # kept nodes before each node, and each boundary
    node_of = np.where(keep, before[:-1], -1)
    edges = node_of[graph.edge_index[kept_edges]]
    return PrunedNodes(np.flatnonzero(keep), node_of, edges, np.unique(before[graph.node_splits]))


def featurize_graph(measured: MeasuredGraph, spec: FeatureSpec) -> GraphFeatures:
    """Compute the features of one raw graph by a specification.

    Repeated layout configurations are merged, and so are tile configurations with equal raw features; `row_of`,
    `runtime` and `normalizer` have every original row. Configurations of another kind than the specification's are a
    DataError.
    """
    graph, configurations = measured.graph, measured.configurations
    pruned = prune(measured, spec.options)
    parts, row_of = _distinct_configurations(measured, pruned.node_of, spec)
    if isinstance(parts, TileFeatures) != (spec.kind == "tile"):
        raise DataError("configurations", f"configurations of {spec.collection}", type(configurations).__name__)
    if isinstance(parts, TileFeatures) and spec.tile_columns is not None:
        columns = tile_columns(graph, parts.feat, spec.options.derived, spec.on_tpu)
        parts = TileFeatures(spec.tile_columns(columns))
    return GraphFeatures(
        name=measured.name,
        node_feat=spec.node_columns(graph.node_feat[:, :NUMERIC_COLUMNS][pruned.kept]),
        opcode=spec.opcode_index(graph.node_opcode[pruned.kept]),
        node_layout=node_layout(graph.node_feat)[pruned.kept],
        edge_index=pruned.edge_index,
        node_splits=pruned.node_splits,
        configurations=parts,
        row_of=row_of,
        runtime=measured.measurements.runtime,
        normalizer=measured.measurements.normalizer,
    )


def _distinct_configurations(
    measured: MeasuredGraph, node_of: Int64, spec: FeatureSpec
) -> tuple[LayoutFeatures | TileFeatures, Int64]:
    """Return the distinct configurations, tiles with their raw columns, and the distinct row of each raw row."""
    graph, configurations = measured.graph, measured.configurations
    if isinstance(configurations, TileConfigurations):
        first, row_of = distinct_rows(configurations.feat)
        return TileFeatures(configurations.feat[first]), row_of
    first, row_of = distinct_rows(configurations.codes)
    node_ids, codebook, codes = configurations.node_ids, configurations.codebook, configurations.codes[first]
    tensors = configured_tensors(graph, node_ids, codebook, codes)
    costs, on_tpu = "layout_costs" in spec.options.derived, spec.on_tpu
    if not spec.options.operand_layouts:
        codebook, codes = _without_operands(codebook, codes)
    codebook, sizes, costs_of_rows, codes = sized_layouts(graph, tensors, codebook, codes, costs=costs, on_tpu=on_tpu)
    copies = copy_tensors(graph, node_ids, tensors, on_tpu)
    return LayoutFeatures(node_of[node_ids], codebook, sizes, costs_of_rows, *copies, codes), row_of


def _without_operands(codebook: NDArray[np.int8], codes: Codes) -> tuple[NDArray[np.int8], Codes]:
    """Return the layouts of outputs only; configurations that differ in others become equal, but remain as many."""
    outputs = codebook.copy()
    outputs[:, LAYOUT_DIMS:] = -1
    outputs, row_of = np.unique(outputs, axis=0, return_inverse=True)
    return outputs, row_of.ravel()[codes].astype(codes.dtype)
