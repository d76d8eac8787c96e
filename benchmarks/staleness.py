"""What lowers the staleness of the embedding table, or its harm, at equal cost: next to gst_e as it is.

The first remedy is the product's: more than one segment with gradient. Each other one is a setting of a test double of
the aggregation, or of the sampling of segments. They are measured on two workloads of methods.py: generated graphs of
about 50 segments, and measured ones, in half the time. Weights and gradients stay unbiased: a sampled segment's
gradient is divided by the probability of drawing it where that is not the same for all.

A finished training is written to <results>/<workload>.json and not repeated. A seed of a workload takes half an hour of
CPU time, the quick form minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import methods  # type: ignore[import-not-found] # same folder
import numpy as np
import torch
from command_line import Parser, run  # type: ignore[import-not-found] # same folder
from curves import interval  # type: ignore[import-not-found] # same folder
from methods import Make, measure_variants  # same folder
from numpy.typing import NDArray
from torch import Tensor

from hlorank.config import Config
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_loader import GraphLoader
from hlorank.training.gst.aggregator import SegmentAggregator
from hlorank.training.gst.embedding_table import EmbeddingTable, entry_keys
from hlorank.training.losses import make_loss
from hlorank.training.methods import METHODS
from hlorank.training.ranking_module import RankingModule
from hlorank.training.sampling import Stream, generator
from hlorank.training.step_data import StepData
from hlorank.training.step_memory import bytes_per_row
from hlorank.training.step_plans import PlannedStep, Step, StepPlanner

WORKLOADS = ("synthetic-default-50", "models")
RESULTS = Path(__file__).parent / "results" / "staleness"


@dataclass(frozen=True)
class Remedy:
    """Changes of gst_e.

    Attributes:
        refreshed: the stalest entries of this many segments are computed anew in each step, without gradient.
        momentum: an entry that is written again keeps this share of what it was.
        keep: the keep probability at the start and at the end of training, in between linear.
        sampling: how the segment with gradient is drawn: uniformly; each once before one comes twice; by its
            configurable nodes; by the norm of its last gradient; by the time since it was drawn.
        scaled: the gradient of the sampled segment is divided by the probability of drawing it.
    """

    refreshed: int = 0
    momentum: float = 0.0
    keep: tuple[float, float] = (1.0, 1.0)
    sampling: Literal["uniform", "cyclic", "configurable", "gradient", "staleness"] = "uniform"
    scaled: bool = False


REMEDIES = {
    "none": Remedy(),
    "3 segments refreshed": Remedy(refreshed=3),
    "momentum 0.5": Remedy(momentum=0.5),
    "keep probability 0.5": Remedy(keep=(0.5, 0.5)),
    "keep probability 0.5 to 1": Remedy(keep=(0.5, 1.0)),
    "sampled in turn": Remedy(sampling="cyclic"),
    "scaled gradient": Remedy(scaled=True),
    "sampled by configurable nodes": Remedy(sampling="configurable", scaled=True),
    "sampled by gradient norm": Remedy(sampling="gradient", scaled=True),
    "sampled by staleness": Remedy(sampling="staleness", scaled=True),
}


class RemedyData(StepData):
    """Steps of one sampled segment, drawn by a remedy."""

    remedy: Remedy
    importance: dict[int, NDArray[np.float64]]

    def inclusion(self, number: int) -> NDArray[np.float64]:
        """Return the probability of drawing each segment of a training graph, (J,)."""
        segments = self.train_graph(number).segments
        if self.remedy.sampling == "configurable":
            size = np.array([1.0 + len(segment.config_columns) for segment in segments])
        else:
            size = self.importance.get(number, np.ones(len(segments)))
            size = size / size.mean() + 0.5 if self.remedy.sampling in ("gradient", "staleness") else np.ones(len(size))
        probability: NDArray[np.float64] = size / size.sum()
        return probability

    def step(self, epoch: int, index: int) -> Step:
        """Draw a step."""
        step = super().step(epoch, index)
        count = len(step.draws)
        rng = generator(self.seed, Stream.STEP, epoch, index, 1)
        if self.remedy.sampling == "cyclic":
            turn, place = divmod((epoch * self.graphs_per_epoch + index) // len(self.train), count)
            order = generator(self.seed, Stream.STEP, step.number, turn, 2).permutation(count)
            return step._replace(with_gradient=order[place : place + 1])
        return step._replace(with_gradient=rng.choice(count, size=1, p=self.inclusion(step.number)))


class RemedyAggregator(SegmentAggregator):
    """Aggregation of gst_e with a remedy, whose missing entries are computed.

    Args:
        model: the cost model.
        data: the steps.

    Attributes:
        progress: returns the finished share of the training; set by its maker.
    """

    progress: Callable[[], float]

    def __init__(self, model: CostModel, data: RemedyData) -> None:
        self.kept = EmbeddingTable(model.embedding_width, 2**30, "float32")
        super().__init__(model, METHODS["gst_e"], 1.0, self.kept, data.missing_plans)
        self.data, self.remedy = data, data.remedy

    def __call__(self, step: PlannedStep, now: int) -> Tensor:
        """Compute the weighted sum over segments, and write the table."""
        count, configurations = step.local.shape
        keys: NDArray[np.int64] = entry_keys(step.number, np.arange(count)[:, None], step.local)
        (sampled,) = step.with_gradient.tolist()
        inclusion = self.data.inclusion(step.number)[sampled] if count > 1 else 1.0
        first, last = self.remedy.keep
        keep = first + (last - first) * self.progress()
        present = np.stack([self.kept.look_up(row.tolist()) for row in keys])
        self.cost.looked_up += present.size
        self.cost.found += int(present.sum())
        used = [j for j in range(count) if j != sampled and step.draws[j] < keep]
        for j in used:
            if not present[j].all():
                self._compute(step, keys, j, ~present[j], now)
        ages = {j: now - self.kept.read(keys[j].tolist())[1].mean() for j in used}
        for j in sorted(ages, key=lambda j: -ages[j])[: self.remedy.refreshed]:
            self._compute(step, keys, j, np.ones(configurations, dtype=np.bool_), now)

        total = torch.zeros(configurations, self.model.embedding_width)
        for j in used:
            values, written = self.kept.read(keys[j].tolist())
            total += values
            self.cost.used += configurations
            self.cost.staleness += int((now - written).sum())
        (part,) = step.sampled
        own = self._embed(part, step).squeeze(0)
        self._write(keys[sampled], own.detach(), now)
        self.cost.peak_rows = max(self.cost.peak_rows, step.rows_with_gradient)
        self._weigh(step.number, sampled, count, own)
        if self.remedy.scaled:
            own = own / inclusion - (1 / inclusion - 1) * own.detach()
        return total + (keep + (1 - keep) / inclusion) * own

    def _weigh(self, number: int, sampled: int, count: int, own: Tensor) -> None:
        """Update what the next samples of the graph are drawn by."""
        sizes = self.data.importance.setdefault(number, np.ones(count))
        if self.remedy.sampling == "staleness":
            sizes += 1
            sizes[sampled] = 0
        if self.remedy.sampling == "gradient" and own.requires_grad:

            def keep(gradient: Tensor) -> None:
                sizes[sampled] = 0.7 * sizes[sampled] + 0.3e3 * float(gradient.norm())

            own.register_hook(keep)  # type: ignore[no-untyped-call] # PyTorch's is not typed

    def _compute(self, step: PlannedStep, keys: NDArray[np.int64], j: int, some: NDArray[np.bool_], now: int) -> None:
        """Compute entries of a segment without gradient."""
        unique, first = np.unique(keys[j][some], return_index=True)
        (part,) = self.data.missing_plans(step.number, {j: step.rows[some][first]})
        with torch.no_grad():
            self._write(unique, self._embed(part, step).squeeze(0), now)

    def _write(self, keys: NDArray[np.int64], embedding: Tensor, now: int) -> None:
        unique, first = np.unique(keys, return_index=True)
        values = embedding[torch.from_numpy(first)].clone()
        there = self.kept.look_up(unique.tolist())
        if self.remedy.momentum and there.any():
            at = torch.from_numpy(np.flatnonzero(there))
            old, _ = self.kept.read(unique[there].tolist())
            values[at] = self.remedy.momentum * old + (1 - self.remedy.momentum) * values[at]
        self.kept.write(unique.tolist(), values, now)


def maker(remedy: Remedy) -> Make:
    """Return what makes trainings with a remedy."""

    def make(config: Config, graphs: GraphLoader, model: CostModel) -> tuple[StepData, RankingModule]:
        planner = StepPlanner.of(model, METHODS["gst_e"])
        data = RemedyData(graphs, planner, config.trainer, config.segments, config.seed)
        data.remedy, data.importance = remedy, {}
        per_row = bytes_per_row(model, data.planned_step((0, 0)))
        aggregator, memory = RemedyAggregator(model, data), config.evaluate.memory_bytes
        module = RankingModule(aggregator, make_loss(config.loss), config.trainer, config.seed, memory, per_row)
        aggregator.progress = module.progress
        return data, module

    return make


def sampler(count: int) -> Make:
    """Return what makes trainings with some segments that have gradient."""

    def make(config: Config, graphs: GraphLoader, model: CostModel) -> tuple[StepData, RankingModule]:
        segments = config.segments.model_copy(update={"sampled": count})
        made: tuple[StepData, RankingModule] = methods.make(
            config.model_copy(update={"segments": segments}), graphs, model
        )
        return made

    return make


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="small graphs, narrow model, 3 seconds")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="(default: 3; of the quick form 1)")
    parser.add_argument(
        "--workload", choices=WORKLOADS, action="append", metavar="NAME",
        help=f"only this one (default: {', '.join(WORKLOADS)})",
    )  # fmt: skip
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER",
        help="finished trainings (default: benchmarks/results/staleness; of the quick form, none are kept)",
    )  # fmt: skip
    arguments = parser.parse_args()
    folder = arguments.results or (None if arguments.quick else RESULTS)
    makes = {f"{count} segments with gradient": sampler(count) for count in (5, 10, 20)}
    makes |= {name: maker(remedy) for name, remedy in REMEDIES.items()}
    titles = ["remedy", "seeds", "valid tau", "test tau", "train tau", "staleness, steps", "CPU s"]
    for workload in arguments.workload or WORKLOADS:
        file = None if folder is None else folder / f"{workload}.json"
        runs = measure_variants(workload, "remedy", makes, arguments.seeds, file, quick=arguments.quick)
        print(f"\n{workload}:\n\n| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
        for name in makes:
            if some := [one for one in runs if one["remedy"] == name]:
                taus = []
                for key in ("valid_tau", "test_tau", "train_tau"):
                    values = [one[key] for one in some]
                    half = interval(values)
                    taus.append(f"{mean(values):.3f}" + ("" if half is None else f" ± {half:.3f}"))
                staleness, seconds = (mean(one[key] for one in some) for key in ("staleness_steps", "cpu_seconds"))
                print(f"| {name} | {len(some)} | {' | '.join(taus)} | {staleness:.0f} | {seconds:.0f} |")


if __name__ == "__main__":
    run(main)
