r"""Kendall tau and slowdown of experiments on collections, over seeds, next to the noise ceiling.

An experiment is a file of conf/experiment, or the best one without one of its ingredients. Each training runs the
stages train and evaluate in a process of one thread, with a budget of process CPU time for the training; two run at a
time. Its row is appended to benchmarks/results/quality.csv as soon as it is done, and it is not computed again as long
as neither its configuration nor its data change. The figures of each graph are appended to graphs.csv in the working
folder (`--work`), which git ignores. Choose by the columns of valid; those of test are for the report.

A training takes its budget of CPU time, by default two minutes, and validation and testing; all experiments of a
collection, three seeds each, take about an hour. There is no quick form: `--seeds 1 --cpu-seconds 5` takes seconds a
training.

    python benchmarks/quality.py --collection layout/cpu/random tile/cpu
    python benchmarks/quality.py --collection layout/cpu/random --ablation
    python benchmarks/quality.py --collection layout/cpu/random \
        --experiment best_layout --try loss=hinge model.width=32
    python benchmarks/quality.py --collection layout/cpu/random tile/cpu \
        --show --test --plot quality.svg
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

from command_line import Parser, expect, output_file, positive  # type: ignore[import-not-found] # same folder
from command_line import run as run_command
from hydra import compose, initialize_config_dir
from rows import append_row, read_rows  # type: ignore[import-not-found] # same folder

from hlorank.config import Config, ConfigError, load
from hlorank.data.collection import Collection
from hlorank.files import fingerprint
from hlorank.terminal import min_int

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "quality.csv"
CPU_SECONDS = 120.0
EXPERIMENTS = {
    "layout": (
        *("official_layout", "kaggle_1", "kaggle_1_random", "kaggle_2", "kaggle_4", "kaggle_5", "kaggle_6"),
        *("gst_paper", "best_layout"),
        *("gradient_boosting", "linear_ranking", "default_configuration", "random"),
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
        *("gradient_boosting", "linear_ranking", "random"),
    ),
}
"""By the kind of collection that they are for."""
NAMES = tuple(dict.fromkeys(name for names in EXPERIMENTS.values() for name in names))
NAMES_HELP = f"each on the collections of its kind, by default all: {', '.join(NAMES)}"
ABLATIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "best_layout": {
        "without ensemble": ("ensemble.seeds=1",),
        "without attention over configurations": ("model.block=[layer_norm,sage,gelu,residual]",),
        "without message passing": ("model.block=[layer_norm,linear,configuration_attention,gelu,residual]",),
        "without one block (three)": ("model.blocks=3",),
        "without sum over all nodes": ("model.pooling=[mean,max,l2_configurable_sum]",),
        "without sum over configurable nodes": ("model.pooling=[mean,max,sum]",),
        "without RankNet (ListMLE)": ("loss=listmle",),
        "without sizes of layouts": ("model.layout_sizes=false",),
        "without separate directions": ("model.directions=shared",),
        "without pruning": ("featurize.prune_hops=null",),
    },
    "best_tile": {
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
        *("segments.configs_per_graph=64", "trainer.validation_configs=64"),
    ),
    "xla": ("data=local", "data.local.root=$HLORANK_SHARED/data/tpugraphs/npz"),
}
"""Overrides for the collections of each source: their origin, and settings that their size needs."""
METRICS = ("kendall_tau", "opa", "slowdown_1", "slowdown_5", "noise_ceiling")
SPLITS = ("valid", "test")
COLUMNS = (
    *("collection", "experiment", "seed", "fingerprint", "parameters", "steps", "cpu_seconds"),
    *(f"{split}/{metric}" for split in SPLITS for metric in METRICS),
)
GRAPH_COLUMNS = ("collection", "experiment", "seed", "fingerprint", "split", "graph", *METRICS)
# Sections that change no figure, or only the place of files.
_IGNORED = ("paths", "tracking", "pipeline", "output", "sweep")


class Training(NamedTuple):
    """One row of the results, to be computed."""

    collection: str
    experiment: str
    overrides: tuple[str, ...]
    seed: int
    place: Path
    key: str


def composed(collection: str, overrides: Sequence[str], seed: int, work: Path) -> Config:
    values = {
        "collection": collection,
        "seed": seed,
        **{f"paths.{name}": work / name for name in ("raw", "features", "segments", "state")},
        "tracking.uri": f"sqlite:///{work}/mlflow.db",
        "tracking.artifacts": work / "artifacts",
        "trainer.accelerator": "cpu",
    }
    data = DATA[Collection.parse(collection).source]
    fixed = [*(f"{key}={value}" for key, value in values.items()), *data]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return load(compose("config", overrides=[*fixed, *overrides]))


def budget_of(cpu_seconds: float) -> tuple[str, ...]:
    """Return the overrides with which only its CPU time ends a training."""
    return f"trainer.cpu_seconds={cpu_seconds}", "trainer.max_epochs=40", "trainer.patience=40"


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
    from hlorank.partition.partition_collection import partition_collection

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


def training_key(config: Config, data: str) -> str:
    """Return the key of a training: its data, by fingerprint, and its configuration."""
    return fingerprint(
        [data, {part: value for part, value in config.model_dump(mode="json").items() if part not in _IGNORED}]
    )


def train_model(config: Config, folder: Path) -> tuple[int, float]:
    """Train what the configuration names; returns how many numbers were learned, and in how much CPU time."""
    from safetensors.numpy import load_file

    from hlorank.models.baselines.baseline import BASELINES
    from hlorank.training.baselines.train_baseline import train_baseline
    from hlorank.training.trainer import train

    start = time.process_time()
    (train_baseline if config.method in BASELINES else train)(config, folder)
    seconds = time.process_time() - start
    return sum(array.size for array in load_file(folder / "weights.safetensors").values()), seconds


def run(training: Training) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One training and its evaluation: its row, and one for each graph."""
    import logging

    from hlorank.evaluation.evaluate_model import evaluate
    from hlorank.evaluation.protocol import PER_GRAPH
    from hlorank.files import read_json

    logging.disable(logging.INFO)
    config = composed(training.collection, training.overrides, training.seed, training.place)
    model, report = (training.place / name / training.key for name in ("models", "reports"))
    parameters, seconds = train_model(config, model)
    found = evaluate(config, model, report)
    name = {
        "collection": training.collection,
        "experiment": training.experiment,
        "seed": training.seed,
        "fingerprint": training.key,
    }
    row = name | {
        "parameters": parameters,
        "steps": read_json(model / "spec.json")["steps"],
        "cpu_seconds": round(seconds, 1),
    }
    known = {column: found.get(column) for column in COLUMNS if "/" in column}
    graphs = [
        name | {column: graph[column] for column in GRAPH_COLUMNS if column in graph}
        for graph in read_rows(report / PER_GRAPH)
    ]
    return row | {column: round(value, 4) for column, value in known.items() if value is not None}, graphs


def show(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Mean and standard deviation of some columns over seeds, as Markdown."""
    lines = [f"| collection | experiment | seeds | CPU s | {' | '.join(names)} |", "|---" * (4 + len(names)) + "|"]
    for collection, experiment in dict.fromkeys((row["collection"], row["experiment"]) for row in rows):
        some = [row for row in rows if (row["collection"], row["experiment"]) == (collection, experiment)]

        def cell(name: str, some: list[dict[str, Any]] = some) -> str:
            values = [float(row[name]) for row in some if row.get(name) not in (None, "")]
            if not values:
                return ""
            return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")

        cells = [collection, experiment, str(len(some)), cell("cpu_seconds"), *map(cell, names)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def averaged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each experiment and seed that has one in every collection of its kind: means over these."""
    found: list[dict[str, Any]] = []
    for kind in EXPERIMENTS:
        here = [row for row in rows if Collection.parse(row["collection"]).kind == kind]
        count = len({row["collection"] for row in here})
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in here:
            groups.setdefault((row["experiment"], str(row["seed"])), []).append(row)
        for (experiment, seed), some in groups.items():
            if len(some) == count > 1:
                figures = (name for name in COLUMNS if "/" in name)
                known = [name for name in figures if all(row.get(name) not in (None, "") for row in some)]
                means = {name: mean(float(row[name]) for row in some) for name in ("cpu_seconds", *known)}
                found.append({"collection": f"mean of {count}", "experiment": experiment, "seed": seed, **means})
    return found


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


def chosen(arguments: argparse.Namespace) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield each collection with the name and the overrides of each experiment on it."""
    budget = budget_of(arguments.cpu_seconds)
    experiments = fitting(arguments.collection, arguments.experiment)
    expect("--collection: source", [Collection.parse(collection).source for collection in experiments], DATA)
    for collection, names in experiments.items():
        if arguments.tried:
            for overrides in arguments.tried if names else ():
                yield collection, " ".join(overrides), (f"experiment={names[0]}", *budget, *overrides)
        elif arguments.ablation:
            best = f"best_{Collection.parse(collection).kind}"
            for name, overrides in {"": (), **ABLATIONS[best]}.items():
                yield collection, f"{best} {name}".strip(), (f"experiment={best}", *budget, *overrides)
        else:
            for name in names:
                yield collection, name, overrides_of(name, arguments.cpu_seconds)


def recorded(results: Path, wanted: Sequence[tuple[str, str]], seeds: int) -> list[dict[str, Any]]:
    """Return the newest row of each seed, and graph where there are several, of collections and experiments.

    Raises:
        ConfigError: there is none.
    """
    columns = ("collection", "experiment", "seed", "graph")
    known = {tuple(row.get(column) for column in columns): row for row in read_rows(results)}
    rows = [row for pair in wanted for key, row in known.items() if key[:2] == pair and int(row["seed"]) < seeds]
    if not rows:
        raise ConfigError(f"{results}: no row of what is asked for; without --show it is computed")
    return rows


def waiting(arguments: argparse.Namespace, work: Path) -> list[Training]:
    """Prepare the data of all trainings that are asked for, and return these."""
    wanted = [(*one, data_key(composed(one[0], one[2], 0, work))) for one in chosen(arguments)]
    trainings = []
    for collection, name, overrides, data in wanted:
        place = work / data
        config = composed(collection, overrides, 0, place)
        place.mkdir(parents=True, exist_ok=True)
        fetch(config)
        features = featurize(config)
        for seed in range(arguments.seeds):
            key = training_key(composed(collection, overrides, seed, place), features)
            trainings.append(Training(collection, name, overrides, seed, place, key))
    return trainings


def computed(arguments: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """Return the rows of all trainings that are asked for, after those that are missing are done."""
    output_file(arguments.results)
    trainings = waiting(arguments, work)
    known: dict[str, dict[str, Any]] = {row["fingerprint"]: row for row in read_rows(arguments.results)}
    missing = [training for training in trainings if training.key not in known]
    # A process for each, so that none inherits the memory of another.
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = [pool.submit(run, training) for training in missing]
        for number, future in enumerate(as_completed(futures), 1):
            row, graphs = future.result()
            known[row["fingerprint"]] = row
            append_row(arguments.results, COLUMNS, row)
            for graph in graphs:
                append_row(work / "graphs.csv", GRAPH_COLUMNS, graph)
            tau = row.get("valid/kendall_tau")
            print(f"[{number}/{len(futures)}] {row['collection']} {row['experiment']} {row['seed']}: valid {tau}",
                  file=sys.stderr, flush=True)  # fmt: skip
    return [known[training.key] for training in trainings]


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


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--collection", nargs="+", required=True, metavar="PATH", help="such as layout/cpu/random")
    add_training_options(parser, RESULTS, f"{CPU_SECONDS:g}", "quality")
    parser.set_defaults(cpu_seconds=CPU_SECONDS)
    parser.add_argument("--ablation", action="store_true", help="the best experiment without one ingredient each")
    parser.add_argument("--try", dest="tried", nargs="+", action="append", default=[], metavar="KEY=VALUE",
                        help="the first experiment with these overrides; may be repeated")  # fmt: skip
    parser.add_argument("--test", action="store_true", help="show the columns of test as well")
    parser.add_argument("--plot", type=output_file, metavar="SVG", help="draw the Kendall tau of what is shown")
    arguments = parser.parse_args()
    if arguments.show:
        wanted = [(collection, name) for collection, name, _ in chosen(arguments)]
        rows = recorded(arguments.results, wanted, arguments.seeds)
    else:
        rows = computed(arguments, arguments.work.resolve())
    splits = SPLITS if arguments.test else ("valid",)
    print(show([*rows, *averaged(rows)], [f"{split}/{metric}" for split in splits for metric in METRICS]))
    if arguments.plot:
        from dots import draw  # type: ignore[import-not-found] # same folder

        draw(rows, splits, arguments.plot)


if __name__ == "__main__":
    run_command(main)
