"""Families of convolutional networks for images and texts, in several data layouts."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from hlorank_collect.zoo.layers import (
    average_pool,
    batch_norm,
    conv,
    conv_transpose,
    dense,
    embed,
    image_shape,
    max_pool,
    per_channel,
    spatial_axes,
    upsample,
)
from hlorank_collect.zoo.model_programs import Model, Parameters, floats, indices

_CLASSES = 100


def _norm_conv(
    p: Parameters, x: Array, width: int, layout: str, *, window: int = 3, stride: int = 1, groups: int = 1
) -> Array:
    x = conv(p, x, width, layout, window=window, stride=stride, groups=groups)
    return batch_norm(p, x, layout)


def _images(layout: str, batch: int, side: int) -> NDArray[np.float32]:
    return floats(*image_shape(layout, batch, side, 3))


def resnet(
    *,
    layout: str,
    batch: int,
    side: int,
    widths: tuple[int, ...],
    blocks: tuple[int, ...] | None = None,
    bottleneck: bool = False,
    stem: int | None = None,
) -> Model:
    """Build a classifier of images (He et al., "Deep residual learning for image recognition", 2015).

    Args:
        layout: NHWC or NCHW.
        batch: number of images.
        side: height and width of an image.
        widths: channels of the stages; each after the first halves height and width.
        blocks: blocks of each stage; None is one.
        bottleneck: blocks of three convolutions around a quarter of the channels, not of two.
        stem: channels of a first convolution with a window of 7 and of a maximum, which each halve height and width;
            None is a convolution with a window of 3 and the first stage's channels.
    """

    def block(p: Parameters, x: Array, width: int, stride: int) -> Array:
        if bottleneck:
            y = jax.nn.relu(_norm_conv(p, x, width // 4, layout, window=1))
            y = jax.nn.relu(_norm_conv(p, y, width // 4, layout, stride=stride))
            y = _norm_conv(p, y, width, layout, window=1)
        else:
            y = jax.nn.relu(_norm_conv(p, x, width, layout, stride=stride))
            y = _norm_conv(p, y, width, layout)
        return jax.nn.relu(y + (conv(p, x, width, layout, window=1, stride=stride) if x.shape != y.shape else x))

    def forward(p: Parameters, x: Array) -> Array:
        if stem is None:
            x = jax.nn.relu(_norm_conv(p, x, widths[0], layout))
        else:
            x = max_pool(jax.nn.relu(_norm_conv(p, x, stem, layout, window=7, stride=2)), layout)
        for stage, width in enumerate(widths):
            for position in range(blocks[stage] if blocks else 1):
                x = block(p, x, width, stride=2 if stage and not position else 1)
        return dense(p, x.mean(spatial_axes(layout)), _CLASSES)

    return Model(forward, (_images(layout, batch, side),))


def efficientnet(
    *, layout: str, batch: int, side: int, stem: int, blocks: tuple[tuple[int, int, int, int], ...]
) -> Model:
    """Build a classifier of images by inverted bottlenecks with gates (Tan and Le, "EfficientNet", 2019).

    Args:
        layout: NHWC or NCHW.
        batch: number of images.
        side: height and width of an image.
        stem: channels of the first convolution.
        blocks: expansion (channels inside the block, as a multiple of its input channels), channels, window and stride
            of each.
    """

    def block(p: Parameters, x: Array, expansion: int, width: int, window: int, stride: int) -> Array:
        before = x.shape[layout.index("C")]
        inner = expansion * before
        y = jax.nn.silu(_norm_conv(p, x, inner, layout, window=1)) if expansion > 1 else x
        y = jax.nn.silu(_norm_conv(p, y, inner, layout, window=window, stride=stride, groups=inner))
        squeezed = jax.nn.silu(dense(p, y.mean(spatial_axes(layout)), before // 2))
        gates = jax.nn.sigmoid(dense(p, squeezed, inner))
        y = y * jnp.expand_dims(gates, spatial_axes(layout))
        y = _norm_conv(p, y, width, layout, window=1)
        return x + y if x.shape == y.shape else y

    def forward(p: Parameters, x: Array) -> Array:
        x = jax.nn.silu(_norm_conv(p, x, stem, layout, stride=2))
        for one in blocks:
            x = block(p, x, *one)
        return dense(p, x.mean(spatial_axes(layout)), _CLASSES)

    return Model(forward, (_images(layout, batch, side),))


def densenet(
    *, layout: str, batch: int, side: int, growth: int, blocks: tuple[int, ...], bottleneck: bool = False
) -> Model:
    """Build a classifier of images by blocks that keep all earlier features (Huang et al., "Densely connected", 2016).

    Args:
        layout: NHWC or NCHW.
        batch: number of images.
        side: height and width of an image.
        growth: channels that a layer adds.
        blocks: layers of each block; transitions between blocks halve channels, height and width.
        bottleneck: begin each layer with a convolution to four times `growth` channels, with a window of 1.
    """
    channel = layout.index("C")

    def forward(p: Parameters, x: Array) -> Array:
        x = conv(p, x, 2 * growth, layout)
        for block, layers in enumerate(blocks):
            if block:
                x = average_pool(conv(p, x, x.shape[channel] // 2, layout, window=1), layout)
            for _ in range(layers):
                new = jax.nn.relu(batch_norm(p, x, layout))
                if bottleneck:
                    new = jax.nn.relu(_norm_conv(p, new, 4 * growth, layout, window=1))
                new = conv(p, new, growth, layout)
                x = jnp.concatenate([x, new], axis=channel)
        return dense(p, x.mean(spatial_axes(layout)), _CLASSES)

    return Model(forward, (_images(layout, batch, side),))


def unet(
    *,
    layout: str,
    batch: int,
    side: int,
    widths: tuple[int, ...],
    learned: bool,
    convolutions: int = 1,
    normalized: bool = False,
) -> Model:
    """Build a regressor of every pixel of images (Ronneberger et al., "U-Net", 2015).

    Args:
        layout: NHWC or NCHW.
        batch: number of images.
        side: height and width of an image.
        widths: channels of the levels; each after the first halves height and width.
        learned: upsample by transposed convolutions; else by repeated pixels.
        convolutions: number of them at each level, down and up.
        normalized: with batch normalization after each of them.
    """
    channel = layout.index("C")

    def level(p: Parameters, x: Array, width: int) -> Array:
        for _ in range(convolutions):
            x = jax.nn.relu((_norm_conv if normalized else conv)(p, x, width, layout))
        return x

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
    """Build an autoencoder of images: strided convolutions to vectors of `code` features, and back.

    Args:
        layout: NHWC or NCHW.
        batch: number of images.
        side: height and width of an image.
        widths: channels of the convolutions; each halves height and width.
        code: width of the vectors.
    """

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
    """Build a classifier of texts (Kim, "Convolutional neural networks for sentence classification", 2014).

    Args:
        layout: NWC or NCW, where W is the word.
        batch: number of texts.
        time: words of a text.
        width: the width of the word embeddings.
        filters: features of each convolution.
        windows: the window sizes of the convolutions, in words.
    """

    def forward(p: Parameters, words: Array) -> Array:
        x = embed(p, words, 1000, width)
        x = x if layout == "NWC" else x.swapaxes(1, 2)
        features = [conv(p, x, filters, layout, window=window) for window in windows]
        maxima = [jax.nn.relu(y + per_channel(p(filters, fan_in=100), layout)).max(layout.index("W")) for y in features]
        return dense(p, jnp.concatenate(maxima, axis=-1), _CLASSES)

    return Model(forward, (indices(1000, batch, time),))
