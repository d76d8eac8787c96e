"""Time of a training step: gst_e, which reads the other segments from the table, against gst, which computes them.

Both methods take the same steps on the same synthetic graph in turn: one segment with gradient, the table of gst_e
warm (it holds every other segment), forward and backward. The paper's claim is about the dense form, where every node
of a segment is computed under every configuration; the ratio in the compressed form follows.

The run takes about three minutes, the quick form 40 seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from harness import Parser, composed, run

from hlorank.config import Config, FeaturizeConfig, ModelConfig, PartitionConfig
from hlorank.data.collection import Collection
from hlorank.data.configurations import MeasuredGraph
from hlorank.featurize.featurize_graph import featurize_graph
from hlorank.featurize.fit_spec import TrainSample, fit_spec
from hlorank.fetch.synthetic import layout_graph
from hlorank.files import write_json
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.serialization import input_sizes
from hlorank.partition.partitioners import partition_graph
from hlorank.partition.segments import whole_graph
from hlorank.training.gst.aggregator import Aggregator, StepCost
from hlorank.training.losses import pairwise_hinge
from hlorank.training.methods import METHODS
from hlorank.training.step_plans import PlannedStep, Step, StepPlanner, bytes_per_state

MAX_NODES, MARGIN = 1000, 0.1
OVERRIDES = (
    *("featurize.log_range=20", "featurize.prune_hops=null", "featurize.derived=[]", "model.opcode_init=false"),
    *("segments.missing=reweight", "segments.configs_per_graph=null", "segments.redraw_epochs=1"),
)
CONFIG: Config = composed("layout/synthetic/random", OVERRIDES, 0, Path())
FORMS = {"dense form": False, "compressed": True}


def synthetic(nodes: int, configurations: int, configurable: int | None = None) -> MeasuredGraph:
    """A graph with configurations of random search, the same whenever it is drawn."""
    return layout_graph(np.random.default_rng(nodes), nodes, configurable, configurations, "random", 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Workload:
    """One graph, cut into segments and whole, and a cost model for it."""

    graph: GraphInputs
    whole: GraphInputs
    model: CostModel

    @classmethod
    def of(cls, measured: MeasuredGraph, width: int, device: str = "cpu") -> Workload:
        """Featurize the graph, with all of its nodes, and cuts it; GraphSAGE."""
        return cls.made(measured, CONFIG.featurize, CONFIG.model.model_copy(update={"width": width}), device)

    @classmethod
    def made(cls, measured: MeasuredGraph, options: FeaturizeConfig, config: ModelConfig, device: str) -> Workload:
        """Featurize the graph, with statistics of its own, and cuts it."""
        collection = Collection.parse("layout/synthetic/random")
        spec = fit_spec(collection, options, [TrainSample.of("benchmark", measured, options)])
        features = featurize_graph(measured, spec)
        torch.manual_seed(0)
        place = torch.device(device)
        cut = partition_graph(features, PartitionConfig(algorithm="topological", max_nodes=MAX_NODES))
        return cls(
            GraphInputs(features, cut),
            GraphInputs(features, whole_graph(features)),
            CostModel(config, input_sizes(spec), "sum").to(place),
        )

    def choose_form(self, fast: bool) -> None:
        """Turn compression and deduplication on, or both off."""
        self.model.recipe = replace(self.model.recipe, compress=fast)


class Training:
    """Training steps of one method on one graph.

    Args:
        workload: the graph and the model.
        method: its name.
        configurations: in each step.
        memory_bytes: as `trainer.memory_bytes`; None for no bound.
    """

    def __init__(self, workload: Workload, method: str, configurations: int, memory_bytes: int | None = None) -> None:
        specification, self.model = METHODS[method], workload.model
        self.graph = workload.whole if specification.whole_graph else workload.graph
        self.combine = Aggregator(self.model, specification, CONFIG.segments)
        self._parameters = [*self.model.parameters()]  # as an optimizer has them
        self._planner = StepPlanner.of(self.model, specification)
        rows, labels = self.graph.targets
        self.rows, self.labels = rows[:configurations], labels[:configurations]
        if memory_bytes is not None:
            per_state = bytes_per_state(self.model, self.plan(0))
            self._planner = replace(self._planner, max_states=int(memory_bytes / per_state))
        if self.combine.table is not None:
            with torch.no_grad():
                self.aggregate(self.plan(*range(len(self.graph.segments))), 0)
            self.combine.cost = StepCost()

    def planned(self, *with_gradient: int) -> PlannedStep:
        """Plan the step in which some segments have a gradient, on the CPU."""
        rng = np.random.default_rng(0)
        draws = rng.random(len(self.graph.segments))
        step = Step(self.graph, 0, self.rows, self.labels, np.array(with_gradient), draws)
        return self._planner(step, rng)

    def plan(self, *with_gradient: int) -> PlannedStep:
        """Plan such a step, on the model's device."""
        return self.planned(*with_gradient).to(self.model.device)

    def aggregate(self, step: PlannedStep, now: int) -> torch.Tensor:
        """Return the embedding of the graph for the planned configurations."""
        return self.combine(step, lambda *_: [], now)  # the table lacks nothing

    def clear_gradients(self) -> None:
        """Free the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def run(self, step: PlannedStep) -> None:
        """Forward and backward."""
        self.clear_gradients()
        scores = self.model.score(self.aggregate(step, 1), len(self.graph.segments))
        torch.autograd.backward(pairwise_hinge(scores, step.labels, MARGIN))

    def __call__(self, segment: int) -> None:
        """Plan and run a step with the gradient of one segment."""
        self.run(self.plan(segment))


def spread(segments: int, count: int) -> list[int]:
    """Up to `count` segments, evenly over the graph."""
    return sorted({i * segments // count for i in range(count)})


def interleaved(
    functions: Mapping[str, Callable[[int], object]], calls: Sequence[int], repeats: int, device: str = "cpu"
) -> dict[str, float]:
    """Median seconds of each function, called in turn; what a repeat takes is the mean over the calls.

    On the CPU these are seconds of CPU time, which other processes on the machine hardly change.

    Args:
        functions: take one of the calls.
        calls: what the functions are called with in each repeat.
        repeats: after one round that is not counted.
        device: cpu or cuda.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            start = _clock(device)
            for call in calls:
                function(call)
            times[name].append((_clock(device) - start) / len(calls))
    return {name: median(values[1:]) for name, values in times.items()}


def _clock(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a narrow model")
    parser.add_json()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    width, configurations, repeats = 16 if arguments.quick else 64, 8, 3 if arguments.quick else 5
    results: dict[str, Any] = {"width": width, "configurations": configurations, "repeats": repeats, "ratios": []}
    for segments in (10, 50):
        workload = Workload.of(synthetic(segments * MAX_NODES, configurations), width, arguments.device)
        for form, fast in FORMS.items():
            workload.choose_form(fast)
            methods = {name: Training(workload, name, configurations) for name in ("gst", "gst_e")}
            taken = interleaved(methods, spread(segments, 5), repeats, arguments.device)
            cost = methods["gst_e"].combine.cost
            assert cost.found == cost.looked_up
            ratio = taken["gst"] / taken["gst_e"]
            results["ratios"].append({"segments": segments, "form": form, "seconds": taken, "ratio": ratio})
            print(
                f"J = {segments}, {form}: gst {taken['gst']:.3f} s, gst_e {taken['gst_e']:.3f} s a step: {ratio:.1f}x",
                flush=True,
            )
    if arguments.json:
        write_json(arguments.json, results)


if __name__ == "__main__":
    run(main)
