from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="needs jax (extra collect)")

from hlorank_collect.zoo.model_programs import Model, Parameters, floats, forward_program, indices, train_program


def linear(p: Parameters, x: Any) -> Any:
    return x @ p(3, 2, fan_in=3) + p(2, mean=5.0, fan_in=10**6)


def test_parameters_are_drawn_and_passed_in_order() -> None:
    function, ((weights, bias), x) = forward_program(Model(linear, (floats(4, 3),)))
    assert (weights.shape, weights.dtype, bias.shape) == ((3, 2), np.float32, (2,))
    np.testing.assert_allclose(bias, 5, atol=0.01)
    np.testing.assert_allclose(function([weights, bias], x), x @ weights + bias, rtol=1e-5)


def test_a_step_descends_the_squared_error() -> None:
    step, ((weights, bias), x, targets) = train_program(Model(linear, (floats(4, 3),), classifies=False))
    (new_weights, new_bias), loss = step([weights, bias], x, targets)
    error = x @ weights + bias - targets
    assert float(loss) == pytest.approx(np.square(error).mean(), rel=1e-5)
    np.testing.assert_allclose(new_weights, weights - 0.01 * 2 * x.T @ error / error.size, rtol=1e-4)
    np.testing.assert_allclose(new_bias, bias - 0.01 * 2 * error.sum(0) / error.size, rtol=1e-4)


def test_a_step_descends_the_cross_entropy() -> None:
    step, (parameters, x, labels) = train_program(Model(linear, (floats(4, 3),)))
    (_, bias), loss = step(parameters, x, labels)
    logits = x @ parameters[0] + parameters[1]
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert labels.shape == (4,)
    assert float(loss) == pytest.approx(-np.log(shares[np.arange(4), labels]).mean(), rel=1e-5)
    np.testing.assert_allclose(bias, parameters[1] - 0.01 * (shares - np.eye(2)[labels]).mean(0), rtol=1e-5)


def test_inputs_repeat() -> None:
    np.testing.assert_array_equal(floats(3, 2), floats(3, 2))
    np.testing.assert_array_equal(indices(7, 100), indices(7, 100))
    assert set(indices(7, 100)) == set(range(7))
