"""Fitting of a `FeatureSpec` on the train split: statistics of columns, and embeddings of opcodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hlorank.config import FeaturizeConfig
from hlorank.data.collection import Collection
from hlorank.data.configurations import MeasuredGraph, TileConfigurations
from hlorank.data.graph import MAX_OPCODE, Int64
from hlorank.featurize.columns import NUMERIC_COLUMNS
from hlorank.featurize.feature_spec import ColumnTransform, FeatureSpec, signed_log
from hlorank.featurize.features import distinct_rows
from hlorank.featurize.featurize_graph import prune
from hlorank.featurize.likeness import pooled, training_graphs
from hlorank.featurize.tile_columns import tile_columns
from hlorank.files import DataError, fingerprint
from hlorank.metrics import Float64


@dataclass(frozen=True, eq=False)
class TrainSample:
    """Part of one pruned graph that a specification is fitted on: columns and opcodes of nodes, edges, and raw tiles.

    `source` identifies the data, for example by the SHA-256 of its file. Layouts are not needed.
    """

    source: str
    node_columns: NDArray[np.float32]
    node_opcode: NDArray[np.uint8]
    edge_index: Int64
    tile_feat: NDArray[np.float32] | None
    pooled: Float64
    family: str

    @classmethod
    def of(
        cls, source: str, measured: MeasuredGraph, options: FeaturizeConfig, on_tpu: bool = False, family: str = ""
    ) -> TrainSample:
        """Take the sample of a measured graph; arguments as in `featurize_graph` and `tile_columns`."""
        configurations = measured.configurations
        tile_feat = None
        if isinstance(configurations, TileConfigurations):
            first, inverse = distinct_rows(configurations.feat)  # a tile may have many rows
            tile_feat = tile_columns(measured.graph, configurations.feat[first], options.derived, on_tpu)[inverse]
        graph, pruned = measured.graph, prune(measured, options)
        columns = graph.node_feat[:, :NUMERIC_COLUMNS][pruned.kept]
        opcodes = graph.node_opcode[pruned.kept]
        return cls(source, columns, opcodes, pruned.edge_index, tile_feat, pooled(graph), family)


class ColumnStatistics:
    """Fitting of a `ColumnTransform` on rows that come in parts, in memory that does not grow with their number.

    The range of a column is known only after the last part: scalers are fitted to each column and to its `signed_log`.
    """

    def __init__(self, scaling: Literal["standard", "minmax"], log_range: float) -> None:
        from sklearn.preprocessing import MinMaxScaler, StandardScaler

        self._log_range = log_range
        self._range = MinMaxScaler()
        self._standard = StandardScaler() if scaling == "standard" else None

    def update(self, values: NDArray[np.float32]) -> None:
        """Add rows, (rows, raw columns); the last bits of the result depend on the order of the parts."""
        raw = values.astype(np.float64)
        both = np.hstack([raw, signed_log(raw)])
        self._range.partial_fit(both)
        if self._standard is not None:
            self._standard.partial_fit(both)

    def transform(self) -> ColumnTransform:
        """Return the transform fitted on the rows added so far; columns that are constant in them are left out."""
        if self._standard is not None:
            center, scale = self._standard.mean_, self._standard.scale_
        else:
            center, scale = self._range.data_min_, self._range.data_range_
        span = self._range.data_range_[: len(center) // 2]
        columns = np.flatnonzero(span > 0)
        logarithmic = span[columns] > self._log_range
        chosen = columns + np.where(logarithmic, len(span), 0)
        return ColumnTransform(columns=columns, logarithmic=logarithmic, center=center[chosen], scale=scale[chosen])


def fit_spec(
    collection: Collection, options: FeaturizeConfig, samples: Iterable[TrainSample], backend: str = ""
) -> FeatureSpec:
    """Fit a specification on the graphs of the train split, one at a time; its last bits depend on their order.

    `backend` is that of a collection whose name has none.
    """
    nodes = ColumnStatistics(options.scaling, options.log_range)
    tiles = ColumnStatistics(options.scaling, options.log_range) if collection.kind == "tile" else None
    seen = np.zeros(MAX_OPCODE + 1, dtype=np.bool_)
    seen[0] = True  # index 0 of the vocabulary is for unknown opcodes, even if train has none
    edges = np.zeros((MAX_OPCODE + 1, MAX_OPCODE + 1), dtype=np.int64)
    sources: list[str] = []
    vectors, families = list[Float64](), list[str]()
    for sample in samples:
        sources.append(sample.source)
        vectors.append(sample.pooled)
        families.append(sample.family)
        nodes.update(sample.node_columns)
        if tiles is not None and sample.tile_feat is not None:
            tiles.update(sample.tile_feat)
        seen[sample.node_opcode] = True
        np.add.at(edges, tuple(sample.node_opcode[sample.edge_index].T), 1)
    if not sources:
        raise DataError("train", f"at least one graph of {collection} to fit statistics on", "none")
    vocabulary = np.flatnonzero(seen)
    graphs, limit = training_graphs(vectors, families)
    return FeatureSpec(
        collection=collection,
        backend=collection.backend or backend,
        options=options,
        node_columns=nodes.transform(),
        tile_columns=None if tiles is None else tiles.transform(),
        opcodes=vocabulary[1:].astype(np.uint8),
        opcode_embedding=opcode_embedding(edges[np.ix_(vocabulary, vocabulary)], options.opcode_width),
        trained_graphs=graphs,
        trained_limit=limit,
        inputs=fingerprint({"options": options.model_dump(mode="json"), "sources": sources}),
    )


def opcode_embedding(counts: NDArray[np.int64], width: int) -> NDArray[np.float32]:
    """Embed opcodes, (opcodes, width), such that opcodes with similar neighbours in the graphs are close.

    `counts` are the edges from a consumer (row) to a producer (column). The matrix of positive pointwise mutual
    information of opcodes and the opcodes that they consume and, counted separately, that consume them is factorized;
    the embedding is U sqrt(S) (Levy and Goldberg, "Neural Word Embedding as Implicit Matrix Factorization", NeurIPS
    2014). An opcode without edges gets zeros, and so do columns beyond the rank of the matrix. The entry of largest
    magnitude in each column is positive.
    """
    contexts: NDArray[Any] = np.hstack([counts, counts.T]).astype(np.float64)
    expected = contexts.sum(axis=1, keepdims=True) * contexts.sum(axis=0, keepdims=True)
    ratio = np.divide(contexts * contexts.sum(), expected, out=np.zeros_like(contexts), where=expected > 0)
    # At most 121 x 242: a full decomposition is exact, needs no seed, and takes milliseconds.
    left, singular, _ = np.linalg.svd(np.log(np.maximum(ratio, 1.0)), full_matrices=False)
    rank = min(width, int((singular > 1e-10 * max(singular[0], 1.0)).sum()))
    factors = left[:, :rank] * np.sqrt(singular[:rank])
    largest = np.take_along_axis(factors, np.abs(factors).argmax(axis=0, keepdims=True), axis=0)
    embedding = np.zeros((len(counts), width), dtype=np.float32)
    evidence = contexts.any(axis=1)  # rows without edges would have rounding errors of the decomposition
    embedding[evidence, :rank] = (factors * np.sign(largest))[evidence]
    return embedding
