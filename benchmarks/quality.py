"""Quality of experiments on collections, over seeds: Kendall tau and slowdown beside the noise ceiling.

An experiment is a list of overrides of conf/, by name. Each training runs the stages train and evaluate in a process
of one thread; its row goes to benchmarks/results/quality.csv as soon as it is done, and is not computed again as long
as neither its configuration nor its data change. Choose by the columns of valid; those of test are for the report.

    python benchmarks/quality.py --collection layout/cpu/random --experiment gst gradient_boosting --seeds 3
    python benchmarks/quality.py --collection layout/cpu/random --try loss=hinge model.width=32
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from hydra import compose, initialize_config_dir
from rows import append_row, read_rows  # type: ignore[import-not-found] # beside this script

from hlorank.collection import Collection
from hlorank.config import Config, load, to_plain
from hlorank.io import fingerprint

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "quality.csv"
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "gst": ("method=gst",),
    "full": ("method=full",),
    # On whole graphs: its pooled features of pruned ones ranked valid worse.
    "gradient_boosting": ("method=gradient_boosting", "featurize.prune_hops=null"),
}
METRICS = ("kendall_tau", "opa", "slowdown_1", "slowdown_5", "noise_ceiling")
COLUMNS = (
    *("collection", "experiment", "seed", "fingerprint", "parameters", "cpu_seconds"),
    *(f"{split}/{metric}" for split in ("valid", "test") for metric in METRICS),
)
# What changes no figure, or only where things lie.
_IGNORED = ("paths", "tracking", "pipeline", "output")


def composed(collection: str, overrides: Sequence[str], seed: int, work: Path) -> Config:
    values = {
        "collection": collection,
        "seed": seed,
        **{f"paths.{name}": work / name for name in ("raw", "features", "segments", "state")},
        "tracking.uri": f"sqlite:///{work}/mlflow.db",
        "tracking.artifacts": work / "artifacts",
        "trainer.accelerator": "cpu",
    }
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return load(compose("config", overrides=[*(f"{key}={value}" for key, value in values.items()), *overrides]))


def prepare(config: Config) -> None:
    """Fetches, featurizes and partitions; what is up to date stays."""
    from hlorank.featurize.build import featurize_collection
    from hlorank.fetch import local, synthetic
    from hlorank.partition.build import partition_collection

    collection, paths = Collection.parse(config.collection), config.paths
    raw, features, segments = (Path(place) / collection.path for place in (paths.raw, paths.features, paths.segments))
    if config.data.local is not None:
        local.fetch(collection, config.data.local, raw)
    elif config.data.synthetic is not None:
        synthetic.fetch(collection, config.data.synthetic, raw)
    featurize_collection(Path(paths.raw), collection, config.featurize, features)
    if collection.kind == "layout":
        partition_collection(features, config.partition, segments)


def run(collection: str, experiment: str, overrides: Sequence[str], seed: int, work: Path, key: str) -> dict[str, Any]:
    """One training and its evaluation: one row."""
    from safetensors.numpy import load_file

    from hlorank.evaluation.run import evaluate
    from hlorank.models.baseline import BASELINES
    from hlorank.training.baseline import train_baseline
    from hlorank.training.run import train

    config = composed(collection, overrides, seed, work)
    model = work / "models" / key
    start = time.process_time()
    (train_baseline if config.method in BASELINES else train)(config, model)
    seconds = time.process_time() - start
    found = evaluate(config, model, work / "reports" / key)
    row = {
        "collection": collection,
        "experiment": experiment,
        "seed": seed,
        "fingerprint": key,
        "parameters": sum(array.size for array in load_file(model / "weights.safetensors").values()),
        "cpu_seconds": round(seconds, 1),
    }
    names = [column for column in COLUMNS if "/" in column]
    return row | {name: round(found[name], 4) for name in names if found.get(name) is not None}


def show(rows: Sequence[dict[str, Any]], splits: Sequence[str]) -> str:
    """Mean and standard deviation over seeds, as Markdown."""
    names = [f"{split}/{metric}" for split in splits for metric in METRICS]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collection", nargs="+", required=True, help="paths such as layout/cpu/random")
    parser.add_argument("--experiment", nargs="+", default=[], choices=EXPERIMENTS)
    parser.add_argument("--try", dest="tried", nargs="+", action="append", default=[], metavar="KEY=VALUE",
                        help="an unnamed experiment of these overrides, shown with its valid columns only")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="trainings side by side (default: 2)")
    parser.add_argument("--work", type=Path, default=ROOT / ".hlorank" / "quality", help="features, models, runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--test", action="store_true", help="show the columns of test as well")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    tried = {" ".join(overrides): tuple(overrides) for overrides in arguments.tried}
    chosen = {name: EXPERIMENTS[name] for name in arguments.experiment} | tried

    from mlflow.tracking import MlflowClient

    from hlorank.featurize.store import FeatureStore

    known = {row["fingerprint"]: row for row in read_rows(arguments.results)}
    waiting, keys = [], []
    for collection, (name, overrides) in product(arguments.collection, chosen.items()):
        # Features and segments of other settings lie elsewhere.
        config = composed(collection, overrides, 0, work)
        place = work / fingerprint([to_plain(config.data), to_plain(config.featurize), to_plain(config.partition)])[:12]
        config = composed(collection, overrides, 0, place)
        place.mkdir(exist_ok=True)
        MlflowClient(config.tracking.uri).search_experiments()  # made once, before trainings race for it
        prepare(config)
        data = FeatureStore(Path(config.paths.features) / collection).fingerprint
        for seed in range(arguments.seeds):
            plain = to_plain(composed(collection, overrides, seed, place))
            key = fingerprint([data, {part: value for part, value in plain.items() if part not in _IGNORED}])
            keys.append(key)
            if key not in known:
                waiting.append((collection, name, overrides, seed, place, key))
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run, *one) for one in waiting]
        for number, future in enumerate(as_completed(futures), 1):
            row = future.result()
            known[row["fingerprint"]] = row
            append_row(arguments.results, COLUMNS, row)
            tau = row.get("valid/kendall_tau")
            print(f"[{number}/{len(futures)}] {row['collection']} {row['experiment']} {row['seed']}: valid {tau}",
                  file=sys.stderr, flush=True)  # fmt: skip
    print(show([known[key] for key in keys], ("valid", "test") if arguments.test else ("valid",)))


if __name__ == "__main__":
    main()
