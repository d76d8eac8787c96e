"""Families of transformers: for images, for texts, and for generating texts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from hlorank_collect.zoo.layers import attention, conv, dense, embed, layer_norm, perceptron
from hlorank_collect.zoo.model_programs import Model, Parameters, floats, indices

_CLASSES = 100


def vit(
    *, batch: int, side: int, patch: int, width: int, heads: int, layers: int, transposed: bool, layout: str = "NHWC"
) -> Model:
    """Build a classifier of images (Dosovitskiy et al., "An image is worth 16x16 words", 2020).

    Args:
        batch: number of images.
        side: height and width of an image in pixels.
        patch: height and width of a patch in pixels.
        width: features of a patch.
        heads: attention heads.
        layers: pairs of attention and perceptron.
        transposed: see `layers.attention`.
        layout: the layout of the images, NHWC or NCHW.
    """
    count = side // patch
    shape = (batch, side, side, 3) if layout == "NHWC" else (batch, 3, side, side)

    def patches(p: Parameters, x: Array) -> Array:
        if layout == "NCHW":
            return conv(p, x, width, layout, window=patch, stride=patch).reshape(batch, width, -1).swapaxes(1, 2)
        x = x.reshape(batch, count, patch, count, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        return dense(p, x.reshape(batch, count * count, -1), width)

    def forward(p: Parameters, images: Array) -> Array:
        x = patches(p, images) + p(count * count, width, fan_in=100)
        for _ in range(layers):
            x = x + attention(p, layer_norm(p, x), heads, axes="bt", transposed=transposed)
            x = x + perceptron(p, layer_norm(p, x), 2 * width, jax.nn.gelu)
        return dense(p, layer_norm(p, x.mean(1)), _CLASSES)

    return Model(forward, (floats(*shape),))


def encoder(*, axes: str, batch: int, time: int, width: int, heads: int, layers: int, transposed: bool) -> Model:
    """Build a labeller of every word of texts, with normalization after each layer (Vaswani et al., 2017).

    Args:
        axes: order of batch and time, `bt` or `tb`.
        batch: number of texts.
        time: words of a text.
        width: features of a word.
        heads: attention heads.
        layers: pairs of attention and perceptron.
        transposed: see `layers.attention`.
    """
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
    """Build a predictor of every next word of texts: rotary positions, gated perceptrons, tied embeddings.

    Args:
        axes: order of batch and time, `bt` or `tb`.
        batch: number of texts.
        time: words of a text.
        width: features of a word.
        heads: attention heads.
        layers: pairs of attention and perceptron.
        transposed: see `layers.attention`.
    """
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


def gpt(*, batch: int, time: int, width: int, heads: int, layers: int, transposed: bool) -> Model:
    """Build a predictor of every next word of texts, with learned positions (Radford et al., "GPT-2", 2019).

    Args:
        batch: number of texts.
        time: words of a text.
        width: features of a word.
        heads: attention heads.
        layers: pairs of attention and perceptron.
        transposed: see `layers.attention`.
    """
    vocabulary = 512

    def forward(p: Parameters, words: Array) -> Array:
        table = p(vocabulary, width, fan_in=width)
        x = jnp.take(table, words, axis=0, mode="clip") + p(time, width, fan_in=100)
        for _ in range(layers):
            x = x + attention(p, layer_norm(p, x), heads, axes="bt", transposed=transposed, causal=True)
            x = x + perceptron(p, layer_norm(p, x), 4 * width, jax.nn.gelu)
        return layer_norm(p, x) @ table.T

    return Model(forward, (indices(vocabulary, batch, time),))
