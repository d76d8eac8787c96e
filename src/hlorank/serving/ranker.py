"""A trained model that ranks the configurations of any graph of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.collection import Collection
from hlorank.data.graph import (
    LAYOUT_VALUES,
    Graph,
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    TileConfigurations,
)
from hlorank.data.npz import CHUNK_BYTES
from hlorank.featurize.features import GraphFeatures
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.files import DataError
from hlorank.hlo.extra import Extra
from hlorank.hlo.opcodes import CONFIGURABLE, OPCODES
from hlorank.metrics import ranking
from hlorank.models.scorer import load_scorer
from hlorank.partition.partitioners import partition_graph
from hlorank.partition.segments import Partition

MEMORY_BYTES = 256 * 2**20

Configurations = LayoutConfigurations | TileConfigurations | NDArray[Any]
"""Of one graph; an array is (configurations, 24) for tiles, (configurations, configurable nodes, 18) for layouts."""


class Ranker:
    """Scores and ranks configurations, by whatever model a folder holds.

    Configurations come as `hlorank.data.graph` holds them, or as a plain array of whole or real numbers. The nodes that
    an array of layouts configures are all that are a convolution, a dot or a reshape, in their order.

    Args:
        folder: what the stage train wrote.
        memory_bytes: bound of the activations held while scoring.

    Attributes:
        spec: what the model is.

    Raises:
        DataError: a file is missing, damaged or changed, or another version of hlorank wrote it.
    """

    def __init__(self, folder: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        self._scorer = load_scorer(folder, memory_bytes)
        self.spec = self._scorer.spec

    @property
    def collection(self) -> Collection:
        """What the model was trained on."""
        return Collection.parse(self.spec.collection)

    def score(
        self, graph: Graph, configurations: Configurations, extra: Extra | None = None, *, name: str = "graph"
    ) -> NDArray[np.float64]:
        """Scores configurations of a graph.

        Args:
            graph: the graph.
            configurations: at least one.
            extra: its extra features of the protobuf, for a model that was trained with them.
            name: of the graph, which only the baseline `random` looks at.

        Returns:
            (configurations,) float64, larger = slower; configurations that repeat score the same.

        Raises:
            DataError: layouts where the model ranks tiles or the other way round, values that are none, extra features
                are missing, or a score is not finite.
        """
        features, segments = self._prepared(graph, configurations, extra, name)
        scores = self._scorer.score(features, segments)[features.row_of]
        if not (finite := np.isfinite(scores)).all():
            place = int(np.argmin(finite))
            raise DataError("scores", "finite numbers", f"{scores[place]} for configuration {place}")
        return scores

    def rank(
        self, graph: Graph, configurations: Configurations, extra: Extra | None = None, *, name: str = "graph"
    ) -> NDArray[np.int64]:
        """The indices of configurations from the fastest to the slowest by score, ties by index; as for `score`."""
        return ranking(self.score(graph, configurations, extra, name=name))

    def embed(
        self, graph: Graph, configurations: Configurations, extra: Extra | None = None, *, name: str = "graph"
    ) -> NDArray[np.float64]:
        """(configurations, width) float64: what the model knows of every configuration; arguments as for `score`."""
        features, segments = self._prepared(graph, configurations, extra, name)
        return self._scorer.embed(features, segments)[features.row_of]

    def _prepared(
        self, graph: Graph, configurations: Configurations, extra: Extra | None, name: str
    ) -> tuple[GraphFeatures, Partition | None]:
        """What a model reads of a graph, and its segments."""
        if isinstance(configurations, np.ndarray):
            configurations = self._checked(graph, configurations)
        count = len(configurations)
        # A model looks at no runtimes.
        tile = isinstance(configurations, TileConfigurations)
        unknown = Measurements(np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64) if tile else None)
        measured = MeasuredGraph(name, graph, configurations, unknown)
        features = featurize_graph(measured, self.spec.features, extra)
        cut = self._scorer.cut
        return features, None if cut is None else partition_graph(features, cut)

    def _checked(self, graph: Graph, values: NDArray[Any]) -> LayoutConfigurations | TileConfigurations:
        """A plain array as configurations of the model's kind."""
        if values.dtype.kind not in "iuf":
            raise DataError("configurations", "whole or real numbers", f"dtype {values.dtype}")
        if self.spec.features.kind == "tile":
            with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is refused as such
                return TileConfigurations(values.astype(np.float32))
        node_ids = np.flatnonzero(np.isin(graph.node_opcode, [OPCODES[name] for name in CONFIGURABLE]))
        if values.ndim != 3 or values.shape[1:] != (len(node_ids), LAYOUT_VALUES):
            nodes = (
                f"the nodes that are a {', '.join(CONFIGURABLE)}; hlorank.data.graph.LayoutConfigurations names others"
            )
            expected = f"shape (configurations, {len(node_ids)}, {LAYOUT_VALUES}), for {nodes}"
            raise DataError("configurations", expected, values.shape)
        step = max(1, CHUNK_BYTES // (values[:1].nbytes or 1))
        chunks = (values[start : start + step] for start in range(0, len(values), step))
        return LayoutConfigurations.from_chunks(node_ids, chunks)
