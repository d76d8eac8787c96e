"""What the arrangement of the authors' public code for TpuGraphs costs, next to gst_e.

Their table keeps the score of each segment in place of its embedding, starts with zeros, and is read and written, for
all graphs of a batch, at the configurations that were drawn for the last one. Here each of the three is a setting of a
test double, on a workload of methods.py, with a linear head and the sum over segments, for which a sum of
scores is a score of the sum. Batches have four graphs.

A finished training is written to benchmarks/results/authors.json and not repeated. All of it takes about half an hour
of CPU time, the quick form minutes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import mean

os.environ.setdefault("OMP_NUM_THREADS", "1")

import methods  # type: ignore[import-not-found] # same folder
import numpy as np
import torch
from command_line import Parser, output_file, run  # type: ignore[import-not-found] # same folder
from methods import Make
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
from hlorank.training.step_data import StepData
from hlorank.training.step_plans import PlannedStep, StepPlanner

RESULTS = Path(__file__).parent / "results" / "authors.json"
BATCH = 4


@dataclass(frozen=True)
class Arrangement:
    """What of the authors' arrangement is taken.

    Attributes:
        scores: the table keeps the score of a segment, not its embedding.
        zeros: an entry that was never written is a zero.
        last_graph: entries of all graphs of a batch are those of the last one's configurations.
    """

    scores: bool = False
    zeros: bool = False
    last_graph: bool = False


ARRANGEMENTS = {
    "gst_e": None,
    "zeros at the start": Arrangement(zeros=True),
    "scores, zeros at the start": Arrangement(scores=True, zeros=True),
    "entries of the last graph, zeros at the start": Arrangement(zeros=True, last_graph=True),
    "all three": Arrangement(scores=True, zeros=True, last_graph=True),
}


class AuthorsAggregator(SegmentAggregator):
    """Aggregation with the table of the authors' code, for a linear head and the sum over segments.

    Args:
        model: the cost model.
        arrangement: what is taken of the code.
        data: the steps, of which a batch's last one decides about its entries.
    """

    def __init__(self, model: CostModel, arrangement: Arrangement, data: StepData) -> None:
        width = 1 if arrangement.scores else model.embedding_width
        self.kept = EmbeddingTable(width, 2**30, "float32")
        super().__init__(model, METHODS["gst_e"], 1.0, self.kept)
        self.arrangement = arrangement
        self.data = data

    def scores(self, step: PlannedStep, now: int) -> Tensor:
        """Compute scores of a step's configurations, (configurations,), and write the table."""
        graph, rows = self.data.train_graph(step.number), step.rows
        if self.arrangement.last_graph:
            epoch, index = divmod(now, self.data.graphs_per_epoch)
            rows = self.data.step(epoch, index - index % BATCH + BATCH - 1).rows % len(graph.partition.local_codes)
        local = np.asarray(graph.partition.local_codes[rows]).T
        keys: NDArray[np.int64] = entry_keys(step.number, np.arange(len(local))[:, None], local)
        (sampled,) = step.with_gradient.tolist()

        total = torch.zeros(len(rows), 1 if self.arrangement.scores else self.model.embedding_width)
        for j in range(len(local)):
            present = self.kept.look_up(keys[j].tolist())
            if j != sampled and present.any():
                values, _ = self.kept.read(keys[j][present].tolist())
                total[torch.from_numpy(np.flatnonzero(present))] += values
        (part,) = step.sampled
        embedding = self._embed(part, step).squeeze(0)
        own = self.model.head(embedding) if self.arrangement.scores else embedding
        unique, first = np.unique(keys[sampled], return_index=True)
        self.kept.write(unique.tolist(), own[torch.from_numpy(first)], now)
        total = total + own
        return total.squeeze(-1) if self.arrangement.scores else self.model.score(total, len(local))


class AuthorsModule(RankingModule):
    """Training by an `AuthorsAggregator`."""

    aggregator: AuthorsAggregator

    def graph_loss(self, step: PlannedStep, index: int) -> Tensor:
        """Compute the loss of one graph."""
        now = self.current_epoch * self.settings.steps_per_epoch * self.settings.graphs_per_step + index
        return self.loss(self.aggregator.scores(step, now), step.labels)


def maker(arrangement: Arrangement) -> Make:
    """Return what makes trainings by an arrangement."""

    def make(config: Config, graphs: GraphLoader, model: CostModel) -> tuple[StepData, RankingModule]:
        planner = StepPlanner.of(model, METHODS["gst_e"])
        data = StepData(graphs, planner, config.trainer, config.segments, config.seed)
        aggregator, loss = AuthorsAggregator(model, arrangement, data), make_loss(config.loss)
        return data, AuthorsModule(aggregator, loss, config.trainer, config.seed, config.evaluate.memory_bytes, 0.0)

    return make


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, small graphs, narrow model, 3 seconds")
    parser.add_argument(
        "--json", type=output_file, metavar="FILE",
        help="results (default: benchmarks/results/authors.json; of the quick form, none are kept)",
    )  # fmt: skip
    arguments = parser.parse_args()
    methods.SHARED.update({"trainer.graphs_per_step": BATCH, "model.head": "linear", "segments.aggregation": "sum"})
    methods.WORKLOADS["synthetic-default-50"].overrides["segments.sampled"] = 1
    file = arguments.json or (None if arguments.quick else RESULTS)
    makes = {name: methods.make if one is None else maker(one) for name, one in ARRANGEMENTS.items()}
    runs = methods.measure_variants("synthetic-default-50", "arrangement", makes, 3, file, quick=arguments.quick)
    print("| table | valid tau | test tau | train tau | loss, first, highest and last epoch |\n|---|---|---|---|---|")
    for name in ARRANGEMENTS:
        some = [one for one in runs if one["arrangement"] == name]
        taus = [f"{mean(one[key] for one in some):.3f}" for key in ("valid_tau", "test_tau", "train_tau")]
        losses = [[point[3] for point in one["curve"]] for one in some]
        first, highest, last = ([*map(pick, losses)] for pick in (itemgetter(0), max, itemgetter(-1)))
        shown = ", ".join(f"{mean(values):.3f}" for values in (first, highest, last))
        print(f"| {name} | {' | '.join(taus)} | {shown} |")


if __name__ == "__main__":
    run(main)
