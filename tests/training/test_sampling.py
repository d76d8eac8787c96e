"""Streams of random numbers, samplers of configurations, and segments whose weights are unbiased."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlorank.training
from hlorank.config import Config, TrainerConfig
from hlorank.training.methods import METHODS, segment_weights
from hlorank.training.sampling import FAST_SLOPE, SAMPLERS, Stream, generator
from tests.training.training_helpers import open_data


@pytest.mark.parametrize("name", SAMPLERS)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.data())
@settings(max_examples=30)
def test_as_many_distinct_indices_as_asked_for(name: str, labels: list[int], data: st.DataObject) -> None:
    values = np.array(labels, dtype=np.float64)
    count = data.draw(st.integers(1, len(labels)))
    drawn, again = (SAMPLERS[name](np.random.default_rng(0), values, count) for _ in range(2))
    np.testing.assert_array_equal(drawn, again)
    assert len({*drawn.tolist()}) == len(drawn) == count
    assert {*drawn.tolist()} <= {*range(len(labels))}


@pytest.mark.parametrize("name", SAMPLERS)
def test_shares_of_first_draws(name: str) -> None:
    """One draw by Gumbel top-k follows the softmax of the logits, which fall linearly with the rank."""
    labels, rng = np.array([50.0, 10.0, 40.0, 20.0, 30.0]), np.random.default_rng(0)
    weights = np.exp(-FAST_SLOPE * np.array([4, 0, 3, 1, 2]) / 4 if name == "gumbel_top_k" else np.zeros(5))
    drawn = np.concatenate([SAMPLERS[name](rng, labels, 1) for _ in range(6000)])
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 6000, weights / weights.sum(), atol=0.02)


def test_the_configuration_allows_exactly_these_samplers() -> None:
    assert set(get_args(TrainerConfig.model_fields["sampling"].annotation)) == SAMPLERS.keys()


def test_a_draw_depends_on_its_seed_stream_and_key_alone() -> None:
    def drawn(seed: int, stream: Stream, *key: int) -> tuple[int, ...]:
        return tuple(generator(seed, stream, *key).integers(2**62, size=4).tolist())

    step, others = Stream.STEP, [drawn(0, stream, 2, 3) for stream in Stream if stream is not Stream.STEP]
    assert len({drawn(0, step, 2, 3), *others, drawn(1, step, 2, 3), drawn(0, step, 3, 2), drawn(0, step, 2)}) == 13
    assert drawn(0, step, 2, 3) == drawn(0, step, 2, 3)


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


def sampled(count: int, *chosen: int) -> np.ndarray:
    return np.isin(np.arange(count), chosen)


def test_known_weights() -> None:
    # Of the sampled segments, the first is in the table (p + (1 - p) J / S), the third is not (J / S); of the others,
    # the second is kept or dropped by its draw, and the fourth is not in the table.
    present, draws = np.array([[1, 1], [1, 1], [0, 0], [0, 0]], dtype=bool), np.array([0.0, 0.4, 0.0, 0.0])
    for keep, expected in ((0.5, [1.5, 1.0, 2.0, 0.0]), (0.3, [1.7, 0.0, 2.0, 0.0])):
        weights = segment_weights(sampled(4, 0, 2), present, keep, draws)
        np.testing.assert_allclose(weights, np.transpose([expected, expected]))  # configurations lose the same segments
    for available, expected in ((True, [1.0, 1, 1, 1]), (False, [0.0, 2, 0, 2])):  # gst and gst_one
        everything = np.full((4, 1), available)
        assert segment_weights(sampled(4, 1, 3), everything, 1.0, draws)[:, 0].tolist() == expected


@pytest.mark.parametrize("count", [1, 2])
def test_the_draws_of_training_are_unbiased(count: int, settings: Callable[..., Config]) -> None:
    """A Monte Carlo over what training draws, sampling and dropping together, within five standard errors."""
    data = open_data(settings(segments__sampled=count, trainer__steps_per_epoch=3000))
    of_graph: dict[int, list[np.ndarray]] = {}
    for step in (data.step(0, index) for index in range(3000)):
        present = (np.arange(len(step.draws)) % 2 == 0)[:, None]  # in the table
        weights = segment_weights(sampled(len(step.draws), *step.with_gradient), present, 0.3, step.draws)
        of_graph.setdefault(step.number, []).append(weights)
    for drawn in of_graph.values():
        error = np.std(drawn, axis=0) / np.sqrt(len(drawn))
        assert (np.abs(np.mean(drawn, axis=0) - 1) <= 5 * error).all()
        assert 0 < error.min() <= error.max() < 0.1


def test_a_method_reads_its_own_settings_of_segments() -> None:
    read = {name: method.segment_settings(method.whole_graph) for name, method in METHODS.items()}
    assert read["full"] < read["gst"] < read["gst_e"] < read["gst_ed"] < read["gst_efd"]
    assert read["gst_efd"] - read["gst_ed"] == {"finetune_epochs"}
    assert METHODS["gst_efd"].segment_settings(whole_graph=True) == read["full"]
