"""Features on disk: one folder of memory-mapped arrays for each graph.

The layout of a store::

    spec.json                       the `FeatureSpec`
    graphs.json                     what the graphs are; written last, so a store without it is incomplete
    metrics.json                    sizes, for DVC
    graphs/<split>/<graph>/graph.json      what the folder was made from
    graphs/<split>/<graph>/<array>.npy     one file for each array of `GraphFeatures`
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from hlorank.data.collection import SPLITS, Split
from hlorank.data.graph import Graph
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.files import SPEC, DataError, atomic_folder, map_array, read_json, write_json

INDEX_FILE, GRAPH_FILE = "graphs.json", "graph.json"

_GRAPH_ARRAYS = ("node_feat", "opcode", "node_layout", "edge_index", "node_splits", "row_of", "runtime")
_CONFIGURATION_ARRAYS = {"row_of", "runtime", "normalizer", "codebook", "sizes", "codes", "feat"}


@dataclass(frozen=True)
class GraphEntry:
    """What a store says of a graph without opening it.

    Attributes:
        nodes: nodes of the reduced graph.
        virtual_nodes: those of them into which others were merged.
        edges: edges of the reduced graph.
        raw_nodes: nodes of the whole graph.
        raw_edges: edges of the whole graph.
        configurable_nodes: configurable nodes; 0 for tiles.
        configurations: configurations, repeated ones included.
        distinct: distinct configurations.
        configuration_bytes: size of all that grows with the configurations, labels included.
        skipped: why training skips the graph; None if it does not.
        split_half_tau: Kendall tau between two halves of the measurements, None where nothing was measured twice.
    """

    nodes: int
    virtual_nodes: int
    edges: int
    raw_nodes: int
    raw_edges: int
    configurable_nodes: int
    configurations: int
    distinct: int
    configuration_bytes: int
    skipped: str | None
    split_half_tau: float | None


def graph_folder(root: Path, split: Split, name: str) -> Path:
    """The folder of a graph, whatever characters its name holds."""
    quoted = quote(name, safe="")
    # A leading dot would make a hidden folder, or lead out of the split.
    return root / "graphs" / split / (f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted)


def remove_other_graphs(root: Path, graphs: Mapping[Split, Collection[str]]) -> None:
    """Removes folders of graphs that are not among these, and what a kill left behind."""
    for split, names in graphs.items():
        wanted = {graph_folder(root, split, name) for name in names}
        for folder in set((root / "graphs" / split).glob("*")) - wanted:
            shutil.rmtree(folder)


def skip_reason(features: GraphFeatures) -> str | None:
    """Why a graph teaches a ranker nothing; None if it does."""
    configurations = len(features.row_of)
    if configurations == 1:
        return "a single configuration"
    if features.distinct == 1:
        tile = isinstance(features.configurations, TileFeatures)
        return f"{configurations} configurations, {'one distinct row' if tile else 'all identical'}"
    if features.withheld:
        return "labels withheld"
    _, labels = features.targets()
    return "all runtimes are equal" if labels.min() == labels.max() else None


def write_graph_features(folder: Path, features: GraphFeatures, graph: Graph, key: dict[str, str]) -> GraphEntry:
    """Writes a graph's folder in one step.

    Args:
        folder: replaced if it is there.
        features: what to write.
        graph: the whole graph that they were made from.
        key: what the features were made from, for `stored_entry`.
    """
    parts = {**vars(features), **vars(features.configurations)}
    arrays = {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}
    entry = GraphEntry(
        nodes=features.nodes,
        virtual_nodes=features.virtual_nodes,
        edges=len(features.edge_index),
        raw_nodes=graph.nodes,
        raw_edges=len(graph.edge_index),
        configurable_nodes=len(arrays.get("node_ids", ())),
        configurations=len(features.row_of),
        distinct=features.distinct,
        configuration_bytes=sum(arrays[name].nbytes for name in arrays.keys() & _CONFIGURATION_ARRAYS),
        skipped=skip_reason(features),
        split_half_tau=features.split_half_tau,
    )
    with atomic_folder(folder) as temporary:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        write_json(temporary / GRAPH_FILE, {"name": features.name, "made_from": key, "entry": asdict(entry)})
    return entry


def stored_entry(folder: Path, key: dict[str, str]) -> GraphEntry | None:
    """The entry of a graph's folder if it was made from `key`, None if it has to be made."""
    try:
        stored = read_json(folder / GRAPH_FILE)
    except DataError:
        return None
    return GraphEntry(**stored["entry"]) if stored.get("made_from") == key else None


class FeatureStore:
    """Reads a store that the stage featurize wrote.

    Attributes:
        root: the store's folder.
        spec: how the graphs were featurized.
        fingerprint: identifies the features: the spec and all raw files.

    Raises:
        DataError: the store is missing, incomplete or damaged.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / INDEX_FILE).is_file():
            raise DataError("features", "a complete feature store", "none; run the stage featurize", file=root)
        index = read_json(root / INDEX_FILE)
        try:
            self.fingerprint = str(index["fingerprint"])
            self._entries = {
                split: {name: GraphEntry(**entry) for name, entry in sorted(index["splits"][split].items())}
                for split in SPLITS
            }
        except (KeyError, TypeError, AttributeError) as error:
            expected = "what the stage featurize writes; run it again"
            raise DataError("graphs", expected, repr(error), file=root / INDEX_FILE) from None
        try:
            self.spec = FeatureSpec.from_json(read_json(root / SPEC))
        except DataError as error:
            raise error.in_file(root / SPEC) from None

    def entries(self, split: Split) -> dict[str, GraphEntry]:
        """What is known of each graph of a split, by name, sorted."""
        return self._entries[split]

    def graphs(self, split: Split) -> list[str]:
        """The names of a split's graphs, sorted."""
        return list(self._entries[split])

    def trainable(self, split: Split) -> list[str]:
        """The names of the graphs that teach something, sorted."""
        return [name for name, entry in self._entries[split].items() if entry.skipped is None]

    def skipped(self, split: Split) -> dict[str, str]:
        """Why each other graph teaches nothing, by name."""
        return {name: entry.skipped for name, entry in self._entries[split].items() if entry.skipped is not None}

    def open(self, split: Split, name: str) -> GraphFeatures:
        """Maps a graph's arrays into memory; only what is looked at is read.

        Raises:
            DataError: there is no such graph, or a file of it is damaged.
        """
        if name not in self._entries[split]:
            raise DataError(split, f"one of the graphs {self.graphs(split)[:20]}", name, file=self.root)
        folder, entry = graph_folder(self.root, split, name), self._entries[split][name]

        def array(key: str) -> Any:
            return map_array(folder / f"{key}.npy")

        layout = self.spec.kind == "layout"
        return GraphFeatures(
            name=name,
            **{key: array(key) for key in _GRAPH_ARRAYS},
            configurations=LayoutFeatures(*(array(key) for key in ("node_ids", "codebook", "sizes", "codes")))
            if layout
            else TileFeatures(array("feat")),
            normalizer=None if layout else array("normalizer"),
            split_half_tau=entry.split_half_tau,
            virtual_nodes=entry.virtual_nodes,
        )
