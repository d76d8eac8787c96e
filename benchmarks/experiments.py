"""Experiments as benchmarks train them: their names, overrides and data, and one training with its evaluation.

An experiment is a file of conf/experiment, a baseline, or the best one without one of its ingredients. A training runs
in a process of one thread, with a budget of process CPU time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

from command_line import expect, positive  # type: ignore[import-not-found] # same folder
from cpu_budget import budget_of, seconds_of, train, without_budget  # type: ignore[import-not-found] # as above
from hydra import compose, initialize_config_dir
from rows import read_rows  # type: ignore[import-not-found] # same folder

from hlorank.config import Config, import_plugin
from hlorank.data.collection import Collection
from hlorank.files import fingerprint
from hlorank.stages.command import load_composed
from hlorank.terminal import min_int

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "examples/reproductions"))  # the experiments that conf/ lacks, and their plugin
CPU_SECONDS = 120.0
EXPERIMENTS = {
    "layout": (
        *("official_layout", "kaggle_1", "kaggle_1_random", "kaggle_2", "kaggle_4", "kaggle_5", "kaggle_6"),
        *("gst_paper", "best_layout"),
        *("gradient_boosting", "xgboost", "linear_ranking", "analytical"),
        *("default_configuration", "random"),
    ),
    "tile": (
        *(
            "official_tile",
            "official_tile_late",
            "official_tile_resgcn",
            "official_tile_resgcn_late",
            "official_tile_mlp",
        ),
        *("kaggle_1_tile", "kaggle_2_tile", "kaggle_5_tile", "kaggle_6_tile", "best_tile"),
        *("gradient_boosting", "xgboost", "linear_ranking", "random"),
    ),
}
"""By the kind of collection that they are for."""
NAMES = tuple(dict.fromkeys(name for names in EXPERIMENTS.values() for name in names))
NAMES_HELP = f"each on the collections of its kind, by default all: {', '.join(NAMES)}"
ABLATIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "best_layout": {
        "without analytical": ("ensemble.baselines=[xgboost]",),
        "without xgboost": ("ensemble.baselines=[analytical]",),
        "without joined baselines": ("ensemble.baselines=[]",),
        "without ensemble": ("ensemble.seeds=1",),
        "without attention over configurations": ("model.block=[layer_norm,sage,gelu,residual]",),
        "without message passing": ("model.block=[layer_norm,linear,configuration_attention,gelu,residual]",),
        "without one block (three)": ("model.blocks=3",),
        "without sum over all nodes": ("model.pooling=[mean,max,l2_configurable_sum]",),
        "without sum over configurable nodes": ("model.pooling=[mean,max,sum]",),
        "without RankNet (ListMLE)": ("loss=listmle",),
        "without sizes of layouts": ("model.layout_sizes=false",),
        "without what copies move": ("model.layout_moves=false",),
        "without separate directions": ("model.directions=shared",),
        "without pruning": ("featurize.prune_hops=null",),
    },
    "best_tile": {
        "without the second xgboost": ("ensemble.baselines=[xgboost]",),
        "without joined baselines": ("ensemble.baselines=[]",),
        "without bins": ("model.tile_bins=0",),
        "without attention over configurations": ("model.post_layers=[gelu,linear,gelu]",),
        "without attention over channels": ("model.block=[instance_norm,sage,residual,gelu,dropout]",),
        "without message passing": ("model.block=[instance_norm,linear,channel_attention,residual,gelu,dropout]",),
        "without late joining (early)": ("model.join=early",),
        "without all configurations in a step (16)": ("trainer.configs_per_step=16",),
        "without the wide margin (1)": ("loss.hinge.margin=1.0",),
        "without hinge (ListMLE)": ("loss=listmle", "~loss.hinge"),
        "without more dropout (0.2)": ("model.dropout=0.2",),
        "without DropEdge": ("model.drop_edge=0.0",),
        "without more weight decay (0.00001)": ("trainer.weight_decay=1.0e-5",),
        "without less width (256)": ("model.width=256",),
    },
}
"""Overrides that remove one ingredient, or replace it by the plain one."""
DATA = {
    "cpu": ("data=sample",),
    "synthetic": (
        *("data=synthetic", "data.synthetic.min_nodes=2000", "data.synthetic.max_nodes=20000"),
        *("data.synthetic.configurations=250", "data.synthetic.repeated=0.2", "data.synthetic.noise=0.001"),
    ),
    "xla": ("data=local", "data.local.root=$HLORANK_SHARED/data/tpugraphs/npz"),
}
"""Overrides for the origin of the collections of each source."""
SIZES = {"synthetic": ("segments.configs_per_graph=64", "trainer.validation_configs=64")}
"""Overrides that the size of a source's graphs needs."""
METRICS = ("kendall_tau", "opa", "slowdown_1", "slowdown_5", "noise_ceiling")
SPLITS = ("valid", "test")
COLUMNS = (
    *("collection", "experiment", "seed", "fingerprint", "parameters", "steps", "cpu_seconds"),
    *(f"{split}/{metric}" for split in SPLITS for metric in METRICS),
)
GRAPH_COLUMNS = ("collection", "experiment", "seed", "fingerprint", "split", "graph", *METRICS)
# Sections that change no figure, or only the place of files.
_IGNORED = ("paths", "tracking", "pipeline", "output", "sweep")


class Trained(NamedTuple):
    """Result of one training.

    Attributes:
        parameters: numbers that were learned.
        cpu_seconds: process CPU time.
        valid_tau: Kendall tau of the epoch that was kept; None without graphs of valid.
    """

    parameters: int
    cpu_seconds: float
    valid_tau: float | None


class Training(NamedTuple):
    """One row of the results, to be computed."""

    collection: str
    experiment: str
    overrides: tuple[str, ...]
    seed: int
    place: Path
    key: str
    data: tuple[str, ...] | None = None
    """Overrides for the origin; None = those of the collection's source."""


def composed(
    collection: str, overrides: Sequence[str], seed: int, work: Path, data: Sequence[str] | None = None
) -> Config:
    """Return the configuration of a training.

    Args:
        collection: the path of the collection.
        overrides: those of the experiment.
        seed: the seed.
        work: folder of its files.
        data: overrides for the origin; None = those of the collection's source.
    """
    values = {
        "collection": collection,
        "seed": seed,
        **{f"paths.{name}": work / name for name in ("raw", "features", "segments", "state")},
        "tracking.uri": f"sqlite:///{work}/mlflow.db",
        "tracking.artifacts": work / "artifacts",
        "trainer.accelerator": "cpu",
    }
    source = Collection.parse(collection).source
    origin = DATA[source] if data is None else data
    fixed = [*(f"{key}={value}" for key, value in values.items()), *origin, *SIZES.get(source, ())]
    import_plugin("reproductions")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return load_composed(compose("config", overrides=[*fixed, *without_budget(overrides)]))


def overrides_of(name: str, cpu_seconds: float) -> tuple[str, ...]:
    """Return the overrides that compose an experiment or a baseline."""
    from hlorank.models.baselines.baseline import BASELINES

    if name in BASELINES:
        # On whole graphs: the pooled features of pruned ones ranked valid worse.
        return f"method={name}", "featurize.prune_hops=null"
    return f"experiment={name}", *budget_of(cpu_seconds)


def fetch(config: Config) -> None:
    """Fetch the graphs; what is up to date stays."""
    from hlorank.fetch import origins

    collection = Collection.parse(config.collection)
    origins.fetch(collection, config.data, Path(config.paths.raw) / collection.path)


def featurize(config: Config) -> str:
    """Featurize and partition the fetched graphs, unless up to date; return the fingerprint of the features."""
    from hlorank.featurize.feature_store import FeatureStore
    from hlorank.featurize.featurize_collection import featurize_collection
    from hlorank.partition.segment_store import partition_collection

    collection, paths = Collection.parse(config.collection), config.paths
    features = Path(paths.features) / collection.path
    featurize_collection(Path(paths.raw), collection, config.featurize, features)
    if collection.kind == "layout":
        partition_collection(features, config.partition, Path(paths.segments) / collection.path)
    return FeatureStore(features).fingerprint


def data_key(config: Config) -> str:
    """Return a name for the features and segments of these settings; those of other settings have another one."""
    return fingerprint(
        [
            config.data.model_dump(mode="json"),
            config.featurize.model_dump(mode="json"),
            config.partition.model_dump(mode="json"),
        ]
    )[:12]


def training_key(config: Config, data: str, overrides: Sequence[str], ignored: Sequence[str] = ()) -> str:
    """Return the key of a training: its data, its configuration but for the sections `ignored`, and its CPU time."""
    settings = config.model_dump(mode="json")
    read = {part: settings[part] for part in settings if part not in (*_IGNORED, *ignored)}
    return fingerprint([data, read, seconds_of(overrides)])


def train_model(config: Config, folder: Path, cpu_seconds: float | None) -> Trained:
    """Train what the configuration names."""
    from safetensors.numpy import load_file

    start = time.process_time()
    tau = train(config, folder, cpu_seconds)
    seconds = time.process_time() - start
    return Trained(sum(array.size for array in load_file(folder / "weights.safetensors").values()), seconds, tau)


def run(training: Training) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One training and its evaluation: its row, and one for each graph."""
    import logging

    from hlorank.evaluation.evaluate import evaluate
    from hlorank.evaluation.graph_report import PER_GRAPH
    from hlorank.files import read_json

    logging.disable(logging.INFO)
    config = composed(training.collection, training.overrides, training.seed, training.place, training.data)
    model, report = (training.place / name / training.key for name in ("models", "reports"))
    trained = train_model(config, model, seconds_of(training.overrides))
    found = evaluate(config, model, report)
    name = {
        "collection": training.collection,
        "experiment": training.experiment,
        "seed": training.seed,
        "fingerprint": training.key,
    }
    row = name | {
        "parameters": trained.parameters,
        "steps": read_json(model / "spec.json")["steps"],
        "cpu_seconds": round(trained.cpu_seconds, 1),
    }
    known = {"valid/kendall_tau": trained.valid_tau, **{name: found[name] for name in COLUMNS if name in found}}
    graphs = [
        name | {column: graph[column] for column in GRAPH_COLUMNS if column in graph}
        for graph in read_rows(report / PER_GRAPH)
    ]
    return row | {column: round(value, 4) for column, value in known.items() if value is not None}, graphs


def fitting(collections: Sequence[str], experiments: Sequence[str] | None) -> dict[str, list[str]]:
    """Return the names of the experiments for each collection, by its path: those of its kind, by default all.

    Raises:
        ConfigError: an experiment is for another kind than that of the collections.
    """
    addresses = [Collection.parse(collection) for collection in collections]
    known = {name for address in addresses for name in EXPERIMENTS[address.kind]}
    expect(f"--experiment for {' '.join(collections)}:", experiments or (), known)
    return {
        address.path.as_posix(): [
            name for name in experiments or EXPERIMENTS[address.kind] if name in EXPERIMENTS[address.kind]
        ]
        for address in addresses
    }


def add_training_options(parser: argparse.ArgumentParser, results: Path, budget: str, work: str) -> None:
    """Add the options of a benchmark that trains experiments and keeps their rows."""
    parser.add_argument("--experiment", nargs="+", choices=NAMES, metavar="NAME", help=NAMES_HELP)
    parser.add_argument("--seeds", type=min_int(1), default=3, metavar="N", help="seeds 0 to N - 1 (default: 3)")
    parser.add_argument("--cpu-seconds", type=positive, metavar="S", help=f"CPU time of a training (default: {budget})")
    parser.add_argument(
        "--jobs", type=min_int(1), default=2, metavar="N", help="trainings at the same time (default: 2)"
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".hlorank" / work, metavar="FOLDER",
        help=f"features, models and runs (default: .hlorank/{work})",
    )  # fmt: skip
    parser.add_argument(
        "--results", type=Path, default=results, metavar="CSV",
        help=f"rows (default: benchmarks/results/{results.name})",
    )  # fmt: skip
    parser.add_argument("--show", action="store_true", help="only show the newest rows of the results")
