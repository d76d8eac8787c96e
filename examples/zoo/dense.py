"""Families of dense layers only: multi-layer perceptrons and mixers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from .layers import dense, layer_norm, perceptron
from .model import Model, Parameters, floats


def mlp(*, batch: int, side: int, widths: tuple[int, ...]) -> Model:
    """Build a classifier of images of `side` x `side` pixels, flattened."""

    def forward(p: Parameters, images: Array) -> Array:
        x = images.reshape(batch, -1)
        for layer, width in enumerate(widths):
            x = dense(p, jnp.tanh(x) if layer else x, width)
        return x

    return Model(forward, (floats(batch, side, side),))


def mixer(*, batch: int, side: int, patch: int, width: int, layers: int, swap: bool) -> Model:
    """Build a classifier of images (Tolstikhin et al., "MLP-Mixer", 2021)."""
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
