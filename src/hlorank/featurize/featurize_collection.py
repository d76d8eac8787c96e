"""Featurization of a collection: the work of the stage featurize."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hlorank.compute import SERIAL, map_graphs
from hlorank.config import ComputeConfig, FeaturizeConfig
from hlorank.data import collection as official
from hlorank.data.collection import SPLITS, Collection, Kind, Split
from hlorank.data.configurations import LAYOUT_VALUES, TILE_FEATURES
from hlorank.data.manifest import read_manifest
from hlorank.data.splits import family_of
from hlorank.featurize import feature_store
from hlorank.featurize.feature_spec import FeatureSpec
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.featurize.fit_spec import TrainSample, fit_spec
from hlorank.files import METRICS, SPEC, DataError, code_digest, counted, fingerprint, sha256_file, write_json

CODE = ("hlorank.featurize", "hlorank.hlo", "hlorank.data", "hlorank.metrics")
"""Packages that turn a raw file into features: a change of their code featurizes graphs again."""

_LOGGER = logging.getLogger(__name__)
_FLOAT32_BYTES = 4

Options = FeaturizeConfig | FeatureSpec


def featurize_collection(
    raw: Path, collection: Collection, config: Options, output: Path, compute: ComputeConfig = SERIAL
) -> None:
    """Fit a specification on the train split, unless it is given, and featurize every graph into a store.

    The features of a graph are reused if its raw file, the specification and the code in `CODE` are unchanged; folders
    of other graphs are removed. The bytes written depend neither on `compute` nor on an earlier content. If no graph
    changes, the store can be read all the time. A DataError says that the train split is empty, or names all damaged
    files.
    """
    files = {split: official.graph_files(raw, collection, split) for split in SPLITS}
    if not files["train"]:
        expected = "at least one npz file in the train split, to fit statistics on"
        raise DataError("train", expected, "none", file=raw / collection.path)
    manifest, data = read_manifest(raw / collection.path), official.made_from(raw / collection.path)
    options = config.options if isinstance(config, FeatureSpec) else config
    backend = collection.backend or ("" if manifest is None else manifest.backend)
    sample = partial(_train_sample, kind=collection.kind, options=options, on_tpu=backend.startswith("tpu"))
    try:
        samples = map_graphs(sample, files["train"], compute, "featurize: statistics", outputs=[output])
        spec = config if isinstance(config, FeatureSpec) else fit_spec(collection, config, samples, backend)
    except (DataError, ExceptionGroup):
        # All damaged files are named, not only files of the train split.
        check = partial(official.read_graph, kind=collection.kind)
        every = [path for split in SPLITS for path in files[split]]
        for _ in map_graphs(check, every, compute, "featurize: check", outputs=[output]):
            pass
        raise
    spec = spec.model_copy(update={"runtimes": "" if manifest is None else str(manifest)})
    index = _store_graphs(compute, files, collection.kind, spec, output)
    write_json(output / SPEC, spec.model_dump(mode="json"))
    for name, entry in index.splits["train"].items():
        if entry.skipped is not None:
            _LOGGER.warning("%s: training skips the graph %s: %s", collection, name, entry.skipped)
    write_json(output / METRICS, _metrics(collection.kind, index.splits))
    write_json(output / feature_store.INDEX_FILE, {**index.model_dump(mode="json"), "data": {**data, **index.data}})
    graphs = [entry for split in index.splits.values() for entry in split.values()]
    nodes, distinct = sum(graph.nodes for graph in graphs), sum(graph.distinct for graph in graphs)
    sizes = counted(len(graphs), "graph"), counted(nodes, "node"), counted(distinct, "distinct configuration")
    _LOGGER.info("%s: %s", output, ", ".join(sizes))


def _store_graphs(
    compute: ComputeConfig, files: Mapping[Split, Sequence[Path]], kind: Kind, spec: FeatureSpec, output: Path
) -> feature_store.Index:
    """Store graphs that are out of date, remove other graphs, and return the index."""
    tasks = [(split, path) for split in SPLITS for path in files[split]]
    made_by = {"spec": spec.fingerprint, "code": code_digest(*CODE)}
    store = partial(_store_graph, kind=kind, spec=spec, made_by=made_by, output=output)
    results = list(map_graphs(store, tasks, compute, "featurize: graphs", outputs=[output]))
    entries: dict[Split, dict[str, feature_store.GraphEntry]] = {split: {} for split in SPLITS}
    for (split, path), (_, entry) in zip(tasks, results, strict=True):
        entries[split][path.stem] = entry
    feature_store.remove_other_graphs(output, entries, output / feature_store.INDEX_FILE)
    sources = {f"{split}/{path.stem}": source for (split, path), (source, _) in zip(tasks, results, strict=True)}
    graphs = fingerprint(sorted([path.stem, source] for (_, path), (source, _) in zip(tasks, results, strict=True)))
    made = fingerprint({"spec": spec.fingerprint, "sources": sources})
    return feature_store.Index(fingerprint=made, data={"graphs": graphs}, splits=entries)


def _source(path: Path) -> str:
    """Return the SHA-256 of the files that a graph is read from: its npz file and the sidecar next to it."""
    return " ".join(sha256_file(file) for file in (path, official.sidecar_path(path)) if file.is_file())


def _train_sample(path: Path, kind: Kind, options: FeaturizeConfig, on_tpu: bool) -> TrainSample:
    # Layout configurations are most of a file and are not used here; one is enough to make the graph valid.
    measured = official.read_graph(path, kind, 1 if kind == "layout" else None)
    return TrainSample.of(_source(path), measured, options, on_tpu, family_of(path))


def _store_graph(
    task: tuple[Split, Path], kind: Kind, spec: FeatureSpec, made_by: dict[str, str], output: Path
) -> tuple[str, feature_store.GraphEntry]:
    """Store one graph if what is stored is out of date; return its source and its entry."""
    split, path = task
    source, folder = _source(path), feature_store.graph_folder(output, split, path.stem)
    key = {"source": source, **made_by}
    entry = feature_store.stored_entry(folder, key)
    if entry is None:
        (output / feature_store.INDEX_FILE).unlink(missing_ok=True)
        measured = official.read_graph(path, kind)
        features = featurize_graph(measured, spec)
        features = replace(features, split_half_tau=official.split_half_tau(path), family=family_of(path))
        entry = feature_store.write_graph_features(folder, features, measured.graph, key)
    return source, entry


def _metrics(kind: Kind, entries: dict[Split, dict[str, feature_store.GraphEntry]]) -> dict[str, Any]:
    def summary(graphs: list[feature_store.GraphEntry]) -> dict[str, int]:
        sizes = ("raw_nodes", "nodes", "raw_edges", "edges", "configurations")
        return {
            "graphs": len(graphs),
            "skipped_graphs": sum(graph.skipped is not None for graph in graphs),
            **{size: sum(getattr(graph, size) for graph in graphs) for size in sizes},
            "distinct_configurations": sum(graph.distinct for graph in graphs),
        }

    graphs = [graph for split in entries.values() for graph in split.values()]
    configurations = sum(graph.configurations for graph in graphs)
    values = LAYOUT_VALUES if kind == "layout" else TILE_FEATURES
    raw = sum(graph.configurations * (graph.configurable_nodes or 1) for graph in graphs)  # tiles have one row
    return {
        **{split: summary([*split_graphs.values()]) for split, split_graphs in entries.items()},
        "bytes_per_configuration": sum(graph.configuration_bytes for graph in graphs) / configurations,
        "raw_bytes_per_configuration": raw * values * _FLOAT32_BYTES / configurations,
    }
