"""Families of convolutional networks of one to three dimensions, of which padding to a TPU's tiles decides the speed.

A data layout is a word of one letter per axis: N batch, C channels, and D, H and W, the last ones for fewer dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from .layers import dense, layer_norm
from .model import Model, Parameters, floats

_CLASSES = 100


def _spatial(layout: str) -> str:
    return "".join(letter for letter in layout if letter not in "NC")


def _shape(layout: str, batch: int, side: int, channels: int) -> tuple[int, ...]:
    return tuple({"N": batch, "C": channels}.get(letter, side) for letter in layout)


def convolve(
    p: Parameters,
    x: Array,
    width: int,
    layout: str,
    *,
    window: int = 3,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    causal: bool = False,
) -> Array:
    """Apply a convolution with "same" padding and a bias; a causal one sees earlier positions only."""
    spatial, inputs = _spatial(layout), x.shape[layout.index("C")]
    kernel = spatial + "IO" if layout[-1] == "C" else "OI" + spatial
    sizes = {"I": inputs // groups, "O": width}
    fan_in = inputs // groups * window ** len(spatial)
    weights = p(*(sizes.get(letter, window) for letter in kernel), fan_in=fan_in).astype(x.dtype)
    padding: str | list[tuple[int, int]] = [((window - 1) * dilation, 0)] * len(spatial) if causal else "SAME"
    result = jax.lax.conv_general_dilated(
        x,
        weights,
        (stride,) * len(spatial),
        padding,
        rhs_dilation=(dilation,) * len(spatial),
        dimension_numbers=(layout, kernel, layout),
        feature_group_count=groups,
    )
    return result + per_channel(p, width, layout).astype(x.dtype)


def per_channel(p: Parameters, width: int, layout: str, mean: float = 0.0) -> Array:
    """Return a parameter for each channel, which is broadcast over the other axes."""
    return p(width, fan_in=100, mean=mean).reshape([-1 if letter == "C" else 1 for letter in layout])


def normalize(p: Parameters, x: Array, layout: str) -> Array:
    """Normalize each channel over the batch (Ioffe and Szegedy, "Batch normalization", 2015)."""
    axes = [axis for axis, letter in enumerate(layout) if letter != "C"]
    centred = x - x.mean(axes, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(axes, keepdims=True) + 1e-5)
    width = x.shape[layout.index("C")]
    return scaled * per_channel(p, width, layout, 1.0) + per_channel(p, width, layout)


def pool(x: Array, layout: str, *, window: int = 2, stride: int = 2) -> Array:
    """Return the maximum of each window."""
    sizes, strides = ([1 if letter in "NC" else value for letter in layout] for value in (window, stride))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, sizes, strides, "SAME")


def enlarge(x: Array, layout: str) -> Array:
    """Double the spatial axes by repeating values."""
    for axis, letter in enumerate(layout):
        x = x if letter in "NC" else jnp.repeat(x, 2, axis=axis)
    return x


def _head(p: Parameters, x: Array, layout: str) -> Array:
    axes = [axis for axis, letter in enumerate(layout) if letter not in "NC"]
    return dense(p, x.mean(axes), _CLASSES)


def _classifier(
    layout: str, batch: int, side: int, channels: int, body: Callable[[Parameters, Array], Array], dtype: str
) -> Model:
    def forward(p: Parameters, images: Array) -> Array:
        return _head(p, body(p, images.astype(dtype)).astype("float32"), layout)

    return Model(forward, (floats(*_shape(layout, batch, side, channels)),))


def _regressor(
    layout: str, batch: int, side: int, channels: int, body: Callable[[Parameters, Array], Array], dtype: str
) -> Model:
    def forward(p: Parameters, images: Array) -> Array:
        return body(p, images.astype(dtype)).astype("float32")

    return Model(forward, (floats(*_shape(layout, batch, side, channels)),), classifies=False)


def resnet(
    *, layout: str, batch: int, side: int, width: int, blocks: int, norm: bool = False, dtype: str = "float32"
) -> Model:
    """Build bottleneck blocks with skips (He et al., "Deep residual learning", 2015)."""

    def body(p: Parameters, x: Array) -> Array:
        x = convolve(p, x, width, layout, window=7, stride=2)
        for _ in range(blocks):
            y = x
            for size, window in ((width // 4, 1), (width // 4, 3), (width, 1)):
                y = convolve(p, jax.nn.relu(normalize(p, y, layout) if norm else y), size, layout, window=window)
            x = x + y
        return x

    return _classifier(layout, batch, side, 3, body, dtype)


def vgg(*, layout: str, batch: int, side: int, widths: Sequence[int], window: int = 3, dtype: str = "float32") -> Model:
    """Build pairs of convolution and pooling (Simonyan and Zisserman, 2014; in 3-D Tran et al., "C3D", 2014)."""

    def body(p: Parameters, x: Array) -> Array:
        for width in widths:
            x = pool(jax.nn.relu(convolve(p, x, width, layout, window=window)), layout)
        return x

    return _classifier(layout, batch, side, 3, body, dtype)


def alexnet(*, layout: str, batch: int, side: int, widths: Sequence[int], dtype: str = "float32") -> Model:
    """Build a network of large windows first (Krizhevsky et al., 2012)."""

    def body(p: Parameters, x: Array) -> Array:
        x = pool(jax.nn.relu(convolve(p, x, widths[0], layout, window=11, stride=4)), layout, window=3)
        x = pool(jax.nn.relu(convolve(p, x, widths[1], layout, window=5)), layout, window=3)
        for width in widths[2:]:
            x = jax.nn.relu(convolve(p, x, width, layout))
        return x

    return _classifier(layout, batch, side, 3, body, dtype)


def mobilenet(*, layout: str, batch: int, side: int, widths: Sequence[int], dtype: str = "float32") -> Model:
    """Build depthwise convolutions between dense ones (Howard et al., "MobileNets", 2017)."""

    def body(p: Parameters, x: Array) -> Array:
        x = convolve(p, x, widths[0], layout, stride=2)
        for width in widths[1:]:
            channels = x.shape[layout.index("C")]
            x = jax.nn.relu(convolve(p, x, channels, layout, groups=channels))
            x = jax.nn.relu(convolve(p, x, width, layout, window=1))
        return x

    return _classifier(layout, batch, side, 3, body, dtype)


def densenet(*, layout: str, batch: int, side: int, growth: int, layers: int, dtype: str = "float32") -> Model:
    """Build layers that see all earlier ones (Huang et al., "Densely connected networks", 2016)."""
    channel = layout.index("C")

    def body(p: Parameters, x: Array) -> Array:
        x = convolve(p, x, 2 * growth, layout, stride=2)
        for _ in range(layers):
            x = jnp.concatenate([x, convolve(p, jax.nn.relu(x), growth, layout)], axis=channel)
        return x

    return _classifier(layout, batch, side, 3, body, dtype)


def inception(*, layout: str, batch: int, side: int, width: int, blocks: int, dtype: str = "float32") -> Model:
    """Build parallel branches of several windows (Szegedy et al., "Going deeper with convolutions", 2014)."""
    channel = layout.index("C")

    def body(p: Parameters, x: Array) -> Array:
        x = convolve(p, x, width, layout, stride=2)
        for _ in range(blocks):
            reduced = [jax.nn.relu(convolve(p, x, width // 4, layout, window=1)) for _ in range(2)]
            branches = [convolve(p, x, width // 4, layout, window=1)]
            for y, size, window in zip(reduced, (width // 2, width // 4), (3, 5), strict=True):
                branches.append(convolve(p, y, size, layout, window=window))
            x = jax.nn.relu(jnp.concatenate(branches, axis=channel))
        return x

    return _classifier(layout, batch, side, 3, body, dtype)


def squeeze(*, layout: str, batch: int, side: int, width: int, blocks: int, dtype: str = "float32") -> Model:
    """Build blocks that weigh their channels (Hu et al., "Squeeze-and-excitation networks", 2017)."""
    axes = tuple(axis for axis, letter in enumerate(layout) if letter not in "NC")

    def body(p: Parameters, x: Array) -> Array:
        x = convolve(p, x, width, layout, window=5, stride=2)
        for _ in range(blocks):
            y = convolve(p, jax.nn.relu(x), width, layout)
            gates = jax.nn.sigmoid(dense(p, jax.nn.relu(dense(p, y.mean(axes), width // 8)), width))
            x = x + y * jnp.expand_dims(gates, axes)
        return x

    return _classifier(layout, batch, side, 3, body, dtype)


def unet_nd(
    *, layout: str, batch: int, side: int, widths: Sequence[int], channels: int = 3, dtype: str = "float32"
) -> Model:
    """Build a contracting and an expanding path (Ronneberger et al., 2015; in 3-D Cicek et al., 2016)."""
    channel = layout.index("C")

    def body(p: Parameters, x: Array) -> Array:
        skipped = []
        for width in widths[:-1]:
            skipped.append(jax.nn.relu(convolve(p, x, width, layout)))
            x = pool(skipped[-1], layout)
        x = jax.nn.relu(convolve(p, x, widths[-1], layout))
        for width in reversed(widths[:-1]):
            x = jnp.concatenate([enlarge(x, layout), skipped.pop()], axis=channel)
            x = jax.nn.relu(convolve(p, x, width, layout))
        return convolve(p, x, channels, layout, window=1)

    return _regressor(layout, batch, side, channels, body, dtype)


def deeplab(*, layout: str, batch: int, side: int, width: int, rates: Sequence[int], dtype: str = "float32") -> Model:
    """Build parallel dilated convolutions (Chen et al., "Rethinking atrous convolution", 2017)."""

    def body(p: Parameters, x: Array) -> Array:
        x = jax.nn.relu(convolve(p, x, width, layout, window=5, stride=2))
        y = sum((convolve(p, x, width, layout, dilation=rate) for rate in rates), start=convolve(p, x, width, layout))
        return convolve(p, enlarge(jax.nn.relu(y), layout), 3, layout, window=1)

    return _regressor(layout, batch, side, 3, body, dtype)


def pyramid(*, layout: str, batch: int, side: int, width: int, levels: int, dtype: str = "float32") -> Model:
    """Build features of several scales, joined from coarse to fine (Lin et al., "Feature pyramid networks", 2016)."""

    def body(p: Parameters, x: Array) -> Array:
        features = []
        for level in range(levels):
            x = jax.nn.relu(convolve(p, x, width * 2**level, layout, stride=2))
            features.append(convolve(p, x, width, layout, window=1))
        x = features.pop()
        while features:
            x = enlarge(x, layout) + features.pop()
        return convolve(p, x, 3, layout)

    return _classifier(layout, batch, side, 3, body, dtype)


def gan(*, layout: str, batch: int, side: int, widths: Sequence[int], dtype: str = "float32") -> Model:
    """Build a generator of images from vectors (Radford et al., "DCGAN", 2015)."""

    def forward(p: Parameters, codes: Array) -> Array:
        x = dense(p, codes, widths[0] * side ** len(_spatial(layout))).astype(dtype)
        x = x.reshape(_shape(layout, batch, side, widths[0]))
        for width in widths[1:]:
            x = enlarge(jax.nn.relu(normalize(p, x, layout)), layout)
            x = convolve(p, x, width, layout, window=5)
        return jnp.tanh(convolve(p, x, 3, layout)).astype("float32")

    return Model(forward, (floats(batch, 128),), classifies=False)


def wavenet(*, layout: str, batch: int, time: int, width: int, layers: int, dtype: str = "float32") -> Model:
    """Build gated causal convolutions of growing dilation (van den Oord et al., "WaveNet", 2016)."""

    def body(p: Parameters, x: Array) -> Array:
        x = convolve(p, x, width, layout, window=2, causal=True)
        total = jnp.zeros_like(x)
        for layer in range(layers):
            options = {"window": 2, "dilation": 2**layer, "causal": True}
            gate = jax.nn.sigmoid(convolve(p, x, width, layout, **options))
            y = convolve(p, jnp.tanh(convolve(p, x, width, layout, **options)) * gate, width, layout, window=1)
            x, total = x + y, total + y
        return convolve(p, jax.nn.relu(total), 4, layout, window=1)

    return _regressor(layout, batch, time, 4, body, dtype)


def speech(*, layout: str, batch: int, time: int, width: int, layers: int, dtype: str = "float32") -> Model:
    """Build strided convolutions over time and dense layers (Hannun et al., "Deep Speech", 2014)."""
    channel = layout.index("C")

    def body(p: Parameters, x: Array) -> Array:
        for _ in range(layers):
            x = jax.nn.relu(convolve(p, x, width, layout, window=11, stride=2))
        return x

    def forward(p: Parameters, sound: Array) -> Array:
        x = jnp.moveaxis(body(p, sound.astype(dtype)), channel, -1).astype("float32")
        return dense(p, jax.nn.relu(dense(p, layer_norm(p, x), width)), _CLASSES)

    return Model(forward, (floats(*_shape(layout, batch, time, 80)),))


def convnext(*, layout: str, batch: int, side: int, width: int, blocks: int, dtype: str = "float32") -> Model:
    """Build large depthwise windows between dense layers (Liu et al., "A ConvNet for the 2020s", 2022)."""

    def body(p: Parameters, x: Array) -> Array:
        x = convolve(p, x, width, layout, window=4, stride=4)
        for _ in range(blocks):
            y = normalize(p, convolve(p, x, width, layout, window=7, groups=width), layout)
            y = jax.nn.gelu(convolve(p, y, 4 * width, layout, window=1))
            x = x + convolve(p, y, width, layout, window=1)
        return x

    return _classifier(layout, batch, side, 3, body, dtype)


def superres(*, layout: str, batch: int, side: int, width: int, blocks: int, dtype: str = "float32") -> Model:
    """Build residual blocks, and pixels from channels (Lim et al., "Enhanced deep residual networks", 2017)."""

    def body(p: Parameters, x: Array) -> Array:
        x = convolve(p, x, width, layout)
        for _ in range(blocks):
            x = x + convolve(p, jax.nn.relu(convolve(p, x, width, layout)), width, layout)
        x = convolve(p, x, 12, layout)
        n, h, w, c = (layout.index(letter) for letter in "NHWC")
        split = x.transpose(n, h, w, c).reshape(batch, side, side, 2, 2, 3)
        return split.transpose(0, 1, 3, 2, 4, 5).reshape(batch, 2 * side, 2 * side, 3)

    return _regressor(layout, batch, side, 3, body, dtype)
