r"""Cost of each experiment: parameters, configurations a second in training and in scoring, peak memory.

Layout experiments train on the real program unet3d and score all 1,965 configurations of unet_3d.4x4.bf16; those for
tiles train on the bundled sample and score its kernels of valid. All are measured one after the other, each in a
process of its own, in several rounds: the ratio to the reference, kaggle_1, is the median of the ratios within a
round, as the speed of a machine changes.

Training: steps of the optimizer as the experiment takes them, by its own method, graphs and configurations, in CPU
time of one thread, after the first step; one member of an ensemble. Validation is no part of it.

Scoring: all configurations as the stage evaluate scores them, repeated ones included: CPU time with one thread, and
with two the time that passes, for which the machine must be quiet.

Memory: the largest resident size of the process that trains, and of the one that scores, libraries included.

All experiments take more than an hour, the quick form a few minutes.

    python benchmarks/cost.py --json benchmarks/results/cost.json
    python benchmarks/cost.py --collection layout/xla/default \
        --experiment best_layout --rounds 5
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import experiments  # type: ignore[import-not-found] # same folder
from command_line import Parser, output_file, positive, run  # type: ignore[import-not-found] # same folder
from rows import append_row, read_rows  # type: ignore[import-not-found] # same folder

from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.files import shared_dir, write_json
from hlorank.terminal import min_int

_T = TypeVar("_T")
RESULTS = Path(__file__).parent / "results" / "cost.csv"
COLLECTIONS = ("layout/xla/default", "tile/cpu")
REFERENCE = {"layout": "kaggle_1", "tile": "kaggle_1_tile"}
SCORING_SECONDS = 2.0  # what takes less is repeated
# Only a folder to score with: what the weights of a network hold does not change what scoring costs.
LITTLE = (
    *("trainer.max_epochs=1", "trainer.steps_per_epoch=1", "trainer.graphs_per_step=1", "segments.finetune_epochs=1"),
    "trainer.validation_configs=2",
)
TRAINING, SCORING, SCORING_2 = "train_configs_per_second", "score_seconds", "score_seconds_2_threads"
COLUMNS = (
    *("collection", "experiment", "round", "fingerprint", "parameters", "configs_per_step", TRAINING, "score_configs"),
    *(SCORING, SCORING_2, "train_bytes", "score_bytes"),
)
SUMMARY = (
    *("collection", "experiment", "parameters", "configs_per_step", TRAINING, "train_ratio", "score_configs"),
    *(SCORING, SCORING_2, "score_ratio", "train_bytes", "score_bytes"),
)


def train_cost(config: Config, seconds: float) -> dict[str, Any]:
    """Train with Lightning's trainer as the stage train does, for some seconds of CPU time; keeps nothing."""
    import lightning
    import torch
    from lightning.pytorch.callbacks import Callback

    from hlorank.models.cost_model import CostModel
    from hlorank.models.graph_loader import GraphLoader
    from hlorank.models.serialization import input_sizes
    from hlorank.training.callbacks import StepAveraging
    from hlorank.training.gst.aggregator import make_aggregator
    from hlorank.training.losses import make_loss
    from hlorank.training.methods import METHODS
    from hlorank.training.mlflow_run import peak_memory_bytes
    from hlorank.training.ranking_module import RankingModule
    from hlorank.training.step_data import StepData
    from hlorank.training.step_plans import StepPlanner

    class Clock(Callback):
        """CPU time and configurations so far after each step of the optimizer; stops after `seconds`."""

        def __init__(self) -> None:
            self.marks: list[tuple[float, int]] = []
            self.configurations = 0

        def on_train_batch_end(
            self, trainer: lightning.Trainer, _module: Any, _outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            self.configurations += len(batch.labels)
            if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
                self.marks.append((time.process_time(), self.configurations))
                enough = self.marks[-1][0] - self.marks[0][0] >= seconds and len(self.marks) > 1
                trainer.should_stop = trainer.should_stop or enough

    torch.set_num_threads(1)
    collection, paths, settings = Collection.parse(config.collection), config.paths, config.trainer
    whole = METHODS[config.method].whole_graph or collection.kind == "tile"
    segments = None if whole else Path(paths.segments) / collection.path
    graphs = GraphLoader(Path(paths.features) / collection.path, segments)
    torch.manual_seed(config.seed)
    model = CostModel(config.model, input_sizes(graphs.store.spec), config.segments.aggregation)
    method = METHODS[config.method]
    data = StepData(graphs, StepPlanner.of(model, method), settings, config.segments, config.seed)
    aggregator, loss = make_aggregator(model, method, config.segments, data.missing_plans), make_loss(config.loss)
    module, clock = (
        RankingModule(aggregator, loss, settings, config.seed, config.evaluate.memory_bytes, math.nan),
        Clock(),
    )
    averaging: list[Callback] = []
    if settings.averaging != "none":
        averaging.append(
            StepAveraging(settings.averaging, settings.averaging_decay, module.progress, torch.device("cpu"))
        )
    trainer = lightning.Trainer(
        max_epochs=settings.max_epochs,
        accelerator="cpu",
        accumulate_grad_batches=settings.graphs_per_step,
        reload_dataloaders_every_n_epochs=1,
        gradient_clip_val=settings.gradient_clip,
        limit_val_batches=0,
        callbacks=[*averaging, clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=data)
    (start, before), (end, after) = clock.marks[0], clock.marks[-1]
    return {
        TRAINING: (after - before) / (end - start),
        "configs_per_step": round((after - before) / (len(clock.marks) - 1)),
        "train_bytes": peak_memory_bytes(),
    }


def score_cost(config: Config, folder: Path) -> dict[str, Any]:
    """Score all configurations of valid, with one thread and with two."""
    import torch

    from hlorank.models.graph_loader import GraphLoader
    from hlorank.models.scorer import load_scorer
    from hlorank.training.mlflow_run import peak_memory_bytes

    collection, paths = Collection.parse(config.collection), config.paths
    scorer = load_scorer(folder, config.evaluate.memory_bytes)
    segments = None if scorer.cut is None else Path(paths.segments) / collection.path
    graphs = GraphLoader(Path(paths.features) / collection.path, segments)
    names = graphs.store.graphs("valid")

    def timed(threads: int, clock: Callable[[], float]) -> float:
        torch.set_num_threads(threads)
        taken: list[float] = []
        while sum(taken) < SCORING_SECONDS:
            start = clock()
            for name in names:
                scorer.score(graphs.store.open("valid", name), graphs.cut("valid", name))
            taken.append(clock() - start)
        return median(taken)

    return {
        SCORING: timed(1, time.process_time),
        SCORING_2: timed(2, time.perf_counter),
        "score_configs": sum(graphs.store.entries("valid")[name].configurations for name in names),
        "score_bytes": peak_memory_bytes(),
    }


def _quiet() -> None:
    logging.disable(logging.INFO)
    warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")  # Lightning 2.6 with PyTorch 2.13


def alone(function: Callable[..., _T], *arguments: Any) -> _T:
    """The result of a function that runs in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_quiet) as pool:
        return pool.submit(function, *arguments).result()


def measure(collection: str, names: Sequence[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each experiment on one collection."""
    from hlorank.models.baselines.baseline import BASELINES

    work = arguments.work.resolve()
    tracking = (f"tracking.uri=sqlite:///{work}/mlflow.db", f"tracking.artifacts={work}/artifacts")
    rounds: dict[str, dict[int, dict[str, Any]]] = {}
    missing = []
    for name in names:
        overrides = (*experiments.overrides_of(name, experiments.CPU_SECONDS), *tracking)
        place = work / experiments.data_key(experiments.composed(collection, overrides, 0, work))
        config, folder = experiments.composed(collection, overrides, 0, place), place / "models" / name
        experiments.fetch(config)
        key = experiments.training_key(config, experiments.featurize(config))
        known = [row for row in read_rows(arguments.results) if row["fingerprint"] == key]
        rounds[name] = {int(row["round"]): _numbers(row) for row in known}
        if set(range(arguments.rounds)) <= set(rounds[name]):
            continue
        fitted = (
            config if config.method in BASELINES else experiments.composed(collection, (*overrides, *LITTLE), 0, place)
        )
        parameters = alone(experiments.train_model, fitted, folder).parameters
        start = {"collection": collection, "experiment": name, "fingerprint": key, "parameters": parameters}
        missing.append((start, config, folder))
    for number in range(arguments.rounds):
        for start, config, folder in missing:
            name = start["experiment"]
            if number in rounds[name]:
                continue
            row = start | {"round": number}
            if config.method not in BASELINES:
                row |= alone(train_cost, config, arguments.seconds)
            row |= alone(score_cost, config, folder)
            append_row(arguments.results, COLUMNS, row)
            rounds[name][number] = row
            print(f"[{number + 1}/{arguments.rounds}] {collection} {name}: {row}", file=sys.stderr, flush=True)
    return summary(collection, {name: [found[n] for n in range(arguments.rounds)] for name, found in rounds.items()})


def _numbers(row: Mapping[str, str]) -> dict[str, Any]:
    """A row of the file without what is no number, or is not there."""
    first = COLUMNS.index("parameters")
    return {column: json.loads(row[column]) for column in COLUMNS[first:] if row[column]}


def summary(collection: str, rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each experiment: medians over its rounds, and of the ratios to the reference within each."""
    reference = rounds[REFERENCE[Collection.parse(collection).kind]]
    rows = []
    for name, found in rounds.items():
        row: dict[str, Any] = {"collection": collection, "experiment": name}
        row |= {column: median(one[column] for one in found) for column in SUMMARY[2:] if column in found[0]}
        both = list(zip(found, reference, strict=True))
        row["score_ratio"] = median(other[SCORING] / own[SCORING] for own, other in both)
        if TRAINING in row:
            row["train_ratio"] = median(own[TRAINING] / other[TRAINING] for own, other in both)
        rows.append(row)
    return rows


def show(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [f"| {' | '.join(SUMMARY)} |", "|---" * len(SUMMARY) + "|"]
    for row in rows:
        cells = (row.get(column, "") for column in SUMMARY)
        lines.append(f"| {' | '.join(f'{c:,.4g}' if isinstance(c, float) else str(c) for c in cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--collection", nargs="+", default=COLLECTIONS, choices=COLLECTIONS, metavar="PATH",
        help=f"{' or '.join(COLLECTIONS)} (default: both)",
    )  # fmt: skip
    parser.add_argument(
        "--experiment", nargs="+", choices=experiments.NAMES, metavar="NAME", help=experiments.NAMES_HELP
    )
    parser.add_argument("--rounds", type=min_int(1), default=3, metavar="N", help="(default: 3)")
    parser.add_argument(
        "--seconds", type=positive, default=10.0, metavar="S", help="CPU time of training in each round (default: 10)"
    )
    parser.add_argument(
        "--work", type=Path, default=experiments.ROOT / ".hlorank" / "cost", metavar="FOLDER",
        help="features and models (default: .hlorank/cost)",
    )  # fmt: skip
    parser.add_argument(
        "--results",
        type=output_file,
        default=RESULTS,
        metavar="CSV",
        help="rows (default: benchmarks/results/cost.csv)",
    )
    parser.add_json()
    parser.add_argument("--quick", action="store_true", help="tiles only, one short round, results kept in --work")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.quick:
        arguments.collection, arguments.results = ["tile/cpu"], arguments.work / "quick.csv"
        arguments.experiment, arguments.rounds, arguments.seconds = ["best_tile"], 1, 1.0
        arguments.results.unlink(missing_ok=True)
    rows = []
    for collection, names in experiments.fitting(arguments.collection, arguments.experiment).items():
        if not names:
            continue
        if collection.startswith("layout") and not (shared_dir() / "data/tpugraphs").is_dir():
            print(f"skipped {collection}: there is no {shared_dir() / 'data/tpugraphs'}")
            continue
        kind = Collection.parse(collection).kind
        wanted = {REFERENCE[kind], *names}
        rows += measure(collection, [name for name in experiments.EXPERIMENTS[kind] if name in wanted], arguments)
    print(show(rows))
    if arguments.json:
        write_json(arguments.json, {"rounds": arguments.rounds, "rows": rows})


if __name__ == "__main__":
    run(main)
