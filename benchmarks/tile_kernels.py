"""Ranking of tile kernels from the dataset's raw protobuf, each by a model trained on the others.

Converts the 15 kernels of alexnet_train_batch_32 (752 configurations) with the origin `hlo`, then for each kernel
featurizes and trains on the other 14 and evaluates on it. The evaluated kernel has no influence on the
model: without a valid split the epoch with the smallest training loss is kept. The baseline is the expected slowdown
of a random choice. Kernels whose tiles have equal features cannot be ranked, and are not part of the means. The means
are also given over kernels of more than 5 configurations, as slowdown@5 is 0 for the others.

The run takes about 6 minutes, the quick form 30 seconds.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Sequence
from math import comb
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from command_line import Parser, run  # type: ignore[import-not-found] # same folder
from hydra import compose, initialize_config_dir
from numpy.typing import NDArray

from hlorank.config import Config, load
from hlorank.data.collection import Collection, graph_files
from hlorank.evaluation.evaluate_model import evaluate
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.fetch import hlo
from hlorank.files import shared_dir, write_json
from hlorank.training.trainer import train

COLLECTION = Collection.parse("tile:xla")
CONF = Path(__file__).resolve().parents[1] / "conf"
METRICS = ("kendall_tau", "slowdown_1", "slowdown_5")


def settings(root: Path, kernel: str, seed: int, quick: bool) -> Config:
    """Return the configuration of one kernel, with its own folders."""
    values = {
        "collection": COLLECTION,
        "method": "full",
        "seed": seed,
        "loss": "hinge",
        "trainer.accelerator": "cpu",
        "trainer.graphs_per_step": 1,
        "trainer.learning_rate": 1e-3,
        "trainer.weight_decay": 1e-4,
        "trainer.max_epochs": 1 if quick else 10,
        "trainer.steps_per_epoch": 20 if quick else 80,
        "evaluate.splits": "[test]",
        "tracking.uri": f"sqlite:///{root}/mlflow.db",
        "tracking.artifacts": root / "artifacts",
        **{f"paths.{name}": root / kernel / name for name in ("raw", "features", "models", "reports", "state")},
    }
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return load(compose("config", overrides=[f"{key}={value}" for key, value in values.items()]))


def leave_one_out(files: Sequence[Path], kernel: Path, raw: Path) -> None:
    """Create a tree with one kernel in the split test and the others in train."""
    for file in files:
        target = raw / COLLECTION.path / ("test" if file == kernel else "train") / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(file)


def random_slowdown(label: NDArray[np.float64], k: int) -> float:
    """Return the expected slowdown of the best of k different configurations drawn at random."""
    count, k = len(label), min(k, len(label))
    # The i-th fastest is the best drawn one if the other k - 1 are slower.
    share = np.array([comb(count - 1 - i, k - 1) for i in range(count)]) / comb(count, k)
    return float(share @ np.sort(label) / label.min() - 1)


def measure(root: Path, files: Sequence[Path], kernel: Path, seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """Return the metrics of one kernel, one value per seed."""
    config = settings(root, kernel.stem, seeds[0], quick)
    leave_one_out(files, kernel, Path(config.paths.raw))
    features = Path(config.paths.features) / COLLECTION.path
    featurize_collection(Path(config.paths.raw), COLLECTION, config.featurize, features)
    graph = FeatureStore(features).open("test", kernel.stem)
    figures: dict[str, Any] = {"configurations": len(graph.row_of), "distinct": graph.distinct, "seeds": {}}
    figures |= {f"random_slowdown_{k}": random_slowdown(graph.label, k) for k in (1, 5)}
    if graph.distinct == 1:
        return figures
    for seed in seeds:
        config = settings(root, kernel.stem, seed, quick)
        model = Path(config.paths.models) / str(seed)
        train(config, model)
        found = evaluate(config, model, Path(config.paths.reports) / str(seed))
        figures["seeds"][seed] = {name: found[f"test/{name}"] for name in METRICS}
    return figures | {name: float(np.mean([one[name] for one in figures["seeds"].values()])) for name in METRICS}


def _means(kernels: Sequence[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    names = (*METRICS, "random_slowdown_1", "random_slowdown_5")
    taus = [float(np.mean([one["seeds"][seed]["kendall_tau"] for one in kernels])) for seed in seeds]
    means = {name: round(float(np.mean([one[name] for one in kernels])), 4) for name in names}
    return {"kernels": len(kernels), **means, "kendall_tau_by_seed": [round(tau, 4) for tau in taus]}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="four kernels, one seed, a short training")
    parser.add_json()
    arguments = parser.parse_args()
    logging.getLogger("hlorank").setLevel(logging.ERROR)  # each training warns that it has no valid split
    record = shared_dir() / "data" / "official" / "op_tuning_data.pb"
    if not record.is_file():
        parser.exit(0, f"skipped: {record} is not there\n")
    start = time.perf_counter()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "pb").mkdir()
        (root / "pb" / "alexnet_train_batch_32.pb").symlink_to(record.resolve())
        hlo.fetch(
            COLLECTION,
            hlo.HloConfig(root=str(root / "pb"), split="train", dump="before_optimizations", extra=False),
            root / "all" / COLLECTION.path,
        )
        files = graph_files(root / "all", COLLECTION, "train")
        seeds = (0,) if arguments.quick else (0, 1, 2)
        print(f"{'kernel':18} configs distinct      tau  slowdown@1 (random)  slowdown@5 (random)")
        for kernel in files[:4] if arguments.quick else files:
            name = kernel.stem.rpartition("_")[2]
            one = results[name] = measure(root, files, kernel, seeds, arguments.quick)
            counts = f"{name:18} {one['configurations']:7} {one['distinct']:8}"
            ranked = [
                f"{one[f'slowdown_{k}']:11.3f} {one[f'random_slowdown_{k}']:8.3f}" for k in (1, 5) if one["seeds"]
            ]
            tau = f"{one['kendall_tau']:8.3f}" if one["seeds"] else "not rankable"
            print(counts, tau, *ranked, flush=True)

    rankable = [one for one in results.values() if one["seeds"]]
    groups = {
        "all rankable": rankable,
        "more than 5 configurations": [one for one in rankable if one["configurations"] > 5],
    }
    means = {name: _means(group, seeds) for name, group in groups.items()}
    for name, mean in means.items():
        print(f"{name}:", ", ".join(f"{key} {value}" for key, value in mean.items()))
    print(f"{time.perf_counter() - start:.0f} s")
    if arguments.json:
        write_json(arguments.json, {"kernels": results, "means": means})


if __name__ == "__main__":
    run(main)
