"""Ranking of the configurations of any graph with a trained model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hlorank.data.collection import Collection
from hlorank.data.configurations import (
    LAYOUT_VALUES,
    LayoutConfigurations,
    MeasuredGraph,
    Measurements,
    TileConfigurations,
)
from hlorank.data.graph import Graph
from hlorank.data.npz import CHUNK_BYTES
from hlorank.evaluation.graph_report import check_scores
from hlorank.featurize.features import GraphFeatures
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.files import DataError
from hlorank.hlo.node_features import CONFIGURABLE, OPCODES
from hlorank.metrics import ranking
from hlorank.models.scoring import load_trained
from hlorank.partition.partitioners import partition_graph
from hlorank.partition.segments import Partition

if TYPE_CHECKING:
    from hlorank.ranking.ranked import Ranking

MEMORY_BYTES = 256 * 2**20
"""Default limit of the activations in memory while scoring."""

Configurations = LayoutConfigurations | TileConfigurations | NDArray[Any]
"""Configurations of one graph; an array has shape (configurations, 24) for tiles, and (configurations, configurable
nodes, 18) for layouts."""


class Ranker:
    """Trained model or baseline that scores and ranks configurations.

    Configurations are given as in `hlorank.data.configurations`, or as an array of whole or real numbers. An array of
    layouts configures every convolution, dot and reshape, in the order of the nodes.

    Args:
        folder: the model folder, written by the stage train.
        memory_bytes: limit of the activations in memory while scoring.
        accelerator: auto, cpu or cuda; auto is CUDA where PyTorch finds it.

    Attributes:
        spec: the specification of the model.

    Raises:
        DataError: a file is missing, damaged or changed, or another version of hlorank wrote it.
        ConfigError: there is no such accelerator.
    """

    def __init__(self, folder: Path, memory_bytes: int = MEMORY_BYTES, accelerator: str = "auto") -> None:
        self._scorer, self._folder = load_trained(folder, memory_bytes, accelerator), folder
        self.spec = self._scorer.spec

    @property
    def collection(self) -> Collection:
        """Collection that the model was trained on."""
        return Collection.parse(self.spec.collection)

    def score(self, graph: Graph, configurations: Configurations, *, name: str = "graph") -> NDArray[np.float64]:
        """Score configurations of a graph.

        Args:
            graph: the graph.
            configurations: at least one.
            name: name of the graph, which only the baseline `random` uses.

        Returns:
            (configurations,) float64, larger = slower; equal configurations have equal scores.

        Raises:
            DataError: `configurations` has the wrong kind, shape or values, or a score is not finite.
        """
        features, segments = self._prepared(graph, configurations, name)
        scores = self._scorer.score(features, segments)[features.row_of]
        return check_scores(scores, "scores", len(features.row_of), "configuration")

    def rank(self, graph: Graph, configurations: Configurations, *, name: str = "graph") -> NDArray[np.int64]:
        """Return the indices of configurations by ascending score, ties by index.

        Arguments and errors are those of `score`.

        Returns:
            (configurations,) int64, the fastest first.
        """
        return ranking(self.score(graph, configurations, name=name))

    def rank_program(self, program: Any, *, top: int = 10, candidates: int = 256, seed: int = 0) -> "Ranking":
        """Rank the configurations of a program from fastest to slowest, as `hlorank.rank` does with this model."""
        from hlorank.ranking.ranked import rank_program

        return rank_program(program, self, str(self._folder), top, candidates, seed)

    def _prepared(
        self, graph: Graph, configurations: Configurations, name: str
    ) -> tuple[GraphFeatures, Partition | None]:
        """Return the features of a graph, and its segments if the model reads segments."""
        if not hasattr(graph, "node_feat"):
            expected = "a hlorank.data.graph.Graph; rank_program takes a program"
            raise DataError("graph", expected, f"a {type(graph).__name__}")
        if isinstance(configurations, np.ndarray):
            configurations = self._checked(graph, configurations)
        count = len(configurations)
        # MeasuredGraph requires runtimes, which models do not use.
        tile = isinstance(configurations, TileConfigurations)
        unknown = Measurements(np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64) if tile else None)
        measured = MeasuredGraph(name, graph, configurations, unknown)
        features = featurize_graph(measured, self.spec.features)
        partition = self._scorer.partition
        return features, None if partition is None else partition_graph(features, partition)

    def _checked(self, graph: Graph, values: NDArray[Any]) -> LayoutConfigurations | TileConfigurations:
        """Return an array as configurations of the kind that the model ranks."""
        if values.dtype.kind not in "iuf":
            raise DataError("configurations", "whole or real numbers", f"dtype {values.dtype}")
        if self.spec.features.kind == "tile":
            with np.errstate(over="ignore"):  # too large values become infinite, which is refused later
                return TileConfigurations(values.astype(np.float32))
        node_ids = np.flatnonzero(np.isin(graph.node_opcode, [OPCODES[name] for name in CONFIGURABLE]))
        if values.ndim != 3 or values.shape[1:] != (len(node_ids), LAYOUT_VALUES):
            other = "hlorank.data.configurations.LayoutConfigurations names others"
            nodes = f"the nodes that are a {', '.join(CONFIGURABLE)}; {other}"
            expected = f"shape (configurations, {len(node_ids)}, {LAYOUT_VALUES}), for {nodes}"
            raise DataError("configurations", expected, values.shape)
        step = max(1, CHUNK_BYTES // (values[:1].nbytes or 1))
        chunks = (values[start : start + step] for start in range(0, len(values), step))
        return LayoutConfigurations.from_chunks(node_ids, chunks)
