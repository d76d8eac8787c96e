r"""Slowdown of autotuning by ways to adapt a ranking to measurements: a Gaussian process, a finetuned head, and none.

Autotuning is replayed on measured graphs of the sample outside the training data: the graph's configurations are the
candidates, and their stored runtimes replace measurements. The metric is the slowdown of the best configuration found
so far relative to the best of all, after each batch of four, averaged over graphs. The way was chosen on valid.

The run takes about a minute for each model; there is no quick form. `make repro` trains the models.

    python benchmarks/adaptation.py --model models/layout/cpu/random/gst \
        --families densenet gru dlrm
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from command_line import Parser, expect, layout_model, run  # type: ignore[import-not-found] # same folder
from torch import Tensor, nn

from hlorank.data.collection import Collection, graph_files, measured_family, read_graph
from hlorank.data.graph import MeasuredGraph
from hlorank.models.baselines.baseline import BASELINES
from hlorank.models.scoring import mean_of_members
from hlorank.models.serialization import load_model
from hlorank.serving.ranker import Ranker
from hlorank.training.losses import listmle
from hlorank_collect.autotune.propose import Adapted, Float64, Priority, propose

SAMPLE = Path(__file__).resolve().parents[1] / "data" / "sample"
BATCH, BUDGET = 4, 20
SEEDS = 20


def finetuned_heads(heads: Sequence[nn.Module], scores: Float64, embedding: Float64) -> Priority:
    """Return priorities by the heads of all members, each finetuned by 30 steps of ListMLE on the measured runtimes."""
    inputs = torch.from_numpy(embedding).float().chunk(len(heads), dim=1)  # members have equal widths

    def finetuned(head: nn.Module, x: Tensor, known: list[int], labels: Tensor) -> Float64:
        own = deepcopy(head)
        optimizer = torch.optim.AdamW(own.parameters(), lr=1e-3)
        for _ in range(30):
            optimizer.zero_grad()
            listmle(own(x[known]).squeeze(-1), labels).backward()  # type: ignore[no-untyped-call] # of torch
            optimizer.step()
        with torch.no_grad():
            found: Float64 = own(x).squeeze(-1).double().numpy()
        return found

    def priority(measured: Mapping[int, float]) -> Float64:
        known = [one for one, runtime in measured.items() if math.isfinite(runtime)]
        if len(known) < 2:
            return scores
        labels = torch.tensor([measured[one] for one in known])
        return mean_of_members([finetuned(head, x, known, labels) for head, x in zip(heads, inputs, strict=True)])

    return priority


def slowdowns(priority: Priority, runtimes: Float64) -> Float64:
    """Return (batches,) slowdowns of the best configuration found so far."""
    tried = propose(priority, lambda chosen: runtimes[chosen], batch=BATCH, budget=BUDGET)
    best = np.minimum.accumulate(list(tried.values()))[BATCH - 1 :: BATCH]
    found: Float64 = np.full(BUDGET // BATCH, best[-1])
    found[: len(best)] = best
    relative: Float64 = found / runtimes.min() - 1
    return relative


def fixed(scores: Float64) -> Priority:
    return lambda _: scores


def ways(ranker: Ranker, heads: Sequence[nn.Module], measured: MeasuredGraph) -> Iterator[tuple[str, list[Priority]]]:
    """Yield the name of each way, and the priorities to average over."""
    given = measured.graph, measured.configurations
    scores, embedding = ranker.score(*given), ranker.embed(*given)
    yield "no adaptation", [fixed(scores)]
    yield "Gaussian process", [Adapted(scores, embedding)]
    if heads:
        yield "finetuned head", [finetuned_heads(heads, scores, embedding)]
    orders = (np.random.default_rng(seed).permutation(len(scores)) for seed in range(SEEDS))
    yield "random", [fixed(order.astype(np.float64)) for order in orders]


def main() -> None:
    parser = Parser(__doc__)
    known = sorted(path.relative_to(SAMPLE).as_posix() for path in SAMPLE.glob("layout/*/*"))
    parser.add_argument(
        "--model", type=layout_model, nargs="+", required=True, metavar="FOLDER", help="trained models of layouts"
    )
    parser.add_argument("--families", nargs="+", required=True, metavar="NAME", help="families of ranked graphs")
    parser.add_argument(
        "--collection", nargs="+", default=known, choices=known, metavar="PATH",
        help=f"collections of the sample (default: {' '.join(known)})",
    )  # fmt: skip
    arguments = parser.parse_args()
    files = [path for name in arguments.collection for path in graph_files(SAMPLE, Collection.parse(name), None)]
    expect("--families", arguments.families, {str(measured_family(path)) for path in files})
    paths = [path for path in files if measured_family(path) in arguments.families]
    found: dict[str, list[Float64]] = {}
    for folder in arguments.model:
        ranker = Ranker(folder)
        baseline = ranker.spec.method in BASELINES
        heads = [] if baseline else [member.head for member in load_model(folder, torch.device("cpu"))[0]]
        for path in paths:
            measured = read_graph(path, "layout")
            runtimes = measured.measurements.runtime.astype(np.float64)
            for name, priorities in ways(ranker, heads, measured):
                mean = np.mean([slowdowns(priority, runtimes) for priority in priorities], axis=0)
                found.setdefault(name, []).append(mean)
    counts = range(BATCH, BUDGET + 1, BATCH)
    print(f"{len(paths)} graphs, {len(arguments.model)} models: slowdown relative to the best, by measurements")
    print(f"| | {' | '.join(map(str, counts))} |\n|---{'|---' * len(counts)}|")
    for name, values in found.items():
        print(f"| {name} | {' | '.join(f'{value:.2%}' for value in np.mean(values, axis=0))} |")


if __name__ == "__main__":
    run(main)
