"""Layout configurations of generated graphs."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from hlorank.fetch.synthetic import (
    layout_runtime,
)
from tests.fetch.synthetic.drawn import (
    layouts,
    shape,
    small,
)


@pytest.mark.parametrize("search", ["random", "default"])
@pytest.mark.parametrize("seed", range(4))
def test_layouts_obey_the_schema(search: str, seed: int) -> None:
    measured = small(seed, search=search)
    graph, configurations = measured.graph, layouts(measured)
    for position, node in enumerate(configurations.node_ids):
        operands = graph.edge_index[graph.edge_index[:, 0] == node, 1]
        is_convolution = graph.node_opcode[node] == 26
        ranks = [len(shape(graph, int(n))) for n in (node, operands[0], operands[-1])]
        for row in configurations.codebook[np.unique(configurations.codes[:, position])]:
            if (row == -1).all():
                continue
            for tensor, rank in enumerate(ranks):
                rank = 0 if tensor == 2 and not is_convolution else rank
                slot = row[6 * tensor : 6 * tensor + 6].tolist()
                assert sorted(slot[:rank]) == list(range(rank))
                assert slot[rank:] == [-1] * (6 - rank)


@pytest.mark.parametrize("search", ["random", "default"])
def test_repeated_share_and_spread_of_repeats(search: str) -> None:
    measured = small(nodes=600, search=search, configurations=400, repeated=0.25, noise=0.01)
    codes, member, counts = np.unique(layouts(measured).codes, axis=0, return_inverse=True, return_counts=True)
    assert len(codes) == 300
    assert len(layouts(measured).codebook) <= 100
    runtime = measured.measurements.runtime.astype(float)
    log = np.log(runtime)
    mean = np.bincount(member.ravel(), weights=log) / counts
    within = math.sqrt(((log - mean[member.ravel()]) ** 2).sum() / (400 - 300))
    assert within == pytest.approx(0.01, rel=0.3)


def test_default_search_starts_at_the_default_and_stays_near_the_best() -> None:
    options: dict[str, Any] = {"nodes": 1000, "configurations": 800}
    for seed in range(3):
        random, default = (small(seed, search=search, **options) for search in ("random", "default"))
        changed = [(layouts(m).codebook[layouts(m).codes] >= 0).any(axis=2).mean(axis=1) for m in (random, default)]
        assert changed[1].min() == 0
        assert np.median(changed[1]) < np.median(changed[0])
        # Mutations of about three nodes add up over the generations.
        assert np.median(changed[1]) * len(layouts(default).node_ids) > 4.5
        spread = [m.measurements.runtime.max() / m.measurements.runtime.min() - 1 for m in (random, default)]
        assert spread[0] > 0.3
        assert spread[1] > 0.03
        assert np.median(default.measurements.runtime) < np.median(random.measurements.runtime)


def test_measurements_are_the_formula_times_noise() -> None:
    measured = small(noise=0.002)
    factor = np.log(measured.measurements.runtime / layout_runtime(measured.graph, layouts(measured)))
    assert abs(factor.mean()) < 5 * 0.002 / math.sqrt(200)
    assert factor.std() == pytest.approx(0.002, rel=0.2)


def test_a_tiny_space_repeats_instead_of_searching_on() -> None:
    measured = small(nodes=50, configurable_nodes=1, configurations=100, repeated=0.0)
    assert len(measured.measurements) == 100
    assert len(np.unique(layouts(measured).codes, axis=0)) <= 9


def test_one_configuration() -> None:
    assert len(small(configurations=1).measurements) == 1


_LARGE = """
import numpy as np
from hlorank.fetch.synthetic import layout_graph
measured = layout_graph(np.random.default_rng(0), 20_000, 800, 50_000, "{search}", 0.2, 0.001)
assert measured.configurations.codes.shape == (50_000, 800)
# Not ru_maxrss, which starts at the peak of the process that started this one.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("search", ["random", "default"])
def test_a_graph_of_nlp_size_is_generated_in_bounded_memory(search: str) -> None:
    command = [sys.executable, "-c", _LARGE.format(search=search)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180)
    assert int(done.stdout) < 1_000_000  # kB; the float32 array would take 2.9 GB
