"""Families of dense layers only: multi-layer perceptrons and mixers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from hlorank_collect.zoo.layers import dense, layer_norm, perceptron
from hlorank_collect.zoo.model_programs import Model, Parameters, floats


def mlp(*, batch: int, side: int, widths: tuple[int, ...], groups: int = 1, feature_major: bool = False) -> Model:
    """Build a classifier of images of `side` x `side` pixels, flattened.

    Args:
        batch: number of images.
        side: height and width of an image; side * side is a multiple of `groups`.
        widths: widths of the layers, multiples of `groups`; the last is the number of classes.
        groups: groups of features that a layer maps independently of each other.
        feature_major: keep the activations as (features, batch).
    """

    def forward(p: Parameters, images: Array) -> Array:
        x = images.reshape(batch, -1)
        x = x.T if feature_major else x
        for layer, width in enumerate(widths):
            x = jnp.tanh(x) if layer else x
            inputs, outputs = x.size // batch // groups, width // groups
            weights = p(groups, outputs, inputs, fan_in=inputs)
            if feature_major:
                x = weights @ x.reshape(groups, inputs, batch)
                x = x.reshape(width, batch) + p(width, 1, fan_in=100)
            else:
                x = jnp.einsum("bgi,goi->bgo", x.reshape(batch, groups, inputs), weights)
                x = x.reshape(batch, width) + p(width, fan_in=100)
        return x.T if feature_major else x

    return Model(forward, (floats(batch, side, side),))


def mixer(*, batch: int, side: int, patch: int, width: int, layers: int, swap: bool) -> Model:
    """Build a classifier of images (Tolstikhin et al., "MLP-Mixer", 2021).

    Args:
        batch: number of images.
        side: height and width of an image in pixels.
        patch: height and width of a patch.
        width: channels of a patch.
        layers: pairs of a perceptron over patches and one over channels.
        swap: transpose the patches to the last axis; else contract them in place.
    """
    count = side // patch

    def mix_patches(p: Parameters, x: Array) -> Array:
        if swap:
            return perceptron(p, x.swapaxes(1, 2), 2 * x.shape[1], jax.nn.gelu).swapaxes(1, 2)
        patches = x.shape[1]
        hidden = jnp.einsum("bsc,st->btc", x, p(patches, 2 * patches, fan_in=patches))
        return jnp.einsum("btc,ts->bsc", jax.nn.gelu(hidden), p(2 * patches, patches, fan_in=2 * patches))

    def forward(p: Parameters, images: Array) -> Array:
        x = images.reshape(batch, count, patch, count, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = dense(p, x.reshape(batch, count * count, -1), width)
        for _ in range(layers):
            x = x + mix_patches(p, layer_norm(p, x))
            x = x + perceptron(p, layer_norm(p, x), 2 * width, jax.nn.gelu)
        return dense(p, x.mean(1), 100)

    return Model(forward, (floats(batch, side, side, 3),))
