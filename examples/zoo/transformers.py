"""Families of transformers: for images, for texts, and for generating texts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from .layers import attention, dense, embed, layer_norm, perceptron
from .model import Model, Parameters, floats, indices

_CLASSES = 100


def vit(*, batch: int, side: int, patch: int, width: int, heads: int, layers: int, transposed: bool) -> Model:
    """Build a classifier of images (Dosovitskiy et al., "An image is worth 16x16 words", 2020)."""
    count = side // patch

    def forward(p: Parameters, images: Array) -> Array:
        x = images.reshape(batch, count, patch, count, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = dense(p, x.reshape(batch, count * count, -1), width) + p(count * count, width, fan_in=100)
        for _ in range(layers):
            x = x + attention(p, layer_norm(p, x), heads, axes="bt", transposed=transposed)
            x = x + perceptron(p, layer_norm(p, x), 2 * width, jax.nn.gelu)
        return dense(p, layer_norm(p, x.mean(1)), _CLASSES)

    return Model(forward, (floats(batch, side, side, 3),))


def encoder(*, axes: str, batch: int, time: int, width: int, heads: int, layers: int, transposed: bool) -> Model:
    """Build a labeller of every word of texts, with normalization after each layer (Vaswani et al., 2017)."""
    shape = (batch, time) if axes == "bt" else (time, batch)

    def forward(p: Parameters, words: Array) -> Array:
        positions = jnp.expand_dims(p(time, width, fan_in=100), axes.index("b"))
        x = embed(p, words, 500, width) + positions
        for _ in range(layers):
            x = layer_norm(p, x + attention(p, x, heads, axes=axes, transposed=transposed))
            x = layer_norm(p, x + perceptron(p, x, 4 * width, jax.nn.relu))
        return dense(p, x, _CLASSES)

    return Model(forward, (indices(500, *shape),))


def causal(*, axes: str, batch: int, time: int, width: int, heads: int, layers: int, transposed: bool) -> Model:
    """Build a predictor of every next word of texts: rotary positions, gated perceptrons, tied embeddings."""
    vocabulary = 256
    shape = (batch, time) if axes == "bt" else (time, batch)

    def forward(p: Parameters, words: Array) -> Array:
        table = p(vocabulary, width, fan_in=width)
        x = jnp.take(table, words, axis=0, mode="clip")
        for _ in range(layers):
            x = x + attention(p, layer_norm(p, x), heads, axes=axes, transposed=transposed, causal=True, rotary=True)
            y = layer_norm(p, x)
            x = x + dense(p, jax.nn.silu(dense(p, y, 2 * width)) * dense(p, y, 2 * width), width)
        return layer_norm(p, x) @ table.T

    return Model(forward, (indices(vocabulary, *shape),))
