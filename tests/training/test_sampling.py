"""Samplers of configurations, and streams of random numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlorank.training
from hlorank.config import TrainerConfig
from hlorank.training.sampling import FAST_SLOPE, SAMPLERS, Stream, generator, gumbel_top_k, stratified, uniform

names = pytest.mark.parametrize("name", list(SAMPLERS))


@names
@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.data())
@settings(deadline=None, max_examples=40)
def test_as_many_distinct_indices_as_asked_for(name: str, labels: list[int], data: st.DataObject) -> None:
    values = np.array(labels, dtype=np.float64)
    count = data.draw(st.integers(1, len(labels)))
    drawn = SAMPLERS[name](np.random.default_rng(0), values, count)
    assert drawn.shape == (count,)
    assert len(set(drawn.tolist())) == count
    assert drawn.min() >= 0
    assert drawn.max() < len(labels)
    again = SAMPLERS[name](np.random.default_rng(0), values, count)
    np.testing.assert_array_equal(drawn, again)
    everything = SAMPLERS[name](np.random.default_rng(0), values, len(values))
    assert sorted(everything.tolist()) == list(range(len(values)))


def first_draws(name: str, labels: np.ndarray, times: int) -> np.ndarray:
    """Return the share of draws of a single configuration that each one gets."""
    rng = np.random.default_rng(0)
    drawn = [int(SAMPLERS[name](rng, labels, 1)[0]) for _ in range(times)]
    return np.bincount(drawn, minlength=len(labels)) / times


def test_uniform_draws_each_with_equal_probability() -> None:
    shares = first_draws("uniform", np.array([5.0, 1.0, 3.0, 2.0]), 4000)
    np.testing.assert_allclose(shares, 0.25, atol=0.03)


def test_gumbel_top_k_draws_fast_configurations_more_often() -> None:
    """One draw by Gumbel top-k follows the softmax of the logits, which fall linearly with the rank."""
    labels = np.array([50.0, 10.0, 40.0, 20.0, 30.0])
    weights = np.exp(-FAST_SLOPE * np.array([4, 0, 3, 1, 2]) / 4)
    np.testing.assert_allclose(first_draws("gumbel_top_k", labels, 6000), weights / weights.sum(), atol=0.02)
    many = np.random.default_rng(1).permutation(np.arange(1.0, 1001.0))
    mean = np.mean([many[gumbel_top_k(np.random.default_rng(seed), many, 50)].mean() for seed in range(20)])
    assert mean < 350 < many[uniform(np.random.default_rng(0), many, 500)].mean()


@given(st.integers(1, 60), st.integers(0, 1000), st.data())
@settings(deadline=None, max_examples=40)
def test_stratified_draws_one_of_each_stratum(size: int, seed: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, size))
    rank = np.random.default_rng(seed).permutation(size)
    drawn = stratified(np.random.default_rng(seed), rank.astype(np.float64), count)
    strata = np.array_split(np.arange(size), count)
    bounds = (np.arange(count + 1) * size) // count
    for i, index in enumerate(drawn):
        assert bounds[i] <= rank[index] < bounds[i + 1]
    assert {len(stratum) for stratum in strata} == set(np.diff(bounds).tolist())  # of sizes as equal as can be


def test_the_configuration_allows_exactly_these_samplers() -> None:
    assert set(get_args(TrainerConfig.model_fields["sampling"].annotation)) == SAMPLERS.keys()


def test_no_two_streams_draw_the_same_numbers() -> None:
    draws = {tuple(generator(0, stream, 1).integers(2**62, size=4).tolist()) for stream in Stream}
    assert len(draws) == len(Stream)


def test_a_draw_depends_on_its_key_and_seed() -> None:
    first = generator(0, Stream.STEP, 2, 3).random(4)
    np.testing.assert_array_equal(generator(0, Stream.STEP, 2, 3).random(4), first)
    for seed, *key in ((1, 2, 3), (0, 3, 2), (0, 2)):
        assert not np.array_equal(generator(seed, Stream.STEP, *key).random(4), first)


def test_training_draws_from_streams_alone() -> None:
    """Every stream has one user, and no module makes a generator of its own."""
    users: dict[str, list[str]] = {}
    for path in Path(hlorank.training.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if path.name != "sampling.py":
            assert not re.search(r"default_rng\(|SeedSequence\(|RandomState\(", text), path.name
        for name in re.findall(r"\bStream\.(\w+)", text):
            users.setdefault(name, []).append(path.name)
    assert {name: len(found) for name, found in users.items()} == {stream.name: 1 for stream in Stream}
