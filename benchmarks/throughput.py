"""Configurations a second, in training and in scoring, against the form that public code uses.

That form makes one torch_geometric Data object of each (segment, configuration), batches them with
Batch.from_data_list, and computes every node of every object: encoder, three SAGEConv with mean aggregation over both
edge directions, pooling. It holds the weights of the cost model here, and its scores are checked to be equal.

Training: one segment with gradient, the others from a table (gst_e, warm) or from a forward pass (gst). Each graph has
a process of its own. The run takes about three minutes, the quick form 15 seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from harness import Parser, composed, run
from numpy.typing import NDArray
from step_time import MARGIN, Training, Workload, interleaved, spread, synthetic
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, instance_norm, normalize
from torch.utils.flop_counter import FlopCounterMode
from torch_geometric.data import Batch, Data
from torch_geometric.nn import SAGEConv, global_max_pool, global_mean_pool

from hlorank.data.collection import read_graph
from hlorank.data.configurations import LAYOUT_MIN, MeasuredGraph
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


def convolutions(layer: Sage) -> nn.ModuleList:
    """A SAGEConv for each direction of a layer: users, or operands and users; the first adds the node's own state."""
    own, *others = layer.weights
    made = [SAGEConv(own.shape[1], own.shape[0], root_weight=not i, bias=not i) for i in range(len(others))]
    with torch.no_grad():
        for convolution, weight in zip(made, others, strict=True):
            convolution.lin_l.weight.copy_(weight)
        made[0].lin_l.bias.copy_(layer.bias)
        made[0].lin_r.weight.copy_(own)
    return nn.ModuleList(made).to(own.device)


class PublicForm(nn.Module):
    """The cost model over batches of Data objects, with the same weights."""

    def __init__(self, model: CostModel) -> None:
        super().__init__()
        self.model = model
        sages = (cast("Sage", block.get_submodule("layers.1")) for block in model.blocks)
        self.convolutions = nn.ModuleList(map(convolutions, sages))

    @staticmethod
    def batch(graph: GraphInputs, segment: Segment, rows: NDArray[np.int64]) -> Batch:
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
        return Batch.from_data_list([
            Data(
                x=x, opcode=opcode, node_layout=layout_of, edge_index=edge_index,
                configured_index=configured, layout=torch.from_numpy(layout), sizes=torch.from_numpy(sizes),
                costs=torch.from_numpy(costs),
            )
            for layout, sizes, costs in configurations
        ])  # fmt: skip

    def forward(self, batch: Any) -> Tensor:
        """(objects, width * poolings) embeddings."""
        batch, encoder = batch.to(self.model.device), self.model.encoder
        x = encoder.numeric(batch.x) + encoder.opcode_map(encoder.opcode(batch.opcode))
        x = x + encoder.node_layout_map(encoder.layout_value(batch.node_layout - LAYOUT_MIN).flatten(-2))
        x = x.index_add(0, batch.configured_index, encoder.configured(batch.layout, batch.sizes, batch.costs))
        flipped = batch.edge_index.flip(0)
        for block, own in zip(self.model.blocks, self.convolutions, strict=True):
            operands, users = cast("nn.ModuleList", own)
            z = block.get_submodule("layers.0.module")(x)
            x = x + gelu(operands(z, batch.edge_index) + users(z, flipped))
        x = self.model.post_layers.get_submodule("layers.0.module")(x)
        return torch.cat([global_mean_pool(x, batch.batch), global_max_pool(x, batch.batch)], dim=-1)

    def embed(self, graph: GraphInputs, j: int, rows: NDArray[np.int64]) -> Tensor:
        """Embeddings of one segment."""
        return cast("Tensor", self(self.batch(graph, graph.segments[j], rows)))

    def step(self, training: Training, segment: int, fresh: bool, made: Mapping[int, Batch] | None = None) -> None:
        """The counterpart of a training step: the other segments from a forward pass, or from a table of zeros."""
        graph, rows = training.graph, training.rows
        training.clear_gradients()
        total = self.embed(graph, segment, rows) if made is None else self(made[segment])
        with torch.no_grad():
            for j in range(len(graph.segments)):
                if j != segment:
                    total = total + (self.embed(graph, j, rows) if fresh else torch.zeros_like(total))
        scores = self.model.score(total, len(graph.segments))
        torch.autograd.backward(pairwise_hinge(scores, torch.from_numpy(training.labels).to(scores.device), MARGIN))

    @torch.no_grad()
    def scores(self, graph: GraphInputs, rows: NDArray[np.int64], at_once: int) -> NDArray[np.float64]:
        """Scores of some configurations, `at_once` in a batch."""
        parts = []
        for some in np.split(rows, range(at_once, len(rows), at_once)):
            total = torch.stack([self.embed(graph, j, some) for j in range(len(graph.segments))]).sum(dim=0)
            parts.append(self.model.score(total, len(graph.segments)))
        return torch.cat(parts).double().numpy()


class SourceForm(nn.Module):
    """A model of a whole graph over (configurations, nodes, width), as kaggle_1's source has it, with the same weights.

    Its inputs are made before the steps.
    """

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.model: CostModel = training.model
        (segment,), rows, device = training.graph.segments, training.rows, self.model.device
        self.labels, self.clear_gradients = torch.from_numpy(training.labels).to(device), training.clear_gradients
        batch = training.graph.configurations(rows[np.newaxis], segment)
        assert isinstance(batch, LayoutBatch)
        self.codes, parts = batch.codes.shape, (batch.codebook, batch.sizes, batch.costs)
        self.layouts = [torch.from_numpy(part[batch.codes]).flatten(0, 1).to(device) for part in parts]
        self.nodes = [
            torch.from_numpy(part[segment.initial_colour]).to(device).expand(len(rows), -1, *part.shape[1:])
            for part in (segment.colour_numeric, segment.colour_opcode, segment.colour_layout)
        ]
        ends = torch.from_numpy(segment.edges.ends.T.copy()).to(device)
        self.directions = ends.flip(0), ends  # from operands to users, and from users to operands
        sages = [layer for layer in self.model.modules() if isinstance(layer, Sage)]
        self.convolutions = nn.ModuleDict({str(id(layer)): convolutions(layer) for layer in sages})

    def _layer(self, name: str, layer: Any, x: Tensor) -> Tensor:
        if name == "sage":
            own = cast("nn.ModuleList", self.convolutions[str(id(layer))])
            parts = [part(x, ends) for part, ends in zip(own, self.directions[-len(own) :], strict=True)]
            return cast("Tensor", sum(parts[1:], parts[0]))
        if name == "instance_norm":
            return instance_norm(x.transpose(1, 2), weight=layer.scale, bias=layer.offset).transpose(1, 2)
        if name in ("reproductions:ConfigurationGate", "configuration_attention"):
            gated = torch.cat([x, len(x) * (x / layer.log_temperature.exp()).softmax(dim=0) * x], dim=-1)
            return cast("Tensor", layer.joined(gated)) if name == "configuration_attention" else gated
        if name == "dropout":
            return dropout(x, layer.dropout.p, self.training)
        return cast("Tensor", layer.module(x))

    def forward(self) -> Tensor:
        """(configurations,) scores."""
        (numeric, opcode, layout), encoder, (_, configurable) = self.nodes, self.model.encoder, self.codes
        x = encoder.numeric(numeric) + encoder.opcode_map(encoder.opcode(opcode))
        x = x + encoder.node_layout_map(encoder.layout_value(layout - LAYOUT_MIN).flatten(-2))
        configured = encoder.configured(*self.layouts).view(*self.codes, x.shape[-1])
        x = x.index_add(1, torch.arange(configurable, device=x.device), configured)
        for block in (self.model.stem, *self.model.blocks, self.model.post_layers):
            before, layers = x, block.named_layers()
            for name in block.names:
                x = x + before if name == "residual" else self._layer(name, next(layers)[1], x)
        pooled = {"mean": x.mean(1), "max": x.amax(1), "sum": x.sum(1)}
        pooled["l2_configurable_sum"] = normalize(x[:, :configurable].sum(1), dim=-1)
        return self.model.score(torch.cat([pooled[name] for name in self.model.config.pooling], dim=-1), 1)

    def step(self, _: int) -> None:
        """The counterpart of a training step."""
        self.clear_gradients()
        torch.autograd.backward(pairwise_hinge(self(), self.labels, MARGIN))


def against_source(experiment: str, measured: MeasuredGraph, quick: bool, device: str) -> tuple[Training, SourceForm]:
    """Training steps of an experiment of whole graphs, and the form of its source, whose scores are equal."""
    config = composed("layout/xla/default", (f"experiment={experiment}",), 0, Path())
    settings, count = config.model.model_copy(update={"width": 32} if quick else {}), config.trainer.configs_per_step
    workload = Workload.made(measured, config.featurize, settings, device)
    training = Training(workload, "full", 16 if quick else count)
    source, plan = SourceForm(training), training.plan(0)
    source.eval()  # the model, too
    with torch.no_grad():
        torch.testing.assert_close(training.model.score(training.aggregate(plan, 1), 1), source(), rtol=1e-3, atol=1e-4)
    source.train()
    return training, source


def kaggle_1(quick: bool) -> dict[str, Any] | None:
    """Configurations a second in training of kaggle_1, and of the form of its source; None without the graph."""
    if not (path := shared_dir() / TRAINED_UNET).is_file():
        print(f"skipped kaggle_1: there is no {path}")
        return None
    training, source = against_source("kaggle_1", read_graph(path, "layout"), quick, "cpu")
    plan = training.plan(0)
    parts: dict[str, Callable[[int], object]] = {"plan": training.plan, "public": source.step}
    parts["run"] = lambda _: training.run(plan)
    taken = interleaved(parts, [0], 7)
    return report("unet3d, training, kaggle_1", len(training.rows), taken, bound(parts["run"], [0]))


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


PARTS: dict[str, Callable[[bool], dict[str, Any] | None]]
PARTS = {"unet_3d": unet_3d, "kaggle_1": kaggle_1, "synthetic": synthetic_graph}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="narrow models, small graphs")
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
