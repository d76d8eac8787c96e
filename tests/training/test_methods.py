"""Sampling of segments, and weights that are unbiased over sampling and dropping, missing entries included."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from hlorank.config import Config
from hlorank.training.methods import METHODS, sample_segments, segment_weights
from tests.training.training_helpers import open_data

Settings = Callable[..., Config]


def sampled(count: int, *chosen: int) -> np.ndarray:
    return np.isin(np.arange(count), chosen)


def test_a_sample_is_increasing_and_has_no_more_segments_than_there_are() -> None:
    for count, expected in ((1, 1), (3, 3), (9, 5)):
        with_gradient, draws = sample_segments(np.random.default_rng(0), 5, count)
        assert len(with_gradient) == expected
        assert (np.diff(with_gradient) > 0).all()
        assert draws.shape == (5,)
        assert ((draws >= 0) & (draws < 1)).all()


def test_known_weights() -> None:
    present = np.array([[True], [True], [False], [False]])
    draws = np.array([0.0, 0.4, 0.0, 0.0])
    weights = segment_weights(sampled(4, 0, 2), present, 0.5, draws)
    # Of the sampled segments, the first is in the table (p + (1 - p) J / S), the third is not (J / S); of the others,
    # the second is kept, and the fourth is not in the table.
    assert weights[:, 0].tolist() == [1.5, 1.0, 2.0, 0.0]
    assert segment_weights(sampled(4, 0, 2), present, 0.3, draws)[:, 0].tolist() == pytest.approx([1.7, 0, 2, 0])


def test_gst_and_gst_one_are_special_cases() -> None:
    draws = np.random.default_rng(0).random(5)
    everything = np.ones((5, 2), dtype=bool)
    assert (segment_weights(sampled(5, 1), everything, 1.0, draws) == 1).all()
    alone = segment_weights(sampled(5, 1, 3), ~everything, 1.0, draws)
    assert alone[:, 0].tolist() == [0, 2.5, 0, 2.5, 0]


def test_configurations_lose_the_same_segments() -> None:
    weights = segment_weights(sampled(40, 0), np.ones((40, 7), dtype=bool), 0.5, np.random.default_rng(0).random(40))
    assert (weights == weights[:, :1]).all()
    assert 10 < weights[1:, 0].sum() < 30


@pytest.mark.parametrize("keep", [1.0, 0.5, 0.2])
@pytest.mark.parametrize("count", [1, 2])
def test_the_expected_weight_of_every_segment_is_one(keep: float, count: int) -> None:
    """Exactly: over all samples, and over draws on both sides of p."""
    present = np.array([[True, False], [True, True], [False, False], [False, True], [True, False]])
    expected = np.zeros(present.shape)
    samples = list(combinations(range(5), count))
    for chosen in samples:
        for draw, probability in ((0.0, keep), (0.999999, 1 - keep)):
            weights = segment_weights(sampled(5, *chosen), present, keep, np.full(5, draw))
            expected += probability * weights / len(samples)
    np.testing.assert_allclose(expected, 1, rtol=1e-12)


@pytest.mark.parametrize("count", [1, 2])
def test_the_draws_of_training_are_unbiased(count: int, settings: Settings) -> None:
    """A Monte Carlo over what training draws, sampling and dropping together, within five standard errors."""
    config = settings(segments__sampled=count, trainer__steps_per_epoch=3000)
    data = open_data(config)
    of_graph: dict[int, list[np.ndarray]] = {}
    for step in (data.step(0, index) for index in range(3000)):
        segments = len(step.draws)
        some = (np.arange(segments) % 2 == 0)[:, None]
        chosen = sampled(segments, *step.with_gradient)
        cases = {"gst_one": (some & False, 1.0), "gst_e": (some, 1.0), "gst_ed": (some, 0.3)}
        weights = [segment_weights(chosen, present, keep, step.draws) for present, keep in cases.values()]
        of_graph.setdefault(step.number, []).append(np.stack(weights))
    for weights in of_graph.values():
        drawn = np.stack(weights)  # (steps, methods, segments, 1)
        error = drawn.std(axis=0) / np.sqrt(len(drawn))
        assert (np.abs(drawn.mean(axis=0) - 1) <= 5 * error + 1e-12).all()
        assert (error[2] > 0).all()  # dropping
        assert error.max() < 0.1


def test_a_method_reads_its_own_settings_of_segments() -> None:
    read = {name: method.segment_settings(method.whole_graph) for name, method in METHODS.items()}
    assert read["full"] < read["gst"] < read["gst_e"] < read["gst_ed"] < read["gst_efd"]
    assert read["gst_efd"] - read["gst_ed"] == {"finetune_epochs"}
    assert METHODS["gst_efd"].segment_settings(whole_graph=True) == read["full"]
