"""Share of the time of several ranks that is used, by the node states that each computes in the steps of a training.

Graphs have the sizes of the training graphs of layout:xla: log-normal, with their number, mean and maximum.
"""

from __future__ import annotations

import numpy as np
from command_line import Parser, run  # type: ignore[import-not-found] # same folder

from hlorank.files import write_json
from hlorank.training.ranks import deal

GRAPHS, MEAN, MAX, SIGMA = 69, 13_894, 43_615, 0.7
STEPS = 2_000


def used(ranks: int, per_step: int) -> dict[str, float]:
    """Return the used share of the time with an embedding table, where graphs belong to ranks, and without one."""
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(sigma=SIGMA, size=GRAPHS)
    sizes = (sizes * MEAN / sizes.mean()).clip(max=MAX)
    owners = deal(sizes, ranks)
    work, busiest = 0.0, np.zeros(2)
    for _ in range(STEPS):
        step = rng.permutation(GRAPHS)[:per_step]
        work += sizes[step].sum() / ranks
        dealings = (owners[step], deal(sizes[step], ranks))
        busiest += [np.bincount(ranks_of, sizes[step], ranks).max() for ranks_of in dealings]
    return dict(zip(("table", "no table"), (work / busiest).tolist(), strict=True))


def main() -> None:
    parser = Parser(__doc__)
    parser.add_json()
    arguments = parser.parse_args()
    rows = [
        {"ranks": ranks, "graphs": per_step, **used(ranks, per_step)}
        for ranks in (2, 4, 8)
        for per_step in (4, 8, 16, 64)
        if per_step >= ranks
    ]
    print("| ranks | graphs in a step | with a table | without |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row['ranks']} | {row['graphs']} | {row['table']:.0%} | {row['no table']:.0%} |")
    if arguments.json:
        write_json(arguments.json, rows)


if __name__ == "__main__":
    run(main)
