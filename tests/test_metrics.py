"""Metrics against scipy, brute force and known values."""

import math
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.stats import kendalltau

from hlorank.metrics import (
    group_medians,
    kendall_tau,
    noise_ceiling,
    ordered_pair_accuracy,
    ranking,
    repeat_ceiling,
    top_k_slowdown,
)

Vector = NDArray[Any]
NONE = np.zeros(3, dtype=np.int64)
# Few distinct values: ties and constants are common.
pairs = st.integers(1, 30).flatmap(lambda n: st.tuples(*[hnp.arrays(np.int64, n, elements=st.integers(1, 8))] * 2))


@given(pairs, st.randoms(use_true_random=False))
def test_tau_and_accuracy_are_scipys_in_any_order_and_scale(pair: tuple[Vector, Vector], random: Any) -> None:
    score, runtime = pair
    above = np.triu_indices(len(score), 1)
    a = np.sign(score[:, None] - score[None, :])[above]
    b = np.sign(runtime[:, None] - runtime[None, :])[above]
    concordant, discordant, scores, runtimes = [int(kept.sum()) for kept in (a * b > 0, a * b < 0, a != 0, b != 0)]
    tau, accuracy = kendall_tau(score, runtime), ordered_pair_accuracy(score, runtime)
    if runtimes == 0:
        assert math.isnan(tau)
        assert math.isnan(accuracy)
    else:
        assert accuracy == concordant / runtimes
        assert tau == pytest.approx((concordant - discordant) / math.sqrt(max(scores, 1) * runtimes), abs=1e-12)
        assert tau == pytest.approx(float(kendalltau(score, runtime).statistic) if scores else 0, abs=1e-12)
    order = random.sample(range(len(score)), len(score))
    for others in ((score[order], runtime[order]), (np.exp(score / 3.0) - 7, runtime**3)):
        assert kendall_tau(*others) == pytest.approx(tau, abs=1e-12, nan_ok=True)
        assert ordered_pair_accuracy(*others) == pytest.approx(accuracy, abs=1e-12, nan_ok=True)


@given(pairs, st.integers(1, 40))
def test_slowdown_and_ceiling_are_the_definition(pair: tuple[Vector, Vector], k: int) -> None:
    score, runtime = pair
    first = [i for _, i in sorted(zip(score.tolist(), range(len(score)), strict=True))][:k]
    expected = (min(runtime[i] for i in first) - min(runtime)) / min(runtime)
    assert top_k_slowdown(score, runtime, k) == pytest.approx(expected, abs=1e-12)
    row_of = np.unique(score, return_inverse=True)[1]
    medians = [np.median(runtime[row_of == row]) for row in range(row_of.max() + 1)]
    assert group_medians(row_of, runtime).tolist() == medians
    expected = kendall_tau(np.array(medians)[row_of], runtime)
    assert repeat_ceiling(row_of, runtime) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (kendall_tau([], []), math.nan),
        (ordered_pair_accuracy([], []), math.nan),
        (noise_ceiling(0.74), 0.8673),
        (noise_ceiling(1.0), 1.0),
        (noise_ceiling(-1.0), 0.0),
        (noise_ceiling(math.nan), math.nan),
        (repeat_ceiling(NONE[:0], []), math.nan),
    ],
)
def test_known_values(found: float, expected: float) -> None:
    assert found == pytest.approx(expected, abs=5e-4, nan_ok=True)


def test_ranking_breaks_ties_by_index_and_the_noise_ceiling_rises() -> None:
    assert ranking([2.0, 1.0, 2.0, 1.0, 0.5]).tolist() == [4, 1, 3, 0, 2]
    assert ranking(np.zeros(40)).tolist() == list(range(40))
    halves = np.linspace(0.01, 0.99, 50)
    ceilings = np.array([noise_ceiling(tau) for tau in halves])
    assert (ceilings > halves).all()
    assert (np.diff(ceilings) > 0).all()


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


@pytest.mark.parametrize("metric", [kendall_tau, ordered_pair_accuracy, partial(top_k_slowdown, k=1)])
@pytest.mark.parametrize(
    ("score", "runtime", "named"),
    [
        *(([1.0, bad, 2.0], [1, 2, 3], rf"score: .*{bad} .*\b1") for bad in (math.nan, math.inf, -math.inf)),
        ([1, 2, 3], [1.0, 2.0, math.nan], r"runtime: .*nan .*\b2"),
        ([1, 2, 3], [1, 2], r"\b3\b.*\b2\b"),
        ([[1, 2], [3, 4]], [1, 2], r"score: .*\(2, 2\)"),
    ],
)
def test_bad_vectors_are_named(metric: Any, score: Any, runtime: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        metric(score, runtime)


@pytest.mark.parametrize(
    ("metric", "arguments", "named"),
    [
        (top_k_slowdown, ([1, 2], [1, 2], 0), "k: .*0"),
        (top_k_slowdown, ([], [], 1), "runtime: .*none"),
        (top_k_slowdown, ([1, 2], [0, 0], 1), "withheld"),
        (noise_ceiling, (1.5,), r"tau_half: .*1\.5"),
        (ranking, ([math.nan],), "score: "),
    ],
)
def test_bad_arguments_are_named(metric: Any, arguments: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        metric(*arguments)
