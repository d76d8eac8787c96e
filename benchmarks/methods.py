"""The seven training methods, trained to convergence: Kendall tau against steps and against CPU seconds, over seeds.

Workloads: generated collections of 12 + 12 + 12 graphs of 2,000 to 20,000 nodes, by either search, in segments of 1,000
nodes (11 a graph, 2 of them with gradient) and of 220 (about 50, 10 with gradient), in which a configured layout
travels along the graph until something asks for another one; the measured collection of models, graphs of 500 to 20,000
nodes; and the real pair, trained on unet3d and validated on unet_3d.

A step of one method takes up to twenty times as long as that of another. So all train for the same CPU seconds, a
number for each workload, gst_e also with half as many segments that have gradient. The generated graphs of many
segments and the models have five seeds, gst_ed and gst_one three, and there full, gst and gst_e train for 10,000 steps
too; the other workloads have three seeds. The forms that weigh missing entries are trained once. Every method has the
learning rate, of three, with which its validation is best after a quarter of the seconds, for a seed of its own. The
weights of the best validation are tested, once. gst_ef and gst_efd take the very steps of gst_e and gst_ed, and then
the head is finetuned. CPU seconds are those of steps: opening graphs, validation and testing are not in them; the
embeddings that finetuning recomputes are.

A finished training is written to <results>/<workload>.json and not repeated, so that a killed run continues; two
processes can measure two workloads. All of it takes about nine hours of CPU time, the quick form minutes.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightning
import torch
from cpu_budget import CpuBudget  # type: ignore[import-not-found] # same folder
from curves import LABELS, Record, draw, table  # type: ignore[import-not-found] # same folder
from harness import Parser, run  # type: ignore[import-not-found] # same folder
from hydra import compose, initialize_config_dir
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import Progress

from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.featurize.feature_store import FeatureStore
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.fetch.origins import fetch
from hlorank.files import fingerprint, shared_dir
from hlorank.metrics import VALID_TAU, kendall_tau
from hlorank.models.cost_model import CostModel
from hlorank.models.scoring import score_configurations
from hlorank.partition.segment_store import partition_collection
from hlorank.stages.command import load_composed
from hlorank.training import prepare as preparation
from hlorank.training.fit import build
from hlorank.training.gst.aggregator import Aggregator
from hlorank.training.gst.head_finetuning import HeadData, HeadModule
from hlorank.training.methods import METHODS
from hlorank.training.process_group import ALONE
from hlorank.training.ranking_module import RankingModule
from hlorank.training.step_data import Ranking

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "methods"
RATES = (1e-3, 3e-4, 3e-3)
TUNING_SEED, SEEDS, FEW = 100, 5, 3
STEPS, EPOCH, SHORT_EPOCH = 10_000, 1000, 250
"""Steps of a long training, and between two validations: where a step takes milliseconds, and of full and gst."""
SHARED = {
    "partition.max_nodes": 1000,
    "featurize.prune_hops": "null",
    "model.layout_sizes": False,
    "model.layout_moves": False,
    "loss": "hinge",
    "trainer.accelerator": "cpu",
    "trainer.graphs_per_step": 1,
    "trainer.configs_per_step": 16,
    "trainer.weight_decay": 1e-4,
    "segments.redraw_epochs": 10**6,
    "segments.finetune_epochs": 4,
}
QUICK = {"model.width": 16, "segments.finetune_epochs": 1, "trainer.steps_per_epoch": 30}
QUICK_SECONDS = 3.0


HALF, REWEIGHT, LONG = "half sampled", "reweight", "long"


class Row(NamedTuple):
    """A method as it is trained.

    Attributes:
        method: its name.
        finetuned: the method whose head is finetuned where this one ends.
        variant: what is changed: half as many segments with gradient, missing entries that are weighed, or 10,000
            steps; empty for nothing.
        seeds: how many trainings there are.
    """

    method: str
    finetuned: str | None = None
    variant: str = ""
    seeds: int = SEEDS


ROWS = (
    Row("gst_e", "gst_ef"),
    Row("gst_ed", "gst_efd", seeds=FEW),
    Row("gst_one", seeds=FEW),
    Row("gst"),
    Row("full"),
    Row("gst_e", "gst_ef", HALF),
    Row("gst_e", "gst_ef", REWEIGHT, seeds=1),
    Row("gst_ed", "gst_efd", REWEIGHT, seeds=1),
    Row("gst_e", variant=LONG, seeds=1),
    Row("gst", variant=LONG, seeds=1),
    Row("full", variant=LONG, seeds=1),
)


@dataclass(frozen=True)
class Workload:
    """A collection, and how it is trained and validated.

    Attributes:
        collection: its path.
        overrides: of the configuration, besides SHARED.
        quick: further ones of a short run.
        seconds: CPU seconds of a training.
        graphs: those of the shared data; none for other collections.
        main: it has all seeds of a row, and the long trainings.
    """

    collection: str
    overrides: dict[str, Any]
    quick: dict[str, Any]
    seconds: int = 100
    graphs: tuple[str, ...] = ()
    main: bool = False


def _generated(search: str, max_nodes: int, sampled: int, seconds: int, *, main: bool = False) -> Workload:
    size = {
        "min_nodes": 2000, "max_nodes": 20_000, "configurations": 250, "repeated": 0.2, "noise": 0.001,
        "train": 12, "valid": 12, "test": 12,
    }  # fmt: skip
    quick = {"min_nodes": 500, "max_nodes": 2000, "configurations": 50, "train": 3, "valid": 2, "test": 2}
    return Workload(
        f"layout/synthetic/{search}",
        {"experiment": "synthetic"}
        | {f"data.synthetic.{key}": value for key, value in size.items()}
        | {"segments.configs_per_graph": 64, "trainer.validation_configs": 64, "partition.max_nodes": max_nodes}
        | {"segments.sampled": sampled},
        {f"data.synthetic.{key}": value for key, value in quick.items()} | {"partition.max_nodes": max_nodes // 5},
        seconds,
        main=main,
    )


WORKLOADS = {
    "synthetic-default-11": _generated("default", 1000, 2, 100),
    "synthetic-default-50": _generated("default", 220, 10, 200, main=True),
    "models": Workload(
        "layout/cpu/models",
        {"experiment": "models", "data.local.root": ROOT / "data" / "models"}
        | {"data.local.split_file": ROOT / "data" / "models" / "split.json"}
        | {"partition.max_nodes": 200, "segments.configs_per_graph": 64, "segments.sampled": 2},
        {"trainer.validation_configs": 20},
        main=True,
    ),
    "synthetic-random-11": _generated("random", 1000, 2, 60),
    "synthetic-random-50": _generated("random", 220, 10, 60),
    "unet3d-to-unet_3d": Workload(
        "layout/xla/default",
        {"data": "local", "segments.configs_per_graph": 256, "trainer.validation_configs": 500},
        {"trainer.validation_configs": 50},
        60,
        ("train/unet3d.npz", "valid/unet_3d.4x4.bf16.npz"),
    ),
}


def settings(workload: Workload, work: Path, row: Row, seed: int, rate: float, *, quick: bool) -> Config:
    """Compose the configuration of a training."""
    values = {"collection": workload.collection, "method": row.method, "seed": seed, **SHARED, **workload.overrides}
    values |= {f"paths.{name}": work / name for name in ("raw", "features", "segments")}
    values |= {"trainer.learning_rate": rate}
    if row.variant == REWEIGHT:
        values["segments.missing"] = "reweight"
    if row.variant == HALF:
        values["segments.sampled"] //= 2
    epoch = SHORT_EPOCH if row.method in ("full", "gst") else EPOCH
    values["trainer.max_epochs"] = STEPS // epoch if row.variant == LONG else 10**6
    values["trainer.steps_per_epoch"] = epoch
    if workload.graphs:
        values["data.local.root"] = work / "tree"
    if quick:
        values |= QUICK | workload.quick
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return load_composed(compose("config", overrides=[f"{key}={value}" for key, value in values.items()]))


def prepare(workload: Workload, config: Config) -> str:
    """Fetch, featurize and partition the collection, and return its fingerprint; what is up to date stays."""
    collection, paths = Collection.parse(config.collection), config.paths
    raw, features, segments = (Path(place) / collection.path for place in (paths.raw, paths.features, paths.segments))
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
    """Count the CPU seconds of training steps, and keep a point of the curve, and the weights of the best one.

    Attributes:
        progress: shows the seconds.
        seconds: CPU seconds so far.
        curve: step, CPU seconds, validation tau and mean loss of each epoch.
        best: the weights of the best epoch.
    """

    progress: Progress
    budget: CpuBudget | None = None
    seconds: float = 0.0
    curve: list[list[float]] = field(default_factory=list)
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    peak_states: int = 0
    hits: list[float] = field(default_factory=list)
    staleness: list[float] = field(default_factory=list)
    _start: float = 0.0
    _end: float = 0.0

    def on_train_epoch_start(self, _: Any, pl_module: lightning.LightningModule) -> None:
        """Start the epoch's clock; what validation took is no part of the training's seconds."""
        self._start = time.process_time()
        if isinstance(pl_module, RankingModule) and self._end and self.budget is not None:
            self.budget.add(self._end - self._start)

    def on_train_batch_end(self, *_: Any) -> None:
        """Read the clock: validation comes after the last step."""
        self._end = time.process_time()

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Add the epoch; of the head's epochs only the time."""
        self.seconds += self._end - self._start
        for task in self.progress.task_ids:
            self.progress.update(task, completed=self.seconds)
        if not isinstance(pl_module, RankingModule):
            return
        tau = float(trainer.callback_metrics[VALID_TAU])
        if not self.curve or tau > max(point[2] for point in self.curve):
            self.best = copy.deepcopy(pl_module.model.state_dict())
        loss = float(trainer.callback_metrics[pl_module.loss_metric])
        self.curve.append([trainer.global_step, round(self.seconds, 1), round(tau, 4), round(loss, 4)])
        cost = pl_module.aggregator.cost  # of this epoch: the module replaces it after this hook
        self.peak_states = max(self.peak_states, cost.peak_states)
        if cost.looked_up:
            self.hits.append(cost.found / cost.looked_up)
            self.staleness.append(cost.staleness / max(1, cost.used))


def fit(module: RankingModule | HeadModule, data: lightning.LightningDataModule, clock: Clock) -> None:
    """Train a model, or its head, as the stage train does, without checkpoints and tracking."""
    trainer = lightning.Trainer(
        max_epochs=module.epochs,
        accelerator="cpu",
        reload_dataloaders_every_n_epochs=1,
        accumulate_grad_batches=module.settings.graphs_per_step,
        gradient_clip_val=module.settings.gradient_clip,
        num_sanity_val_steps=0,
        limit_val_batches=0 if isinstance(module, HeadModule) else 1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock, *([clock.budget] if clock.budget is not None and isinstance(module, RankingModule) else [])],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's, on workers and loggers
        trainer.fit(module, datamodule=data)


def mean_tau(model: CostModel, rankings: Iterable[Ranking], memory_bytes: int) -> float | None:
    """Return the Kendall tau, the mean over graphs; None without any."""
    taus = [
        kendall_tau(score_configurations(model, graph, rows, memory_bytes), labels) for graph, rows, labels in rankings
    ]
    return round(mean(taus), 4) if taus else None


def train(
    config: Config, finetuned: str | None, progress: Progress, seconds: float | None, *, tested: bool = True
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of a training, and then those of the method whose head is finetuned where it ends.

    Args:
        config: the whole configuration.
        finetuned: that method, if there is one.
        progress: shows its seconds.
        seconds: bound of its CPU time; None for none.
        tested: rank the test graphs, and those of training; finetune.
    """
    setup, memory = preparation.prepare(config, ALONE), config.evaluate.memory_bytes
    graphs = setup.graphs
    model, data = build(setup, setup.members[0], ALONE)
    assert setup.memory is not None
    module = RankingModule(setup, data, Aggregator(model, METHODS[config.method], config.segments))
    bytes_per_state = setup.memory.bytes_per_state
    trained = [data.train_graph(number) for number in range(len(data.train))]  # they stay open
    clock = Clock(progress, None if seconds is None else CpuBudget(seconds))

    def figures(valid_tau: float | None) -> dict[str, Any]:
        found = {
            "cpu_seconds": round(clock.seconds, 1),
            "steps": clock.curve[-1][0],
            "valid_tau": valid_tau,
            "step_memory_bytes": round(clock.peak_states * bytes_per_state),
            "segments": round(mean(len(graph.segments) for graph in trained), 1),
            "hit_rate": round(mean(clock.hits), 3) if clock.hits else None,
            "staleness_steps": round(mean(clock.staleness)) if clock.staleness else None,
            "curve": clock.curve,
        }
        if tested:
            opened = (graphs.open("test", name) for name in graphs.store.trainable("test"))
            found["test_tau"] = mean_tau(model, (Ranking(graph, *graph.targets) for graph in opened), memory)
            ranked = (Ranking(graph, *data.working_set(i, 0)) for i, graph in enumerate(trained))
            found["train_tau"] = mean_tau(model, ranked, memory)
        return found

    fit(module, data, clock)
    model.load_state_dict(clock.best)
    yield config.method, figures(max(point[2] for point in clock.curve))
    if tested and finetuned is not None:
        start = time.process_time()
        unvalidated = copy.copy(data)
        unvalidated.valid = []  # so that only what is trained on is recomputed
        head = HeadData(model, unvalidated, memory)
        clock.seconds += time.process_time() - start
        fit(HeadModule(setup, model), head, clock)
        yield finetuned, figures(mean_tau(model, map(data.ranking, range(len(data.valid))), memory))


def measure(name: str, work: Path, record: Record, *, quick: bool) -> None:
    """Add what is not yet measured of a workload: learning rates first, then seed after seed."""
    workload = WORKLOADS[name]
    data = prepare(workload, settings(workload, work, ROWS[0], 0, RATES[0], quick=quick))

    def measured(row: Row, seed: int, rate: float, seconds: float, *, tested: bool) -> None:
        config = settings(workload, work, row, seed, rate, quick=quick)
        plain = config.model_dump(mode="json")
        identity = fingerprint([data, *(plain[part] for part in ("partition", "model", "segments", "loss", "trainer"))])
        key = {"variant": row.variant, "seed": seed, "learning_rate": rate, "settings": identity}
        names = [row.method, *([row.finetuned] if tested and row.finetuned else [])]
        if all(record.holds({"method": one, **key}) for one in names):
            return
        with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
            progress.add_task(f"{name}, seed {seed}, {row.method}", total=None if row.variant == LONG else seconds)
            bound = None if row.variant == LONG else QUICK_SECONDS if quick else seconds
            for method, figures in train(config, row.finetuned, progress, bound, tested=tested):
                record.add({"method": method, **key}, figures)
                title = ", ".join(filter(None, (name, method, row.variant, f"seed {seed}, learning rate {rate}")))
                tau, used = figures["valid_tau"], figures["cpu_seconds"]
                print(f"{title}: validation tau {tau:.3f}, {used:.0f} CPU s", flush=True)

    for row in (row for row in ROWS if not row.variant):
        for rate in RATES[: 1 if quick else None]:
            measured(row, TUNING_SEED, rate, workload.seconds / 4, tested=False)
    seeds = 1 if quick else SEEDS if workload.main else FEW
    left_out = [LONG] * (quick or not workload.main)
    left_out += [HALF] * ("segments.sampled" not in workload.overrides)  # there, one has gradient
    rows = [row for row in ROWS if row.variant not in left_out]
    for long, seed in product((False, True), range(seeds)):
        for row in rows:
            if seed < row.seeds and (row.variant == LONG) == long:
                measured(row, seed, record.best_rate(row.method, RATES[0]), workload.seconds, tested=True)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, small graphs, narrow model, 3 seconds")
    parser.add_argument(
        "--workload", choices=WORKLOADS, action="append", metavar="NAME",
        help=f"only this one; may be repeated (default: {', '.join(WORKLOADS)})",
    )  # fmt: skip
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="FOLDER",
        help="finished trainings (default: benchmarks/results/methods)",
    )  # fmt: skip
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="only draw what is measured, as SVG files")
    parser.add_argument("--tables", action="store_true", help="only print what is measured, as Markdown")
    arguments = parser.parse_args()
    logging.getLogger("hlorank").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    quick = arguments.quick
    work = ROOT / ".hlorank" / "benchmarks" / ("methods_quick" if quick else "methods")
    for name in arguments.workload or WORKLOADS:
        record = Record(arguments.results / f"{name}.json", TUNING_SEED)
        if arguments.plots is not None:
            if record.runs:
                draw(record, name, arguments.plots)
            continue
        if WORKLOADS[name].graphs and not (shared_dir() / "data" / "tpugraphs").is_dir():
            print(f"skipped: {name}: no data/tpugraphs in {shared_dir()}")
        elif not arguments.tables:
            measure(name, work / name, record, quick=quick)
        if record.runs:
            print(f"\n{name}: {LABELS}\n\n{table(record)}")


if __name__ == "__main__":
    run(main)
