"""Layers shared by several families.

The first argument is the source of the parameters, the second the input tensor. Data layouts are words of one letter
per axis: N batch, H height, W width, C channels; b batch, t time or position, h heads, d features of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from .model import Parameters

Activation = Callable[[Array], Array]

_KERNELS = {"NHWC": "HWIO", "NCHW": "OIHW", "NWC": "WIO", "NCW": "OIW"}


def dense(p: Parameters, x: Array, width: int) -> Array:
    """Map the last axis to `width` features."""
    return x @ p(x.shape[-1], width, fan_in=x.shape[-1]) + p(width, fan_in=100)


def perceptron(p: Parameters, x: Array, hidden: int, activation: Activation) -> Array:
    """Apply two dense layers that keep the width of the last axis."""
    return dense(p, activation(dense(p, x, hidden)), x.shape[-1])


def embed(p: Parameters, indices: Array, rows: int, width: int) -> Array:
    """Look up rows of a table: (*indices.shape, width)."""
    return jnp.take(p(rows, width, fan_in=4), indices, axis=0, mode="clip")


def layer_norm(p: Parameters, x: Array) -> Array:
    """Normalize over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    normalized = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    return normalized * p(x.shape[-1], fan_in=100, mean=1.0) + p(x.shape[-1], fan_in=100)


def spatial_axes(layout: str) -> tuple[int, ...]:
    """Return the axes of height and width."""
    return tuple(axis for axis, letter in enumerate(layout) if letter in "HW")


def image_shape(layout: str, batch: int, side: int, channels: int) -> tuple[int, ...]:
    """Return the shape of square images in a data layout."""
    sizes = {"N": batch, "H": side, "W": side, "C": channels}
    return tuple(sizes[letter] for letter in layout)


def per_channel(vector: Array, layout: str) -> Array:
    """Reshape a vector of channels so that it is broadcast over the other axes."""
    return vector.reshape([-1 if letter == "C" else 1 for letter in layout])


def conv(p: Parameters, x: Array, width: int, layout: str, *, window: int = 3, stride: int = 1) -> Array:
    """Apply a convolution with "same" padding and without bias."""
    kernel = _KERNELS[layout]
    inputs = x.shape[layout.index("C")]
    sizes = {"I": inputs, "O": width, "H": window, "W": window}
    weights = p(*(sizes[letter] for letter in kernel), fan_in=inputs * window ** (len(kernel) - 2))
    strides = (stride,) * (len(kernel) - 2)
    return jax.lax.conv_general_dilated(x, weights, strides, "SAME", dimension_numbers=(layout, kernel, layout))


def conv_transpose(p: Parameters, x: Array, width: int, layout: str) -> Array:
    """Apply a transposed convolution with a window of 4 that doubles height and width."""
    kernel = _KERNELS[layout]
    inputs = x.shape[layout.index("C")]
    sizes = {"I": inputs, "O": width, "H": 4, "W": 4}
    weights = p(*(sizes[letter] for letter in kernel), fan_in=4 * inputs)
    return jax.lax.conv_transpose(x, weights, (2, 2), "SAME", dimension_numbers=(layout, kernel, layout))


def average_pool(x: Array, layout: str) -> Array:
    """Average over windows of 2 x 2, by a reshape that gives each window separate axes."""
    sizes = [(size // 2, 2) if letter in "HW" else (size,) for size, letter in zip(x.shape, layout, strict=True)]
    first, second = spatial_axes(layout)
    return x.reshape([part for size in sizes for part in size]).mean((first + 1, second + 2))


def upsample(x: Array, layout: str) -> Array:
    """Double height and width by repeating pixels: a broadcast between two reshapes."""
    first, second = spatial_axes(layout)
    repeats = (first + 1, second + 2)
    expanded = jnp.expand_dims(x, repeats)
    repeated = jnp.broadcast_to(expanded, [2 if axis in repeats else size for axis, size in enumerate(expanded.shape)])
    return repeated.reshape([2 * size if axis in (first, second) else size for axis, size in enumerate(x.shape)])


def attention(
    p: Parameters, x: Array, heads: int, *, axes: str, transposed: bool, causal: bool = False, rotary: bool = False
) -> Array:
    """Apply self-attention (Vaswani et al., "Attention is all you need", 2017).

    The heads are contracted in place, or transposed before the time and back. Later positions may be masked, and
    queries and keys rotated by their position (Su et al., "RoFormer", 2021).
    """
    split = axes + "hd"
    used = "bhtd" if transposed else split
    to_used = [split.index(letter) for letter in used]
    query, key, value = (dense(p, x, x.shape[-1]).reshape(*x.shape[:2], heads, -1).transpose(to_used) for _ in range(3))
    if rotary:
        query, key = _rotate(query, used.index("t")), _rotate(key, used.index("t"))
    queries, keys = used.replace("t", "q"), used.replace("t", "k")
    scores = jnp.einsum(f"{queries},{keys}->bhqk", query, key) * query.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tri(scores.shape[-1], dtype=bool), scores, -1e9)
    mixed = jnp.einsum(f"bhqk,{keys}->{queries}", jax.nn.softmax(scores), value)
    return dense(p, mixed.transpose([used.index(letter) for letter in split]).reshape(x.shape), x.shape[-1])


def _rotate(x: Array, time_axis: int) -> Array:
    """Rotate the pairs (i, i + d / 2) of the last axis by the position times a frequency that falls with i."""
    half, time = x.shape[-1] // 2, x.shape[time_axis]
    angles = jnp.arange(time)[:, None] * 100.0 ** -(jnp.arange(half) / half)
    angles = jnp.expand_dims(angles, [axis for axis in range(x.ndim - 1) if axis != time_axis])
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)
