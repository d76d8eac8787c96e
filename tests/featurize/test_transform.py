"""Column transforms."""

from __future__ import annotations

import json
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from hlorank.config import ConfigError, parse
from hlorank.featurize.transform import ColumnStatistics, ColumnTransform, signed_log

Scaling = Literal["standard", "minmax"]

VALUES = (np.random.default_rng(0).integers(-9, 10, (50, 4)) * [1, 0, 1000, 1]).astype(np.float32)


def fit(scaling: Scaling, *parts: np.ndarray, log_range: float = 100) -> ColumnTransform:
    statistics = ColumnStatistics(scaling, log_range)
    for part in parts:
        statistics.update(part)
    return statistics.transform()


@pytest.mark.parametrize(("scaling", "scaler"), [("standard", StandardScaler()), ("minmax", MinMaxScaler())])
def test_agrees_with_scikit_learn(scaling: Scaling, scaler: StandardScaler | MinMaxScaler) -> None:
    transform = fit(scaling, VALUES[:20], VALUES[20:])
    assert transform.columns.tolist() == [0, 2, 3]  # column 1 is constant
    assert transform.logarithmic.tolist() == [False, True, False]
    prepared = VALUES[:, [0, 2, 3]].astype(np.float64)
    prepared[:, 1] = signed_log(prepared[:, 1])
    expected = scaler.fit(prepared).transform(prepared)
    result = transform(VALUES)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_standard_scaling_has_mean_0_and_variance_1() -> None:
    result = fit("standard", VALUES)(VALUES).astype(np.float64)
    np.testing.assert_allclose(result.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(result.var(axis=0), 1, atol=1e-6)


def test_minmax_scaling_spans_0_to_1() -> None:
    result = fit("minmax", VALUES)(VALUES)
    assert (result.min(axis=0) == 0).all()
    np.testing.assert_allclose(result.max(axis=0), 1, rtol=1e-6)


def test_signed_log_keeps_sign_and_zero() -> None:
    values = np.array([-np.e + 1, 0.0, np.e - 1])
    np.testing.assert_allclose(signed_log(values), [-1, 0, 1])


@given(value=st.floats(-(2.0**99), 2.0**99, width=32))
@settings(deadline=None, max_examples=60)
def test_values_outside_the_train_range_stay_finite(value: float) -> None:
    unseen = np.full((1, 4), value, dtype=np.float32)
    assert np.isfinite(fit("standard", VALUES)(unseen)).all()
    assert np.isfinite(fit("minmax", VALUES)(unseen)).all()


def test_all_columns_constant() -> None:
    transform = fit("standard", np.ones((3, 4), dtype=np.float32))
    assert transform(VALUES).shape == (50, 0)


def test_json_round_trip() -> None:
    transform = fit("standard", VALUES)
    again = parse(ColumnTransform, json.loads(transform.model_dump_json()))
    np.testing.assert_array_equal(again(VALUES), transform(VALUES))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("columns", [0, 0, 3], "increasing column numbers"),
        ("columns", [-1, 2, 3], "increasing column numbers"),
        ("scale", [1.0, 1.0], "lists of one length"),
        ("scale", [1.0, 0.0, 1.0], "positive numbers"),
        ("scale", [1.0, float("inf"), 1.0], "positive numbers"),
        ("center", [float("nan"), 0.0, 1.0], "finite numbers"),
        ("center", None, "center=null"),
        ("columns", "some", "columns=some"),
        ("columns", [0, "two", 3], "columns="),
        ("scale", [1.0, {}, 1.0], "scale="),
    ],
)
def test_bad_json_is_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(ColumnTransform, {**fit("standard", VALUES).model_dump(mode="json"), key: value})


def test_a_missing_key_is_refused() -> None:
    values = fit("standard", VALUES).model_dump(mode="json", exclude={"scale"})
    with pytest.raises(ConfigError, match="scale: "):
        parse(ColumnTransform, values)
