"""Configurations a second, in training and in scoring, against the form that public code uses.

That form makes one torch_geometric Data object of each (segment, configuration), batches them with
Batch.from_data_list, and computes every node of every object: encoder, three SAGEConv with mean aggregation over both
edge directions, pooling. It holds the weights of the cost model here, and its scores are checked to be equal.

Training: one segment with gradient, the others from a table (gst_e, warm) or from a forward pass (gst). Last, all
50,000 configurations of a graph of 20,000 nodes are scored. Each graph has a process of its own.

The run takes about five minutes, the quick form 15 seconds.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from harness import Parser, composed, run  # type: ignore[import-not-found] # same folder
from numpy.typing import NDArray
from step_time import MARGIN, Training, Workload, interleaved, spread, synthetic  # type: ignore[import-not-found] # same folder
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, instance_norm
from torch.utils.flop_counter import FlopCounterMode
from torch_geometric.data import Batch, Data
from torch_geometric.nn import SAGEConv, global_max_pool, global_mean_pool

from hlorank.data.collection import read_graph
from hlorank.data.configurations import LAYOUT_MIN
from hlorank.files import shared_dir, write_json
from hlorank.models.compression.segment import LayoutBatch, Segment
from hlorank.models.cost_model import CostModel
from hlorank.models.graph_inputs import GraphInputs
from hlorank.models.layers.message_passing import Sage
from hlorank.models.scoring import PlanCache, plan_parts, score_configurations
from hlorank.training.losses import pairwise_hinge
from hlorank.training.step_data import ordered

TRAINED_UNET = Path("data/tpugraphs/npz/layout/xla/default/train/unet3d.npz")
UNET = Path("data/tpugraphs/npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz")
MEMORY_BYTES = 2**28
REPEATS, WALL_ROUNDS, WALL_BURST, PRODUCT = 3, 7, 5, 1024


class PublicForm(nn.Module):
    """The cost model over batches of Data objects, with the same weights."""

    def __init__(self, model: CostModel) -> None:
        super().__init__()
        self.model = model
        self.operands, self.users = nn.ModuleList(), nn.ModuleList()
        for block in model.blocks:
            sage, width = cast("Sage", block.get_submodule("layers.1")), model.config.width
            own, from_operands, from_users = sage.weights
            operands, users = SAGEConv(width, width), SAGEConv(width, width, root_weight=False, bias=False)
            with torch.no_grad():
                operands.lin_r.weight.copy_(own)
                operands.lin_l.bias.copy_(sage.bias)
                operands.lin_l.weight.copy_(from_operands)
                users.lin_l.weight.copy_(from_users)
            self.operands.append(operands)
            self.users.append(users)

    @staticmethod
    def data(graph: GraphInputs, segment: Segment, rows: NDArray[np.int64]) -> list[Data]:
        """One object for each configuration of a segment; the names that hold `index` are those that PyG shifts."""
        batch = graph.configurations(rows[np.newaxis], segment)
        assert isinstance(batch, LayoutBatch)
        configurations = zip(*(part[batch.codes] for part in (batch.codebook, batch.sizes, batch.costs)), strict=True)
        edge_index = torch.from_numpy(segment.edges.ends.T[::-1].copy())
        configured, colour = torch.arange(batch.codes.shape[1]), segment.initial_colour
        x, opcode, layout_of = (
            torch.from_numpy(part[colour])
            for part in (segment.colour_numeric, segment.colour_opcode, segment.colour_layout)
        )
        return [
            Data(
                x=x, opcode=opcode, node_layout=layout_of, edge_index=edge_index,
                configured_index=configured, layout=torch.from_numpy(layout), sizes=torch.from_numpy(sizes),
                costs=torch.from_numpy(costs),
            )
            for layout, sizes, costs in configurations
        ]  # fmt: skip

    def forward(self, objects: list[Data]) -> Tensor:
        """(objects, width * poolings) embeddings."""
        batch: Any = Batch.from_data_list(objects)
        encoder = self.model.encoder
        x = encoder.numeric(batch.x) + encoder.opcode_map(encoder.opcode(batch.opcode))
        x = x + encoder.node_layout_map(encoder.layout_value(batch.node_layout - LAYOUT_MIN).flatten(-2))
        x = x.index_add(0, batch.configured_index, encoder.configured(batch.layout, batch.sizes, batch.costs))
        flipped = batch.edge_index.flip(0)
        for block, operands, users in zip(self.model.blocks, self.operands, self.users, strict=True):
            z = block.get_submodule("layers.0.module")(x)
            x = x + gelu(operands(z, batch.edge_index) + users(z, flipped))
        x = self.model.post_layers.get_submodule("layers.0.module")(x)
        return torch.cat([global_mean_pool(x, batch.batch), global_max_pool(x, batch.batch)], dim=-1)

    def embed(self, graph: GraphInputs, j: int, rows: NDArray[np.int64]) -> Tensor:
        """Embeddings of one segment."""
        return cast("Tensor", self(self.data(graph, graph.segments[j], rows)))

    def step(self, training: Training, segment: int, fresh: bool) -> None:
        """The counterpart of a training step: the other segments from a forward pass, or from a table of zeros."""
        graph, rows = training.graph, training.rows
        training.clear_gradients()
        total = self.embed(graph, segment, rows)
        with torch.no_grad():
            for j in range(len(graph.segments)):
                if j != segment:
                    total = total + (self.embed(graph, j, rows) if fresh else torch.zeros_like(total))
        scores = self.model.score(total, len(graph.segments))
        torch.autograd.backward(pairwise_hinge(scores, torch.from_numpy(training.labels), MARGIN))

    @torch.no_grad()
    def scores(self, graph: GraphInputs, rows: NDArray[np.int64], at_once: int) -> NDArray[np.float64]:
        """Scores of some configurations, `at_once` in a batch."""
        parts = []
        for some in np.split(rows, range(at_once, len(rows), at_once)):
            total = torch.stack([self.embed(graph, j, some) for j in range(len(graph.segments))]).sum(dim=0)
            parts.append(self.model.score(total, len(graph.segments)))
        return torch.cat(parts).double().numpy()


class SourceForm(nn.Module):
    """The model of kaggle_1 over (configurations, nodes, width), with the same weights."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.model: CostModel = training.model
        self.graph: GraphInputs = training.graph
        (self.segment,) = self.graph.segments
        self.edge_index = torch.from_numpy(self.segment.edges.ends.T.copy())  # from users to operands
        sages = [layer for layer in self.model.modules() if isinstance(layer, Sage)]
        self.convolutions = nn.ModuleDict({str(id(layer)): self._convolution(layer) for layer in sages})

    @staticmethod
    def _convolution(layer: Sage) -> nn.Module:
        own, users = layer.weights
        convolution = SAGEConv(own.shape[1], own.shape[0])
        with torch.no_grad():
            convolution.lin_l.weight.copy_(users)
            convolution.lin_l.bias.copy_(layer.bias)
            convolution.lin_r.weight.copy_(own)
        return cast("nn.Module", convolution)

    def _layer(self, name: str, layer: Any, x: Tensor) -> Tensor:
        if name == "sage":
            return cast("Tensor", self.convolutions[str(id(layer))](x, self.edge_index))
        if name == "instance_norm":
            return instance_norm(x.transpose(1, 2), weight=layer.scale, bias=layer.offset).transpose(1, 2)
        if name == "reproductions:ConfigurationGate":
            return torch.cat([x, len(x) * (x / layer.log_temperature.exp()).softmax(dim=0) * x], dim=-1)
        if name == "dropout":
            return dropout(x, layer.dropout.p, self.training)
        return cast("Tensor", layer.module(x))

    def forward(self, rows: NDArray[np.int64]) -> Tensor:
        """(rows,) scores."""
        segment, encoder = self.segment, self.model.encoder
        batch = self.graph.configurations(rows[np.newaxis], segment)
        assert isinstance(batch, LayoutBatch)
        parts = (batch.codebook, batch.sizes, batch.costs)
        read = [torch.from_numpy(part[batch.codes]).flatten(0, 1) for part in parts]
        numeric, opcode, layout = (
            torch.from_numpy(part[segment.initial_colour]).expand(len(rows), *part[segment.initial_colour].shape)
            for part in (segment.colour_numeric, segment.colour_opcode, segment.colour_layout)
        )
        x = encoder.numeric(numeric) + encoder.opcode_map(encoder.opcode(opcode))
        x = x + encoder.node_layout_map(encoder.layout_value(layout - LAYOUT_MIN).flatten(-2))
        configured = encoder.configured(*read).view(*batch.codes.shape, x.shape[-1])
        x = x.index_add(1, torch.arange(batch.codes.shape[1]), configured)
        for block in (self.model.stem, *self.model.blocks, self.model.post_layers):
            before, layers = x, block.named_layers()
            for name in block.names:
                x = x + before if name == "residual" else self._layer(name, next(layers)[1], x)
        return self.model.score(x.mean(dim=1), 1)

    def step(self, training: Training) -> None:
        """The counterpart of a training step."""
        training.clear_gradients()
        torch.autograd.backward(pairwise_hinge(self(training.rows), torch.from_numpy(training.labels), MARGIN))


def kaggle_1(quick: bool) -> dict[str, Any] | None:
    """Configurations a second in training of kaggle_1, and of the form of its source; None without the graph."""
    if not (path := shared_dir() / TRAINED_UNET).is_file():
        print(f"skipped kaggle_1: there is no {path}")
        return None
    width, configurations = (32, 16) if quick else (256, 64)
    config = composed("layout/xla/default", ("experiment=kaggle_1",), 0, Path())
    settings = config.model.model_copy(update={"width": width})
    workload = Workload.made(read_graph(path, "layout"), config.featurize, settings, "cpu")
    training = Training(workload, "full", configurations)
    source, plan = SourceForm(training), training.plan(0)
    workload.model.eval(), source.eval()
    with torch.no_grad():
        ours, theirs = workload.model.score(training.aggregate(plan, 1), 1), source(training.rows)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    workload.model.train(), source.train()
    parts = {"plan": training.plan, "run": lambda _: training.run(plan), "public": lambda _: source.step(training)}
    taken = interleaved(parts, [0], 7)
    return report("unet3d, training, kaggle_1", configurations, taken, bound(parts["run"], [0]))


def training_ratios(name: str, workload: Workload, configurations: int, repeats: int) -> dict[str, Any]:
    """Configurations a second of both forms, for a method with a table and one with forward passes."""
    public, figures = PublicForm(workload.model), {}
    for method in ("gst_e", "gst"):
        training, calls = Training(workload, method, configurations), spread(len(workload.graph.segments), 4)
        fresh, planned = method == "gst", {segment: training.plan(segment) for segment in calls}
        parts = {
            "plan": training.plan,
            "run": lambda i, training=training, planned=planned: training.run(planned[i]),
            "public": lambda i, training=training, fresh=fresh: public.step(training, i, fresh),
        }
        taken = interleaved(parts, calls, repeats)
        figures[method] = report(f"{name}, training, {method}", configurations, taken, bound(parts["run"], calls))
        figures[method] |= {f"{part}_ms": 1000 * taken[part] for part in ("plan", "run")}
        print(f"  plan {1000 * taken['plan']:.1f} ms, run {1000 * taken['run']:.1f} ms", flush=True)
        if method == "gst_e":
            figures[method]["wall"] = wall_rates(training, calls, configurations)
    return figures


def wall_rates(training: Training, calls: Sequence[int], configurations: int) -> dict[str, float]:
    """Configurations a second of wall time, by workers that plan steps ahead and threads that run them, in turn."""
    burst = [*calls] * WALL_BURST
    steps = {
        (workers, threads): iter(ordered(training.plan, burst * (1 + WALL_ROUNDS), workers))
        for workers, threads in ((0, 1), (0, 2), (1, 1), (1, 2))
    }
    seconds: dict[tuple[int, int], list[float]] = {key: [] for key in steps}
    for _ in range(1 + WALL_ROUNDS):
        for key, planned in steps.items():
            torch.set_num_threads(key[1])
            start = time.perf_counter()
            for _ in burst:
                training.run(next(planned))
            seconds[key].append(time.perf_counter() - start)
    torch.set_num_threads(1)
    done = len(burst) * configurations
    rates = {f"{key[0]} workers, {key[1]} threads": done / median(taken[1:]) for key, taken in seconds.items()}
    print("  wall: " + ", ".join(f"{key} {rate:,.0f}" for key, rate in rates.items()), flush=True)
    return rates


def scoring_ratio(name: str, workload: Workload, share: int, repeats: int) -> dict[str, Any]:
    """Configurations a second of both forms: here all, in the public form the first `share`, as it is linear."""
    public, graph, rows = PublicForm(workload.model), workload.graph, workload.graph.targets[0]
    ours = score_configurations(workload.model, graph, rows, MEMORY_BYTES)
    np.testing.assert_allclose(public.scores(graph, rows[:8], 8), ours[:8], rtol=1e-3, atol=1e-4)
    parts = {
        "here": lambda _: score_configurations(workload.model, graph, rows, MEMORY_BYTES),
        "plan": lambda _: plan_everything(workload),
        "public": lambda _: public.scores(graph, rows[:share], 32),
    }
    taken = interleaved(parts, [0], repeats)
    # Repeated configurations, which featurize merges, are scored again there.
    configurations = len(graph.features.row_of)
    taken["public"] *= configurations / share
    figures = report(f"{name}, scoring all {configurations:,}", configurations, taken, bound(parts["here"], [0]))
    return {**figures, "seconds": taken["here"], "plan_seconds": taken["plan"]}


def plan_everything(workload: Workload) -> None:
    """Make the plans for scoring all configurations, and nothing else."""
    for _ in plan_parts(workload.model, workload.graph, workload.graph.targets[0], MEMORY_BYTES, PlanCache(0)):
        pass


def bound(work: Callable[[int], object], calls: Sequence[int]) -> float:
    """Mean seconds that matrix products of the work, which has distinct states only, take at a large product's rate."""
    square = torch.ones(PRODUCT, PRODUCT)
    seconds = interleaved({"product": lambda _: square @ square}, [0] * 4, 7)["product"]
    with FlopCounterMode(display=False) as counter:
        for call in calls:
            work(call)
    return float(counter.get_total_flops() / len(calls) * seconds / (2 * PRODUCT**3))


def report(name: str, configurations: int, taken: dict[str, float], least: float) -> dict[str, Any]:
    """Print and return the figures of one comparison; `least` seconds are the bound."""
    seconds = taken["here"] if "here" in taken else taken["plan"] + taken["run"]
    here, public, share = configurations / seconds, configurations / taken["public"], least / seconds
    print(f"{name}: {here:,.0f} a second, public {public:,.1f}, {here / public:.1f}x, bound {share:.0%}", flush=True)
    return {"configurations_per_second": here, "public_form": public, "ratio": here / public, "share_of_bound": share}


def unet_3d(quick: bool) -> dict[str, Any] | None:
    """The figures of a real graph; None where it is absent."""
    if not (path := shared_dir() / UNET).is_file():
        print(f"skipped unet_3d: there is no {path}")
        return None
    width, configurations, share = (32, 8, 16) if quick else (256, 32, 32)
    workload = Workload.of(read_graph(path, "layout"), width)
    figures = training_ratios("unet_3d", workload, configurations, REPEATS)
    return {**figures, "scoring": scoring_ratio("unet_3d", workload, share, REPEATS)}


def synthetic_graph(quick: bool) -> dict[str, Any]:
    """The figures of a synthetic graph."""
    width, nodes, configurations = (16, 4_000, 8) if quick else (64, 20_000, 32)
    workload = Workload.of(synthetic(nodes, configurations), width)
    return training_ratios(f"synthetic, {nodes:,} nodes", workload, configurations, REPEATS)


def large(quick: bool) -> dict[str, float] | None:
    """The time and memory of scoring all configurations of a graph of 20,000 nodes; None if quick."""
    if quick:
        return None
    workload = Workload.of(synthetic(20_000, 50_000, 800), width=64)
    rows = workload.graph.targets[0]
    score = partial(score_configurations, workload.model, workload.graph, rows, MEMORY_BYTES)
    start, start_cpu = time.perf_counter(), time.process_time()
    score()
    taken, taken_cpu = time.perf_counter() - start, time.process_time() - start_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    start_cpu = time.process_time()
    plan_everything(workload)
    planned = time.process_time() - start_cpu
    share = bound(lambda _: score(), [0]) / taken_cpu
    print(f"{len(rows):,} configurations in {taken:.0f} s, plans {planned:.0f} s, {peak:,} bytes, bound {share:.0%}")
    figures = {"configurations": len(rows), "seconds": taken, "cpu_seconds": taken_cpu, "plan_seconds": planned}
    return figures | {"peak_bytes": peak, "share_of_bound": share}


PARTS: dict[str, Callable[[bool], dict[str, Any] | None]] = {
    "unet_3d": unet_3d,
    "kaggle_1": kaggle_1,
    "synthetic": synthetic_graph,
    "large": large,
}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="narrow models; no large scoring")
    parser.add_json()
    arguments = parser.parse_args()
    results: dict[str, Any] = {"repeats": REPEATS}
    # A process of its own for each, as memory that a larger model has freed makes the public form faster.
    with ProcessPoolExecutor(
        1, get_context("spawn"), initializer=partial(torch.set_num_threads, 1), max_tasks_per_child=1
    ) as executor:
        for name, part in PARTS.items():
            if (figures := executor.submit(part, arguments.quick).result()) is not None:
                results[name] = figures
    if arguments.json:
        write_json(arguments.json, results)


if __name__ == "__main__":
    run(main)
