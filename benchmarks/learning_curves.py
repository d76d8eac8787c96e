"""Learning curves: Kendall tau by the number of families and of configurations that a baseline is trained on.

Boosted trees are level with the best models here and are trained in seconds, so that every point can be the mean over
all folds of quality.py and over draws of families. They are scored on the valid of each fold; no fold that quality.py
reports is looked at. Families: a quarter, a half, three quarters and all of those of train, drawn so that each draw
contains the smaller ones. Configurations: 10 to 300 of each graph, or as many as it has, drawn at random.

The distance of a curve to the noise ceiling, the tau of a perfect model, is fitted by b n^-c, with n the number of
graphs or of configurations of a graph. An extrapolation holds if nothing but n changes.

    python benchmarks/learning_curves.py
    python benchmarks/learning_curves.py --collection tile/cpu --json rows.json

It takes about ten minutes of CPU time. A collection that has its rows is not computed again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import experiments  # type: ignore[import-not-found] # same folder
import folds  # type: ignore[import-not-found] # as above
import numpy as np
from command_line import Parser, expect, output_file  # type: ignore[import-not-found] # as above
from command_line import run as run_command

from hlorank.files import read_json, write_json
from hlorank.models.graph_loader import GraphLoader
from hlorank.training.baselines.train_baseline import fit_baseline
from hlorank.training.sampling import usable_graphs

RESULTS = Path(__file__).parent / "results" / "learning_curves.json"
COLLECTIONS = ("layout/cpu/random", "layout/cpu/default", "tile/cpu")
CEILINGS = {"layout/cpu/random": 0.966, "layout/cpu/default": 0.949, "tile/cpu": 0.988}
"""Kendall tau of a perfect model, a mean over graphs: the runtimes are noisy."""
METHOD = "xgboost"
SHARES = (0.25, 0.5, 0.75, 1.0)
CONFIGURATIONS = (10, 30, 100, 300)
DRAWS = 3


def rows_of(collection: str, work: Path) -> list[dict[str, Any]]:
    """Return a row for each point, fold and draw: what varies, graphs and configurations, and the tau on valid."""
    rows = []
    points = [("families", share, draw) for share in SHARES for draw in range(DRAWS if share < 1 else 1)]
    points += [("configurations", count, 0) for count in CONFIGURATIONS]
    for fold in folds.folds_of(collection, work):
        print(f"{collection}: fold {fold.number}", file=sys.stderr, flush=True)
        overrides = ("featurize.prune_hops=null",)
        place, _ = folds.prepared(fold, overrides, work)
        for axis, point, draw in points:
            limit = () if axis == "families" else (f"baseline.rows_per_graph={point}",)
            config = experiments.composed(collection, (*overrides, *limit), draw, place, fold.data(work))
            store = GraphLoader(Path(config.paths.features) / collection, None).store
            train, valid = usable_graphs(store, config.trainer.validation_configs, 0)
            if axis == "families":
                names = sorted({fold.families[name] for name in train})
                order = np.random.default_rng(draw).permutation(names)
                kept = set(order[: max(1, round(point * len(names)))])
                train = [name for name in train if fold.families[name] in kept]
            fit, history, best = fit_baseline(config, METHOD, store, train, valid)
            most = config.baseline.rows_per_graph
            counts = [min(most, len(store.open("train", name).targets()[0])) for name in train]
            figures = {"graphs": len(train), "configurations": mean(counts), "tau": history[best].valid_kendall_tau}
            key = {"collection": collection, "axis": axis, "point": point, "fold": fold.number, "draw": draw}
            rows.append({**key, **figures, "trees": fit.candidates[best].steps})
    return rows


def power_law(counts: list[float], taus: list[float], ceiling: float) -> tuple[float, float]:
    """Return b and c of the least squares fit of log(ceiling - tau) = log(b) - c log(n)."""
    slope, intercept = np.polyfit(np.log(counts), np.log(ceiling - np.array(taus)), 1)
    return float(np.exp(intercept)), float(-slope)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the curves as Markdown, each with its exponent and what ten times as much would give."""
    lines = ["| collection | of train | n | tau on valid | graphs | of each |", "|---" * 6 + "|"]
    laws = []
    for collection in dict.fromkeys(row["collection"] for row in rows):
        for axis, column in (("families", "graphs"), ("configurations", "configurations")):
            own = [row for row in rows if (row["collection"], row["axis"]) == (collection, axis)]
            curve: list[tuple[float, float]] = []
            for point in sorted({row["point"] for row in own}):
                some = [row for row in own if row["point"] == point]
                of_fold = [mean(r["tau"] for r in some if r["fold"] == f) for f in sorted({r["fold"] for r in some})]
                graphs, each = (mean(row[key] for row in some) for key in ("graphs", "configurations"))
                count = graphs if column == "graphs" else each
                if curve and count == curve[-1][0]:
                    continue  # no graph has more configurations
                curve.append((count, mean(of_fold)))
                text = f"{point:.0%}" if axis == "families" else f"{point:,}"
                spread = f"{mean(of_fold):.3f} ± {stdev(of_fold):.3f}"
                lines.append(f"| {collection} | {axis} | {text} | {spread} | {graphs:.0f} | {each:.0f} |")
            counts, taus = map(list, zip(*curve, strict=True))
            factor, exponent = power_law(counts, taus, CEILINGS[collection])
            tenfold = CEILINGS[collection] - factor * (10 * counts[-1]) ** -exponent
            laws.append(
                f"- {collection}, {column}: the distance to the ceiling of {CEILINGS[collection]} falls as "
                f"n^-{exponent:.2f}; ten times as many: {tenfold:.3f}"
            )
    return "\n".join([*lines, "", *laws])


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--collection", nargs="+", default=[*COLLECTIONS], metavar="PATH",
                        help=f"some of {', '.join(COLLECTIONS)} (default: all)")  # fmt: skip
    parser.add_argument("--json", type=output_file, default=RESULTS, metavar="FILE",
                        help="rows, also of earlier calls (default: results/learning_curves.json)")  # fmt: skip
    parser.add_argument("--work", type=Path, default=experiments.ROOT / ".hlorank" / "quality", metavar="FOLDER",
                        help="features of the folds (default: .hlorank/quality)")  # fmt: skip
    arguments = parser.parse_args()
    expect("--collection", arguments.collection, COLLECTIONS)
    rows: list[dict[str, Any]] = read_json(arguments.json)["rows"] if arguments.json.exists() else []
    for collection in arguments.collection:
        if not any(row["collection"] == collection for row in rows):
            rows += rows_of(collection, arguments.work.resolve())
            write_json(arguments.json, {"rows": rows})
    print(table([row for row in rows if row["collection"] in arguments.collection]))


if __name__ == "__main__":
    run_command(main)
