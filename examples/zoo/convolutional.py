"""Families of convolutional networks for images and texts, in several data layouts."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from .layers import (
    average_pool,
    conv,
    conv_transpose,
    dense,
    embed,
    image_shape,
    per_channel,
    upsample,
)
from .model import Model, Parameters, floats, indices

_CLASSES = 100


def _images(layout: str, batch: int, side: int) -> NDArray[np.float32]:
    return floats(*image_shape(layout, batch, side, 3))


def unet(
    *,
    layout: str,
    batch: int,
    side: int,
    widths: tuple[int, ...],
    learned: bool,
) -> Model:
    """Build a regressor of every pixel of images (Ronneberger et al., "U-Net", 2015)."""
    channel = layout.index("C")

    def level(p: Parameters, x: Array, width: int) -> Array:
        return jax.nn.relu(conv(p, x, width, layout))

    def forward(p: Parameters, x: Array) -> Array:
        skipped = []
        for width in widths[:-1]:
            x = level(p, x, width)
            skipped.append(x)
            x = average_pool(x, layout)
        x = level(p, x, widths[-1])
        for width in reversed(widths[:-1]):
            x = conv_transpose(p, x, width, layout) if learned else upsample(x, layout)
            x = level(p, jnp.concatenate([x, skipped.pop()], axis=channel), width)
        return conv(p, x, 3, layout, window=1)

    return Model(forward, (_images(layout, batch, side),), classifies=False)


def autoencoder(*, layout: str, batch: int, side: int, widths: tuple[int, ...], code: int) -> Model:
    """Build an autoencoder of images: strided convolutions to vectors of `code` features, and back."""

    def bias(p: Parameters, x: Array) -> Array:
        return x + per_channel(p(x.shape[layout.index("C")], fan_in=100), layout)

    def forward(p: Parameters, x: Array) -> Array:
        for width in widths:
            x = jax.nn.relu(bias(p, conv(p, x, width, layout, stride=2)))
        inner = x.shape
        x = jnp.tanh(dense(p, x.reshape(batch, -1), code))
        x = jax.nn.relu(dense(p, x, prod(inner[1:]))).reshape(inner)
        for width in (*widths[-2::-1], 3):
            x = bias(p, conv_transpose(p, jax.nn.relu(x), width, layout))
        return x

    return Model(forward, (_images(layout, batch, side),), classifies=False)


def textcnn(*, layout: str, batch: int, time: int, width: int, filters: int, windows: tuple[int, ...]) -> Model:
    """Build a classifier of texts (Kim, "Convolutional neural networks for sentence classification", 2014)."""

    def forward(p: Parameters, words: Array) -> Array:
        x = embed(p, words, 1000, width)
        x = x if layout == "NWC" else x.swapaxes(1, 2)
        features = [conv(p, x, filters, layout, window=window) for window in windows]
        maxima = [jax.nn.relu(y + per_channel(p(filters, fan_in=100), layout)).max(layout.index("W")) for y in features]
        return dense(p, jnp.concatenate(maxima, axis=-1), _CLASSES)

    return Model(forward, (indices(1000, batch, time),))
