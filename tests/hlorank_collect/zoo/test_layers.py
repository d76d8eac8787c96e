"""Layers compared with other data layouts and with formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="needs jax (extra collect)")

import jax

from hlorank_collect.zoo import layers
from hlorank_collect.zoo.model_programs import Model, Parameters, floats, forward_program
from hlorank_collect.zoo.recurrent import gru, lstm

IMAGES = floats(2, 6, 6, 4)
TO_NCHW = (0, 3, 1, 2)


def run(forward: Callable[..., Any], *inputs: Any, arrays: Any = None) -> tuple[Any, list[Any]]:
    """Return the outputs and the parameters, given or drawn."""
    function, (drawn, *_) = forward_program(Model(forward, inputs))
    arrays = drawn if arrays is None else arrays
    return np.asarray(jax.jit(function)(arrays, *inputs)), arrays


@pytest.mark.parametrize(
    "layer",
    [
        lambda p, x, layout: layers.conv(p, x, 8, layout, stride=2),
        lambda p, x, layout: layers.conv(p, x, 8, layout, groups=4),
        lambda p, x, layout: layers.conv_transpose(p, x, 8, layout),
        lambda p, x, layout: layers.batch_norm(p, x, layout),
        lambda p, x, layout: layers.average_pool(x, layout),
        lambda p, x, layout: layers.max_pool(x, layout),
        lambda p, x, layout: layers.upsample(x, layout),
    ],
    ids=["conv", "grouped", "transposed", "batch_norm", "average_pool", "max_pool", "upsample"],
)
def test_data_layouts_agree(layer: Callable[..., Any]) -> None:
    expected, arrays = run(lambda p, x: layer(p, x, "NHWC"), IMAGES)
    moved = [np.transpose(array, (3, 2, 0, 1)) if array.ndim == 4 else array for array in arrays]  # HWIO to OIHW
    outputs, _ = run(lambda p, x: layer(p, x, "NCHW"), IMAGES.transpose(TO_NCHW), arrays=moved)
    np.testing.assert_allclose(outputs, expected.transpose(TO_NCHW), atol=1e-5)


def test_pool_and_upsample_exactly() -> None:
    image = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    np.testing.assert_array_equal(layers.average_pool(image, "NHWC")[0, :, :, 0], [[2.5, 4.5], [10.5, 12.5]])
    np.testing.assert_array_equal(layers.max_pool(image, "NHWC")[0, :, :, 0], [[10, 11], [14, 15]])
    expected = image[0, :, :, 0].repeat(2, axis=0).repeat(2, axis=1)
    np.testing.assert_array_equal(layers.upsample(image, "NHWC")[0, :, :, 0], expected)


def time_first(x: Any) -> Any:
    return np.swapaxes(x, 0, 1)


def attend(axes: str, **options: bool) -> Callable[[Parameters, Any], Any]:
    return lambda p, x: layers.attention(p, x, 2, axes=axes, **options)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "rotary": True}])
def test_transposed_and_contracted_attention_agree(options: dict[str, bool]) -> None:
    x = floats(3, 5, 8)
    expected, arrays = run(attend("bt", transposed=True, **options), x)
    for axes, transposed in (("bt", False), ("tb", True), ("tb", False)):
        swap = time_first if axes == "tb" else np.asarray
        outputs, _ = run(attend(axes, transposed=transposed, **options), swap(x), arrays=arrays)
        np.testing.assert_allclose(swap(outputs), expected, atol=1e-5)


def test_causal_attention_does_not_depend_on_later_positions() -> None:
    x = floats(1, 5, 8)
    later = x.copy()
    later[:, 3:] += 1
    forward = attend("bt", transposed=True, causal=True, rotary=True)
    before, arrays = run(forward, x)
    after, _ = run(forward, later, arrays=arrays)
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6)
    assert np.abs(after[:, 3:] - before[:, 3:]).max() > 0.01


def test_rotary_scores_depend_only_on_the_distance() -> None:
    query, key = floats(8), floats(2, 8)[1]
    rotated = [np.asarray(layers._rotate(np.tile(vector, (6, 1)), 0)) for vector in (query, key)]
    scores = rotated[0] @ rotated[1].T
    for distance in range(-3, 4):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)


def test_layer_norm_standardizes() -> None:
    x = floats(4, 64) * 3 + 2
    outputs, (scale, shift) = run(layers.layer_norm, x)
    standardized = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    np.testing.assert_allclose(outputs, standardized * scale + shift, atol=1e-4)


@pytest.mark.parametrize("family", [lstm, gru])
def test_forms_of_a_recurrence_agree(family: Callable[..., Model]) -> None:
    config = {"axes": "bt", "batch": 3, "time": 3, "width": 5, "layers": 1}
    function, (arrays, x) = forward_program(family(**config))
    expected = np.asarray(jax.jit(function)(arrays, x))
    assert expected.shape == (3, 3, 100)
    for other in ({"hoisted": False}, {"scan": True}, {"axes": "tb"}, {"axes": "tb", "scan": True}):
        function, _ = forward_program(family(**config | other))
        swap = time_first if other.get("axes") == "tb" else np.asarray
        np.testing.assert_allclose(swap(jax.jit(function)(arrays, swap(x))), expected, atol=1e-5)
