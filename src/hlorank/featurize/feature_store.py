"""Features on disk: one folder of memory-mapped arrays for each graph.

The layout of a store::

    spec.json                       the `FeatureSpec`
    graphs.json                     the `Index` of graphs; removed before the first change and written last, so a store
                                    without it is incomplete
    metrics.json                    sizes, for DVC
    graphs/<split>/<graph>/graph.json      sizes of the graph, and what the folder was made from
    graphs/<split>/<graph>/<array>.npy     one file for each array of `GraphFeatures`
"""

import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from pydantic import Field

from hlorank.config import Section, read_section
from hlorank.data.collection import SPLITS, Split
from hlorank.data.graph import Graph
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.featurize.features import GraphFeatures, LayoutFeatures, TileFeatures
from hlorank.files import SPEC, DataError, atomic_folder, map_array, write_json

INDEX_FILE, GRAPH_FILE = "graphs.json", "graph.json"
_REMEDY = "run the stage featurize again"

_GRAPH_ARRAYS = ("node_feat", "opcode", "node_layout", "edge_index", "node_splits", "row_of", "runtime")
_CONFIGURATION_ARRAYS = {"row_of", "runtime", "normalizer", "codebook", "sizes", "costs", "codes", "feat"}


class GraphEntry(Section):
    """Sizes of a pruned graph and of the raw graph, and the reason to skip it, known without opening its arrays."""

    nodes: int
    edges: int
    raw_nodes: int
    raw_edges: int
    configurable_nodes: int  # 0 for tiles
    configurations: int
    distinct: int
    configuration_bytes: int  # size of all arrays that grow with the number of configurations, labels included
    skipped: str | None  # reason why training skips the graph; None if it does not
    # Kendall tau between two halves of the measurements; None where nothing was measured twice
    split_half_tau: float | None
    family: str


class Index(Section):
    """Content of graphs.json."""

    fingerprint: str  # identifier of the features: the specification and all raw files
    # The section `data` of the raw files, and `graphs`, their identifier in any split; not in stores of before.
    data: dict[str, Any] = Field(default_factory=dict)
    splits: dict[Split, dict[str, GraphEntry]] = Field(min_length=len(SPLITS))  # entries by split and name


class _StoredGraph(Section):
    """Content of graph.json."""

    name: str
    made_from: dict[str, str]  # fingerprints of what the features were made from
    entry: GraphEntry


def graph_folder(root: Path, split: Split, name: str) -> Path:
    """Return the folder of a graph, whose name may contain any characters."""
    quoted = quote(name, safe="")
    # A leading dot would make a hidden folder, or lead out of the split.
    return root / "graphs" / split / (f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted)


def remove_other_graphs(root: Path, graphs: Mapping[Split, Collection[str]], index: Path) -> None:
    """Remove folders of graphs not among `graphs`, and folders that a kill left behind; `index` before the first."""
    for split, names in graphs.items():
        wanted = {graph_folder(root, split, name) for name in names}
        for folder in set((root / "graphs" / split).glob("*")) - wanted:
            index.unlink(missing_ok=True)
            shutil.rmtree(folder)


def skip_reason(features: GraphFeatures) -> str | None:
    """Return the reason to skip a graph in training, None if there is no reason."""
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
    """Write or replace a graph's folder in one step, and return its entry; `key` is for `stored_entry`."""
    parts = {**vars(features), **vars(features.configurations)}
    arrays = {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}
    entry = GraphEntry(
        nodes=features.nodes,
        edges=len(features.edge_index),
        raw_nodes=graph.nodes,
        raw_edges=len(graph.edge_index),
        configurable_nodes=len(arrays.get("node_ids", ())),
        configurations=len(features.row_of),
        distinct=features.distinct,
        configuration_bytes=sum(arrays[name].nbytes for name in arrays.keys() & _CONFIGURATION_ARRAYS),
        skipped=skip_reason(features),
        split_half_tau=features.split_half_tau,
        family=features.family,
    )
    with atomic_folder(folder) as temporary:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        stored = _StoredGraph(name=features.name, made_from=key, entry=entry)
        write_json(temporary / GRAPH_FILE, stored.model_dump(mode="json"))
    return entry


def stored_entry(folder: Path, key: dict[str, str]) -> GraphEntry | None:
    """Return the entry of a graph's folder if it was made from `key` and is not damaged, else None."""
    with suppress(DataError):
        stored = read_section(_StoredGraph, folder / GRAPH_FILE, _REMEDY)
        if stored.made_from == key:
            _open(folder, stored.name, stored.entry)
            return stored.entry
    return None


def _open(folder: Path, name: str, entry: GraphEntry) -> GraphFeatures:
    def arrays(*keys: str) -> dict[str, Any]:
        return {key: map_array(folder / f"{key}.npy") for key in keys}

    kind: type[LayoutFeatures | TileFeatures] = LayoutFeatures if entry.configurable_nodes else TileFeatures
    return GraphFeatures(
        name=name,
        **arrays(*_GRAPH_ARRAYS),
        configurations=kind(**arrays(*(field.name for field in fields(kind)))),
        **{"normalizer": None} if kind is LayoutFeatures else arrays("normalizer"),
        split_half_tau=entry.split_half_tau,
        family=entry.family,
    )


class FeatureStore:
    """Reader of a store, with its specification; a missing, incomplete or damaged store is a DataError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / INDEX_FILE).is_file():
            raise DataError("features", "a complete feature store", "none; run the stage featurize", file=root)
        index = read_section(Index, root / INDEX_FILE, _REMEDY)
        self.spec = read_section(FeatureSpec, root / SPEC, _REMEDY)
        self.fingerprint, self.data = index.fingerprint, index.data
        self._entries = {split: dict(sorted(index.splits[split].items())) for split in SPLITS}

    def entries(self, split: Split) -> dict[str, GraphEntry]:
        """Return the entry of each graph of a split by name, sorted."""
        return self._entries[split]

    def graphs(self, split: Split) -> list[str]:
        """Return the names of a split's graphs, sorted."""
        return list(self._entries[split])

    def trainable(self, split: Split) -> list[str]:
        """Return the names of the graphs that training uses, sorted."""
        return [name for name, entry in self._entries[split].items() if entry.skipped is None]

    def skipped(self, split: Split) -> dict[str, str]:
        """Return the reason to skip each graph that training does not use, by name."""
        return {name: entry.skipped for name, entry in self._entries[split].items() if entry.skipped is not None}

    def open(self, split: Split, name: str) -> GraphFeatures:
        """Map a graph's arrays into memory, each read where it is accessed; an unknown graph is a DataError."""
        if name not in self._entries[split]:
            raise DataError(split, f"one of the graphs {self.graphs(split)[:20]}", name, file=self.root)
        return _open(graph_folder(self.root, split, name), name, self._entries[split][name])
