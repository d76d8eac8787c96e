"""Validation Kendall tau of the seven training methods against steps and against CPU seconds, over seeds.

Workloads: synthetic collections of 12 + 4 + 4 graphs of 2,000 to 20,000 nodes, by either search, in which a configured
layout travels along the graph until something asks for another one, once also with a halo around segments; and the
real pair, trained on unet3d and validated on unet_3d.

gst_ef and gst_efd take the very steps of gst_e and gst_ed, so these four are two trainings, whose head is finetuned
afterwards. All figures are of the last weights: nothing is chosen by validation. CPU seconds are those of training:
opening graphs, validation and testing are not in them; the embeddings that finetuning recomputes are.

A finished training is kept next to the JSON file, in methods.csv, and not repeated, so that a killed run continues.

All workloads take about 40 minutes on one core, the quick form a few minutes.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightning
import torch
from command_line import Parser, run  # type: ignore[import-not-found] # same folder
from curves import Point, Record, draw, show  # type: ignore[import-not-found] # same folder
from hydra import compose, initialize_config_dir
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import Progress

from hlorank.config import Config, load
from hlorank.data.collection import Collection
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.fetch.origins import fetch
from hlorank.files import fingerprint, shared_dir
from hlorank.metrics import kendall_tau
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_loader import GraphLoader
from hlorank.models.scoring import score_configurations
from hlorank.models.serialization import input_sizes
from hlorank.partition.partition_collection import partition_collection
from hlorank.tracking import VALID_TAU
from hlorank.training.gst.head_finetuning import HeadData, HeadModule
from hlorank.training.gst.methods import METHODS
from hlorank.training.gst.segment_aggregator import make_aggregator
from hlorank.training.losses import make_loss
from hlorank.training.ranking_module import RankingModule
from hlorank.training.step_data import Ranking, StepData
from hlorank.training.step_plans import StepPlanner

ROOT = Path(__file__).resolve().parents[1]
# Each method that is trained, and the one whose head is finetuned where it ends.
TRAININGS = {"full": None, "gst_one": None, "gst": None, "gst_e": "gst_ef", "gst_ed": "gst_efd"}
SHARED = {
    "featurize.workers": 1,
    "partition.workers": 1,
    "partition.max_nodes": 1000,
    "featurize.prune_hops": "null",
    "model.layout_sizes": False,
    "loss": "hinge",
    "trainer.accelerator": "cpu",
    "trainer.max_epochs": 20,
    "trainer.steps_per_epoch": 50,
    "trainer.graphs_per_step": 1,
    "trainer.configs_per_step": 16,
    "trainer.learning_rate": 1e-3,
    "trainer.weight_decay": 1e-4,
    "segments.redraw_epochs": 20,
    "segments.finetune_epochs": 4,
}
QUICK = {"trainer.max_epochs": 2, "trainer.steps_per_epoch": 10, "segments.finetune_epochs": 1, "model.width": 16}


@dataclass(frozen=True)
class Workload:
    """A collection, and how it is trained and validated.

    Attributes:
        collection: its path.
        overrides: of the configuration, besides SHARED.
        quick: further ones of a short run.
        graphs: those of the shared data; none for generated graphs.
        trainings: the methods that are trained.
    """

    collection: str
    overrides: dict[str, Any]
    quick: dict[str, Any]
    graphs: tuple[str, ...] = ()
    trainings: tuple[str, ...] = tuple(TRAININGS)


def _generated(search: str, halo: int = 0, trainings: tuple[str, ...] = tuple(TRAININGS)) -> Workload:
    size = {"min_nodes": 2000, "max_nodes": 20_000, "configurations": 250, "repeated": 0.2, "noise": 0.001}
    quick = {"min_nodes": 500, "max_nodes": 2000, "configurations": 50, "train": 3, "valid": 2, "test": 2}
    return Workload(
        f"layout/synthetic/{search}",
        {"experiment": "synthetic"}
        | {f"data.synthetic.{key}": value for key, value in size.items()}
        | {"segments.configs_per_graph": 64, "trainer.validation_configs": 64, "partition.halo": halo},
        {f"data.synthetic.{key}": value for key, value in quick.items()} | {"partition.max_nodes": 200},
        trainings=trainings,
    )


WORKLOADS = {
    "synthetic-default": _generated("default"),
    "unet3d-to-unet_3d": Workload(
        "layout/xla/default",
        {"data": "local", "segments.configs_per_graph": 256, "trainer.validation_configs": 500},
        {"trainer.validation_configs": 50},
        ("train/unet3d.npz", "valid/unet_3d.4x4.bf16.npz"),
    ),
    "synthetic-default-halo": _generated("default", halo=3, trainings=("gst", "gst_e")),
    "synthetic-random": _generated("random"),
}


def settings(workload: Workload, work: Path, method: str, seed: int, quick: bool) -> Config:
    """The composed configuration."""
    values = {"collection": workload.collection, "method": method, "seed": seed, **SHARED, **workload.overrides}
    values |= {f"paths.{name}": work / name for name in ("raw", "features", "segments")}
    if workload.graphs:
        values["data.local.root"] = work / "tree"
    if quick:
        values |= QUICK | workload.quick
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return load(compose("config", overrides=[f"{key}={value}" for key, value in values.items()]))


def prepare(workload: Workload, config: Config) -> str:
    """Fetch, featurizes and partitions the collection, and return its fingerprint; what is up to date stays."""
    collection, paths = Collection.parse(config.collection), config.paths
    raw, features, segments = (Path(place) / collection.path for place in (paths.raw, paths.features, paths.segments))
    if config.data.origin == "local":
        for name in workload.graphs:
            link = Path(config.data.settings["root"]) / collection.path / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to((shared_dir() / "data" / "tpugraphs" / "npz" / collection.path / name).resolve())
    fetch(collection, config.data, raw)
    featurize_collection(Path(paths.raw), collection, config.featurize, features)
    partition_collection(features, config.partition, segments)
    return FeatureStore(features).fingerprint


@dataclass
class Clock(Callback):
    """Count the CPU seconds of training steps, and keeps a point of the curve an epoch.

    Attributes:
        progress: advances by one an epoch.
        seconds: CPU seconds so far.
        curve: step, cpu_seconds, valid_tau; with a table hit_rate and staleness_steps, of the epoch.
    """

    progress: Progress
    seconds: float = 0.0
    curve: list[Point] = field(default_factory=list)
    _start: float = 0.0
    _end: float = 0.0

    def on_train_epoch_start(self, *_: Any) -> None:
        """Start the epoch's clock."""
        self._start = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        """Read the clock: validation comes after the last step."""
        self._end = time.process_time()

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Add the epoch; of the head's epochs only the time."""
        self.seconds += self._end - self._start
        if isinstance(pl_module, RankingModule):
            tau = float(trainer.callback_metrics[VALID_TAU])
            point = {"step": trainer.global_step, "cpu_seconds": self.seconds, "valid_tau": tau}
            if pl_module.aggregator.table is not None:
                cost = pl_module.aggregator.cost  # of this epoch: the module replaces it after this hook
                point["hit_rate"] = cost.found / cost.looked_up
                point["staleness_steps"] = cost.staleness / max(1, cost.used)
            self.curve.append(point)
        for task in self.progress.task_ids:
            self.progress.advance(task)


def fit(module: RankingModule | HeadModule, data: lightning.LightningDataModule, clock: Clock) -> int:
    """Train a model, or its head, as the stage train does, without checkpoints and tracking; returns the steps."""
    trainer = lightning.Trainer(
        max_epochs=module.epochs,
        accelerator="cpu",
        reload_dataloaders_every_n_epochs=1,
        gradient_clip_val=module.settings.gradient_clip,
        num_sanity_val_steps=0,
        limit_val_batches=0 if isinstance(module, HeadModule) else 1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's, on workers and loggers
        trainer.fit(module, datamodule=data)
    return trainer.global_step


def mean_tau(model: CostModel, rankings: Iterable[Ranking], memory_bytes: int) -> float | None:
    """Kendall tau, the mean over graphs; None without any."""
    taus = [
        kendall_tau(score_configurations(model, graph, rows, memory_bytes), labels) for graph, rows, labels in rankings
    ]
    return mean(taus) if taus else None


def train(config: Config, finetuned: str | None, progress: Progress) -> dict[str, tuple[dict[str, Any], list[Point]]]:
    """One training.

    Args:
        config: the whole configuration.
        finetuned: the method whose head is finetuned where this one ends.
        progress: advances by one an epoch.

    Returns:
        Figures and curve of both methods.
    """
    collection, memory = Collection.parse(config.collection), config.evaluate.memory_bytes
    segments = None if METHODS[config.method].whole_graph else Path(config.paths.segments) / collection.path
    graphs = GraphLoader(Path(config.paths.features) / collection.path, segments)
    torch.manual_seed(config.seed)
    model = CostModel(config.model, input_sizes(graphs.store.spec), config.segments.aggregation)
    planner = StepPlanner.of(model, METHODS[config.method])
    data = StepData(graphs, planner, config.trainer, config.segments, config.seed)
    trained = [data.train_graph(number) for number in range(len(data.train))]  # they stay open
    model.encoder.start_opcodes(graphs.store.spec.opcode_embedding)
    aggregator = make_aggregator(model, METHODS[config.method], config.segments, data.missing_plans)
    loss = make_loss(config.loss)
    module, clock = RankingModule(aggregator, loss, config.trainer, config.seed, memory, math.nan), Clock(progress)

    def figures(valid_tau: float) -> dict[str, Any]:
        tested = (graphs.open("test", name) for name in graphs.store.trainable("test"))
        ranked = (Ranking(graph, *data.working_set(i, 0)) for i, graph in enumerate(trained))
        return {
            "cpu_seconds": clock.seconds,
            "valid_tau": valid_tau,
            "test_tau": mean_tau(model, (Ranking(graph, *graph.targets) for graph in tested), memory),
            "train_tau": mean_tau(model, ranked, memory),
            "segments": mean(len(graph.segments) for graph in trained),
        }

    steps = fit(module, data, clock)
    curve = clock.curve
    found = {config.method: (figures(curve[-1]["valid_tau"]), curve)}
    if finetuned is not None:
        start = time.process_time()
        unvalidated = copy(data)
        unvalidated.valid = []  # so that only what is trained on is recomputed
        head = HeadData(model, unvalidated, memory)
        clock.seconds += time.process_time() - start
        steps += fit(HeadModule(model, loss, config.trainer, config.segments.finetune_epochs), head, clock)
        tau = mean_tau(model, map(data.ranking, range(len(data.valid))), memory)
        assert tau is not None
        end = {"step": steps, "cpu_seconds": clock.seconds, "valid_tau": tau}
        found[finetuned] = (figures(tau), [*curve, end])
    for figure, points in found.values():
        for name in ("hit_rate", "staleness_steps"):
            figure[name] = mean(point[name] for point in curve) if name in points[0] else None
    return found


def measure(name: str, work: Path, record: Record, quick: bool) -> None:
    """Add what is not yet measured of a workload, seed after seed."""
    workload = WORKLOADS[name]
    data = prepare(workload, settings(workload, work, "full", 0, quick))
    for seed, method in product(range(1 if quick else 3), workload.trainings):
        finetuned = TRAININGS[method]
        config = settings(workload, work, method, seed, quick)
        plain = config.model_dump(mode="json")
        identity = [plain[part] for part in ("partition", "model", "segments", "loss", "trainer")]
        key = {"workload": name, "seed": seed, "settings": fingerprint([data, *identity])}
        if all(record.holds(key | {"method": one}) for one in (method, finetuned) if one):
            continue
        epochs = config.trainer.max_epochs + (config.segments.finetune_epochs if finetuned else 0)
        with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
            progress.add_task(f"{name}, seed {seed}, {method}", total=epochs)
            found = train(config, finetuned, progress)
        for one, (figures, curve) in found.items():
            record.add(key | {"method": one}, figures, curve)
            print(
                f"{name}, seed {seed}, {one}: validation tau {figures['valid_tau']:.3f}, "
                f"{figures['cpu_seconds']:.0f} CPU s",
                flush=True,
            )


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, small graphs, narrow model, 20 steps")
    parser.add_argument(
        "--workload", choices=WORKLOADS, action="append", metavar="NAME",
        help=f"only this one; may be repeated (default: {', '.join(WORKLOADS)})",
    )  # fmt: skip
    parser.add_json("the record (default: benchmarks/results/methods.json; of the quick form, in .hlorank/benchmarks)")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="only draw what is measured, as SVG files")
    arguments = parser.parse_args()
    logging.getLogger("hlorank").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    quick = arguments.quick
    work = ROOT / ".hlorank" / "benchmarks" / ("methods_quick" if quick else "methods")
    record = Record(arguments.json or (work if quick else ROOT / "benchmarks" / "results") / "methods.json")
    if arguments.plots is not None:
        draw(record.curves_file, arguments.plots)
        return
    for name in arguments.workload or WORKLOADS:
        if WORKLOADS[name].graphs and not (shared_dir() / "data" / "tpugraphs").is_dir():
            print(f"skipped: {name}: no data/tpugraphs in {shared_dir()}")
        else:
            measure(name, work / name, record, quick)
    show(record.summary())


if __name__ == "__main__":
    run(main)
