"""Small tile kernels with a runtime that their tiles explain."""

from pathlib import Path

import numpy as np

from hlorank.data.collection import write_graph
from hlorank.data.configurations import TILE_FEATURES, MeasuredGraph, Measurements, TileConfigurations
from hlorank.fetch.synthetic_graphs import Program

CONFIGURATIONS = 7


def tile_kernel(name: str, seed: int) -> MeasuredGraph:
    """Return a dot of two parameters and some elementwise operations of it, with tiles of its output."""
    rng = np.random.default_rng(seed)
    rows, columns, contracted = (int(size) for size in rng.choice((64, 96, 128, 256), 3))
    program = Program()
    node = program.add(
        "dot",
        (rows, columns),
        [program.add("parameter", (rows, contracted)), program.add("parameter", (contracted, columns))],
    )
    for opcode in rng.choice(("tanh", "negate", "sqrt"), 1 + seed % 4).tolist():
        node = program.add(opcode, (rows, columns), [node])
    tiles = np.unique(rng.integers(1, (rows, columns, contracted), (50, 3)), axis=0)
    tiles = rng.permutation(tiles)[:CONFIGURATIONS]
    tiles[-1] = tiles[0]  # one is measured twice
    feat = np.zeros((CONFIGURATIONS, TILE_FEATURES), dtype=np.float32)
    for start, bounds in ((0, tiles[:, 2:]), (8, tiles[:, :2])):
        feat[:, start : start + bounds.shape[1]] = bounds
        feat[:, start + 6], feat[:, start + 7] = bounds.sum(axis=1), bounds.prod(axis=1)
    count = np.prod(-(-np.array([rows, columns, contracted]) // tiles), axis=1)
    runtime = np.rint(count * (300 + tiles.prod(axis=1) / 100) * np.exp(rng.normal(0, 0.001, CONFIGURATIONS)))
    measured = Measurements(runtime.astype(np.int64), np.full(CONFIGURATIONS, int(runtime[0])))
    return MeasuredGraph(name, program.graph(), TileConfigurations(feat), measured)


def write_tile_kernels(folder: Path) -> None:
    """Write a collection of six kernels into its folder."""
    for seed, (split, index) in enumerate(
        (split, index) for split, count in (("train", 3), ("valid", 2), ("test", 1)) for index in range(count)
    ):
        name = f"synthetic_{split}_{index:03d}"
        write_graph(folder / split / f"{name}.npz", tile_kernel(name, seed))
