r"""Gain of autotuning by strategies to choose ten configurations, replayed on measured graphs of unseen families.

The configurations of a graph of the sample are the candidates, and their stored runtimes replace measurements. The
gain is the log of the default's runtime over that of the best of the ten, or 0. A row has, as a share of what the best
of all candidates gains, the gain of a strategy over all graphs, which few graphs decide; the mean of this share over
the graphs with a gain above 1 %; and on how many of them it is at least 80 %. Each seed leaves out a random quarter of
the candidates of each graph.

Models are given with the fold that was their valid split (`data.local.fold`): graphs of the families of the next fold,
their test split, are replayed. Five seeds take about a minute for each model; there is no quick form.

    python -m hlorank.stages.train experiment=best_layout data.local.fold=0
    python benchmarks/autotune_replay.py \
        --model 0=models/layout/cpu/random/full
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from command_line import Parser, layout_model, run  # type: ignore[import-not-found] # same folder
from numpy.typing import NDArray

from hlorank.data.collection import Collection, graph_files, measured_family, read_graph
from hlorank.data.graph import LayoutConfigurations
from hlorank.files import read_json
from hlorank.hlo.layout_space import Layouts
from hlorank.models.inputs import GraphInputs
from hlorank.models.scoring import embed_configurations, mean_over_orders, score_configurations
from hlorank.models.serialization import load_model
from hlorank.partition.segments import whole_graph
from hlorank.ranking.ranker import MEMORY_BYTES, Ranker
from hlorank.terminal import min_int
from hlorank_collect.autotune.acquisition import NodeEffects, node_kinds
from hlorank_collect.autotune.propose import Choose, propose

Float64 = NDArray[np.float64]
SAMPLE = Path(__file__).resolve().parents[1] / "data" / "sample"
BUDGET = 10
GAIN, SHARE = 0.01, 0.8


class Replayed(NamedTuple):
    """A measured graph, the default first."""

    layouts: Layouts
    kinds: NDArray[np.int64]
    scores: Float64
    """(members, configurations), relative to the default in standard deviations."""
    embedding: Float64
    logs: Float64
    """(configurations,) log runtimes relative to the default."""

    def part(self, rows: NDArray[np.int64]) -> Replayed:
        """Return some of the configurations."""
        return Replayed(self.layouts[rows], self.kinds, self.scores[:, rows], self.embedding[rows], self.logs[rows])


def fixed(priorities: Float64) -> Choose:
    """Choose by ascending priority."""

    def choose(_: Mapping[int, float], excluded: set[int], count: int) -> NDArray[np.int64]:
        order = [one for one in np.argsort(priorities, kind="stable").tolist() if one and one not in excluded]
        return np.array(order[:count], dtype=np.int64)

    return choose


def distant(graph: Replayed, _: int) -> Choose:
    """Choose from the best 25 the one that is farthest from those before it, by embeddings."""
    order = np.argsort(graph.scores.mean(axis=0), kind="stable")
    best = [one for one in order.tolist() if one][:25]
    points = graph.embedding / (graph.embedding.std(axis=0) + 1e-9)
    chosen = [0]
    while len(chosen) <= min(BUDGET, len(best)):
        left = [one for one in best if one not in chosen]
        nearest = [min(float(np.linalg.norm(points[one] - points[other])) for other in chosen) for one in left]
        chosen.append(left[int(np.argmax(nearest))])
    priorities = np.full(len(order), math.inf)
    priorities[chosen] = np.arange(len(chosen))
    return fixed(priorities)


def effects(graph: Replayed, batch: int) -> Choose:
    """Choose by the expected improvement of the autotuner, in batches of at most this size."""
    process = NodeEffects(graph.layouts, graph.kinds, graph.scores.mean(axis=0))
    return lambda measured, excluded, count: np.array(process.batch(measured, {0, *excluded}, min(count, batch)))


def lower_bound(weight: float) -> Callable[[Replayed, int], Choose]:
    """Choose by the mean over the ensemble minus a multiple of its standard deviation."""
    return lambda graph, _: fixed(graph.scores.mean(axis=0) - weight * graph.scores.std(axis=0))


def shuffled(graph: Replayed, seed: int) -> Choose:
    order = np.random.default_rng(seed).permutation(len(graph.logs) - 1) + 1
    return fixed(np.argsort(np.concatenate([[0], order])).astype(np.float64))


STRATEGIES: dict[str, Callable[[Replayed, int], Choose]] = {
    "random": shuffled,
    "ranking": lower_bound(0),
    "ranking, mean - standard deviation of the ensemble": lower_bound(1),
    "ranking, mean - 2 standard deviations": lower_bound(2),
    "distance between the best 25": distant,
    "expected improvement, node effects, batches of 4": lambda graph, _: effects(graph, 4),
    "expected improvement, node effects, one at a time": lambda graph, _: effects(graph, 1),
}


def gain(graph: Replayed, choose: Choose) -> float:
    tried = propose(choose, lambda chosen: np.exp(graph.logs[chosen]), budget=BUDGET)
    return max(0.0, -math.log(min(tried.values())))


def replayed(folder: Path, families: set[str]) -> dict[str, Replayed]:
    """Return the measured graphs of some families, with the scores of a model."""
    ranker, (members, _) = Ranker(folder), load_model(folder, torch.device("cpu"))
    found = {}
    for name in ("layout/cpu/random", "layout/cpu/default"):
        for path in graph_files(SAMPLE, Collection.parse(name), None):
            if measured_family(path) not in families:
                continue
            measured = read_graph(path, "layout")
            assert isinstance(measured.configurations, LayoutConfigurations)
            features, segments = ranker._prepared(measured.graph, measured.configurations, None, "graph")
            inputs = GraphInputs(features, whole_graph(features) if segments is None else segments)
            given = inputs, MEMORY_BYTES
            scores = np.stack([mean_over_orders(score_configurations, one, *given) for one in members])
            embedding = np.hstack([mean_over_orders(embed_configurations, one, *given) for one in members])
            scores = scores[:, features.row_of]
            runtimes = measured.measurements.runtime.astype(np.float64)
            found[f"{name}/{path.stem}"] = Replayed(
                measured.configurations.values(),
                node_kinds(measured.graph, measured.configurations.node_ids),
                (scores - scores[:, :1]) / scores.std(axis=1, keepdims=True),
                embedding[features.row_of],
                np.log(runtimes / runtimes[0]),
            )
    return found


def fold_and_model(text: str) -> tuple[int, Path]:
    fold, _, folder = text.partition("=")
    if not fold.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: expected the fold of valid and a folder, such as 0=models/a")
    return int(fold), layout_model(folder)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--model", type=fold_and_model, nargs="+", required=True, metavar="FOLD=FOLDER",
        help="neural networks for layouts, each with the fold of its valid split",
    )  # fmt: skip
    parser.add_argument("--seeds", type=min_int(1), default=5, metavar="N", help="of the candidates (default: 5)")
    arguments = parser.parse_args()
    split = read_json(SAMPLE / "split.json")
    graphs: dict[str, Replayed] = {}
    for fold, folder in arguments.model:
        test = (fold + 1) % split["folds"]
        graphs |= replayed(folder, {family for family, own in split["families"].items() if own == test})
    gains: dict[str, list[float]] = {name: [] for name in ("best", *STRATEGIES)}
    for seed in range(arguments.seeds):
        rng = np.random.default_rng(seed)
        for whole in graphs.values():
            count = len(whole.logs) - 1
            rows = np.sort(rng.permutation(count)[: math.ceil(0.75 * count)]) + 1
            graph = whole.part(np.concatenate([[0], rows]))
            gains["best"].append(max(0.0, -float(graph.logs.min())))
            for name, strategy in STRATEGIES.items():
                gains[name].append(gain(graph, strategy(graph, seed)))
    best = np.array(gains.pop("best"))
    some = best > GAIN
    print(f"{len(graphs)} graphs, {arguments.seeds} seeds; the best gains {np.expm1(best.mean()):.2%} on average")
    print(f"{some.sum()} have a gain above {GAIN:.0%}")
    print("| strategy | share of the gain | mean share | found |\n|---|---|---|---|")
    for name, own in gains.items():
        found = np.array(own)
        shares = found[some] / best[some]
        print(f"| {name} | {found.sum() / best.sum():.0%} | {shares.mean():.0%} | {(shares >= SHARE).mean():.0%} |")


if __name__ == "__main__":
    run(main)
