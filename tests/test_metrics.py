"""Metrics against scipy, brute force and known values."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.stats import kendalltau

from hlorank import metrics
from hlorank.data.collection import read_graph
from hlorank.data.configurations import LayoutConfigurations

Vector = NDArray[Any]
relaxed = settings(deadline=None)  # the first call of scipy imports it

# Few distinct values: ties and constants are common.
pairs = st.integers(1, 30).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.int64, n, elements=st.integers(1, 8)), hnp.arrays(np.int64, n, elements=st.integers(1, 8))
    )
)


def counts(score: Vector, runtime: Vector) -> tuple[int, int, int, int]:
    """Concordant and discordant pairs, pairs that differ in score, pairs that differ in runtime: by looking at all."""
    above = np.triu_indices(len(score), 1)
    a = np.sign(score[:, None] - score[None, :])[above]
    b = np.sign(runtime[:, None] - runtime[None, :])[above]
    return int((a * b > 0).sum()), int((a * b < 0).sum()), int((a != 0).sum()), int((b != 0).sum())


@given(pairs)
@relaxed
def test_kendall_tau_is_scipys_and_the_definition(pair: tuple[Vector, Vector]) -> None:
    score, runtime = pair
    concordant, discordant, scores, runtimes = counts(score, runtime)
    tau = metrics.kendall_tau(score, runtime)
    if runtimes == 0:
        assert math.isnan(tau)
    elif scores == 0:
        assert tau == 0.0
    else:
        assert tau == pytest.approx((concordant - discordant) / math.sqrt(scores * runtimes), abs=1e-12)
        assert tau == pytest.approx(float(kendalltau(score, runtime).statistic), abs=1e-12)


@given(pairs)
@relaxed
def test_ordered_pair_accuracy_is_the_definition(pair: tuple[Vector, Vector]) -> None:
    concordant, _, _, ordered = counts(*pair)
    accuracy = metrics.ordered_pair_accuracy(*pair)
    assert math.isnan(accuracy) if ordered == 0 else accuracy == concordant / ordered


@given(pairs, st.randoms(use_true_random=False))
@relaxed
def test_the_order_of_configurations_and_the_scale_of_scores_do_not_matter(
    pair: tuple[Vector, Vector], random: Any
) -> None:
    score, runtime = pair
    order = list(range(len(score)))
    random.shuffle(order)
    transformed = np.exp(score / 3.0) - 7
    for metric in (metrics.kendall_tau, metrics.ordered_pair_accuracy):
        expected = metric(score, runtime)
        for other in (metric(score[order], runtime[order]), metric(transformed, runtime**3)):
            assert other == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_known_values() -> None:
    assert metrics.kendall_tau([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert metrics.kendall_tau([3, 2, 1], [10, 20, 30]) == pytest.approx(-1.0)
    assert metrics.kendall_tau([2, 1], [5, 7]) == pytest.approx(-1.0)
    assert metrics.kendall_tau([1, 1, 2], [10, 20, 30]) == pytest.approx(2 / math.sqrt(6))
    assert metrics.ordered_pair_accuracy([1, 1, 2], [10, 20, 30]) == 2 / 3
    assert metrics.ordered_pair_accuracy([5, 5, 5], [10, 20, 30]) == 0.0


@pytest.mark.parametrize("runtime", [[], [3], [4, 4, 4]])
def test_nothing_to_rank_is_nan(runtime: list[int]) -> None:
    assert math.isnan(metrics.kendall_tau(range(len(runtime)), runtime))
    assert math.isnan(metrics.ordered_pair_accuracy(range(len(runtime)), runtime))


def test_fifty_thousand_configurations_fit_in_memory() -> None:
    """All pairs of 50,000 would be 2.5e9 numbers; the child may take 128 MB."""
    code = """
import resource
import numpy as np
import scipy.stats
from hlorank import metrics
runtime = np.random.default_rng(0).integers(1, 30_000, 50_000)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, used + 2**27))
score = runtime // 3
print(metrics.ordered_pair_accuracy(score, runtime), metrics.kendall_tau(-runtime, runtime))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    accuracy, tau = map(float, result.stdout.split())
    assert 0.9998 < accuracy < 1
    assert tau == pytest.approx(-1)


def test_ranking_breaks_ties_by_index() -> None:
    assert metrics.ranking([2.0, 1.0, 2.0, 1.0, 0.5]).tolist() == [4, 1, 3, 0, 2]
    assert metrics.ranking(np.zeros(40)).tolist() == list(range(40))


@given(pairs, st.integers(1, 40))
@relaxed
def test_top_k_slowdown_is_the_definition(pair: tuple[Vector, Vector], k: int) -> None:
    score, runtime = pair
    first = [i for _, i in sorted(zip(score.tolist(), range(len(score)), strict=True))][:k]
    expected = (min(runtime[i] for i in first) - min(runtime)) / min(runtime)
    assert metrics.top_k_slowdown(score, runtime, k) == pytest.approx(expected, abs=1e-12)


def test_top_k_slowdown_on_known_values() -> None:
    runtime = [4, 2, 3, 1]
    assert metrics.top_k_slowdown([0, 0, 0, 0], runtime, 1) == 3.0
    assert metrics.top_k_slowdown([0, 0, 0, 0], runtime, 2) == 1.0
    assert metrics.top_k_slowdown([0, 0, 0, 0], runtime, 100) == 0.0
    assert metrics.top_k_slowdown([0.1], [0.8], 1) == 0.0


@pytest.mark.parametrize(
    ("score", "runtime", "k", "message"),
    [
        ([1, 2], [1, 2], 0, "k: .*0"),
        ([], [], 1, "found none"),
        ([1, 2], [0, 0], 1, "withheld"),
        ([1, 2], [1], 1, "equal lengths, found 2 and 1"),
    ],
)
def test_top_k_slowdown_refuses(score: list[float], runtime: list[float], k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metrics.top_k_slowdown(score, runtime, k)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("metric", [metrics.kendall_tau, metrics.ordered_pair_accuracy])
def test_bad_numbers_are_named(metric: Any, bad: float) -> None:
    with pytest.raises(ValueError, match=rf"score: .*{bad} .*\b1"):
        metric([1.0, bad, 2.0], [1, 2, 3])
    with pytest.raises(ValueError, match=rf"runtime: .*{bad} .*\b2"):
        metric([1, 2, 3], [1.0, 2.0, bad])
    with pytest.raises(ValueError, match="score: "):
        metrics.ranking([bad])


@pytest.mark.parametrize("metric", [metrics.kendall_tau, metrics.ordered_pair_accuracy])
def test_bad_shapes_are_named(metric: Any) -> None:
    with pytest.raises(ValueError, match=r"\b3\b.*\b2\b"):
        metric([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match=r"score: .*\(2, 2\)"):
        metric([[1, 2], [3, 4]], [1, 2])


def test_noise_ceiling() -> None:
    assert metrics.noise_ceiling(0.74) == pytest.approx(0.867, abs=5e-4)
    assert metrics.noise_ceiling(1.0) == pytest.approx(1.0)
    assert metrics.noise_ceiling(0.0) == 0.0
    assert metrics.noise_ceiling(-1.0) == 0.0
    assert math.isnan(metrics.noise_ceiling(math.nan))
    halves = np.linspace(0.01, 0.99, 50)
    ceilings = np.array([metrics.noise_ceiling(tau) for tau in halves])
    assert (ceilings > halves).all()
    assert (np.diff(ceilings) > 0).all()
    with pytest.raises(ValueError, match=r"tau_half: .*1\.5"):
        metrics.noise_ceiling(1.5)


@given(st.lists(st.integers(0, 4), min_size=5, max_size=25), st.data())
@relaxed
def test_group_medians_are_numpys(tail: list[int], data: st.DataObject) -> None:
    group = np.array([0, 1, 2, 3, 4, *tail])
    values = np.array(data.draw(st.lists(st.integers(0, 99), min_size=len(group), max_size=len(group))))
    assert metrics.group_medians(group, values).tolist() == [np.median(values[group == i]) for i in range(5)]


def test_repeat_ceiling() -> None:
    assert metrics.repeat_ceiling(np.arange(4), [4, 3, 2, 1]) == pytest.approx(1.0)
    assert metrics.repeat_ceiling(np.array([0, 0, 1]), [1, 2, 3]) == pytest.approx(2 / math.sqrt(6))
    assert metrics.repeat_ceiling(np.zeros(3, dtype=np.int64), [1, 2, 3]) == 0.0
    assert math.isnan(metrics.repeat_ceiling(np.zeros(3, dtype=np.int64), [0, 0, 0]))
    assert math.isnan(metrics.repeat_ceiling(np.zeros(0, dtype=np.int64), []))


@given(pairs)
@relaxed
def test_repeat_ceiling_is_the_tau_of_the_medians(pair: tuple[Vector, Vector]) -> None:
    row_of, runtime = np.unique(pair[0], return_inverse=True)[1], pair[1]
    score = np.array([np.median(runtime[row_of == row]) for row in row_of])
    expected = metrics.kendall_tau(score, runtime)
    assert metrics.repeat_ceiling(row_of, runtime) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(("file", "ceiling"), [("valid/unet_3d.4x4.bf16", 0.8089), ("train/unet3d", 0.9287)])
def test_repeat_ceiling_of_real_files(shared_data: Path, file: str, ceiling: float) -> None:
    measured = read_graph(shared_data / f"tpugraphs/npz/layout/xla/default/{file}.npz", "layout")
    assert isinstance(measured.configurations, LayoutConfigurations)
    row_of = np.unique(measured.configurations.codes, axis=0, return_inverse=True)[1]
    assert metrics.repeat_ceiling(row_of, measured.measurements.runtime) == pytest.approx(ceiling, abs=5e-5)
