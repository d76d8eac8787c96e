"""Fitting of a `FeatureSpec` on the train split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hlorank.config import FeaturizeOptions
from hlorank.data.collection import Collection
from hlorank.data.graph import Int64, MeasuredGraph, TileConfigurations
from hlorank.featurize.columns import node_columns
from hlorank.featurize.feature_spec import VIRTUAL_OPCODE, FeatureSpec
from hlorank.featurize.opcodes import opcode_embedding
from hlorank.featurize.reduce import reduction
from hlorank.featurize.transform import ColumnStatistics
from hlorank.files import DataError, fingerprint
from hlorank.hlo.extra import Extra


@dataclass(frozen=True, eq=False)
class TrainSample:
    """What a spec is fitted on, of one graph, reduced.

    Attributes:
        source: identifies the data, for example by the SHA-256 of its file.
        node_columns: (nodes, numeric columns) float32.
        node_opcode: (nodes,) uint8.
        edge_index: (edges, 2) int64.
        tile_feat: (configurations, 24) float32; None for layouts, whose configurations play no role here.
    """

    source: str
    node_columns: NDArray[np.float32]
    node_opcode: NDArray[np.uint8]
    edge_index: Int64
    tile_feat: NDArray[np.float32] | None

    @classmethod
    def of(
        cls, source: str, measured: MeasuredGraph, options: FeaturizeOptions, extra: Extra | None = None
    ) -> TrainSample:
        """The sample of a measured graph; `extra` as in `featurize_graph`."""
        configurations = measured.configurations
        tile_feat = configurations.feat if isinstance(configurations, TileConfigurations) else None
        reduced = reduction(measured, options)
        columns = reduced.sums(node_columns(measured.graph, options, extra))
        return cls(source, columns, reduced.opcode, reduced.edge_index, tile_feat)


def fit_spec(collection: Collection, options: FeaturizeOptions, samples: Iterable[TrainSample]) -> FeatureSpec:
    """Fits a spec on the graphs of the train split, which are looked at one by one.

    Args:
        collection: the collection of the graphs.
        options: the settings.
        samples: at least one; the last bits of the result depend on their order.

    Raises:
        DataError: there is no sample.
    """
    nodes = ColumnStatistics(options.scaling, options.log_range)
    tiles = ColumnStatistics(options.scaling, options.log_range) if collection.kind == "tile" else None
    seen = np.zeros(VIRTUAL_OPCODE + 1, dtype=np.bool_)
    seen[0] = True  # unknown opcodes have their place, seen or not
    edges = np.zeros((VIRTUAL_OPCODE + 1, VIRTUAL_OPCODE + 1), dtype=np.int64)
    sources: list[str] = []
    for sample in samples:
        sources.append(sample.source)
        nodes.update(sample.node_columns)
        if tiles is not None and sample.tile_feat is not None:
            tiles.update(sample.tile_feat)
        seen[sample.node_opcode] = True
        np.add.at(edges, tuple(sample.node_opcode[sample.edge_index].T), 1)
    if not sources:
        raise DataError("train", f"at least one graph of {collection} to fit statistics on", "none")
    vocabulary = np.flatnonzero(seen)
    return FeatureSpec(
        collection=collection,
        options=options,
        node_columns=nodes.transform(),
        tile_columns=None if tiles is None else tiles.transform(),
        opcodes=vocabulary[1:].astype(np.uint8),
        opcode_embedding=opcode_embedding(edges[np.ix_(vocabulary, vocabulary)], options.opcode_width),
        inputs=fingerprint({"options": options.model_dump(mode="json"), "sources": sources}),
    )
