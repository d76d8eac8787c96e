"""Further families without convolutions: attention of several forms, experts, state spaces and products of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from .layers import attention, dense, embed, layer_norm, perceptron
from .model import Model, Parameters, floats, indices

_CLASSES = 100


def seq2seq(*, batch: int, time: int, width: int, heads: int, layers: int) -> Model:
    """Build an encoder, and a decoder with attention to it (Vaswani et al., "Attention is all you need", 2017)."""

    def forward(p: Parameters, source: Array, target: Array) -> Array:
        memory, x = embed(p, source, 1000, width), embed(p, target, 1000, width)
        for _ in range(layers):
            memory = memory + attention(p, layer_norm(p, memory), heads, axes="bt", transposed=True)
            memory = memory + perceptron(p, layer_norm(p, memory), 4 * width, jax.nn.relu)
        for _ in range(layers):
            x = x + attention(p, layer_norm(p, x), heads, axes="bt", transposed=False, causal=True)
            x = x + _cross(p, layer_norm(p, x), memory, heads)
            x = x + perceptron(p, layer_norm(p, x), 4 * width, jax.nn.relu)
        return dense(p, x, _CLASSES)

    return Model(forward, (indices(1000, batch, time), indices(1000, batch, time)))


def _cross(p: Parameters, x: Array, memory: Array, heads: int) -> Array:
    width = x.shape[-1]
    query = dense(p, x, width).reshape(*x.shape[:-1], heads, -1)
    key, value = (dense(p, memory, width).reshape(*memory.shape[:-1], heads, -1) for _ in range(2))
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5)
    return dense(p, jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape), width)


def perceiver(*, batch: int, inputs: int, latents: int, width: int, heads: int, layers: int) -> Model:
    """Build few latent vectors that read a large input (Jaegle et al., "Perceiver", 2021)."""

    def forward(p: Parameters, data: Array) -> Array:
        memory = dense(p, data, width)
        x = jnp.broadcast_to(p(latents, width, fan_in=100), (batch, latents, width))
        x = x + _cross(p, layer_norm(p, x), memory, heads)
        for _ in range(layers):
            x = x + attention(p, layer_norm(p, x), heads, axes="bt", transposed=True)
            x = x + perceptron(p, layer_norm(p, x), 2 * width, jax.nn.gelu)
        return dense(p, x.mean(1), _CLASSES)

    return Model(forward, (floats(batch, inputs, 32),))


def swin(*, batch: int, side: int, window: int, width: int, heads: int, layers: int) -> Model:
    """Build attention within windows of images, shifted in every other layer (Liu et al., "Swin", 2021)."""
    count = side // window

    def forward(p: Parameters, x: Array) -> Array:
        x = dense(p, x, width)
        for layer in range(layers):
            y = jnp.roll(layer_norm(p, x), -(layer % 2) * window // 2, axis=(1, 2))
            y = y.reshape(batch, count, window, count, window, width).transpose(0, 1, 3, 2, 4, 5)
            y = attention(p, y.reshape(-1, window * window, width), heads, axes="bt", transposed=True)
            y = y.reshape(batch, count, count, window, window, width).transpose(0, 1, 3, 2, 4, 5)
            x = x + jnp.roll(y.reshape(batch, side, side, width), (layer % 2) * window // 2, axis=(1, 2))
            x = x + perceptron(p, layer_norm(p, x), 2 * width, jax.nn.gelu)
        return dense(p, x.mean((1, 2)), _CLASSES)

    return Model(forward, (floats(batch, side, side, 12),))


def experts(*, batch: int, time: int, width: int, count: int, capacity: int) -> Model:
    """Build a layer of experts, each for a few words (Lepikhin et al., "GShard", 2020)."""

    def forward(p: Parameters, words: Array) -> Array:
        x = embed(p, words, 1000, width)
        gates = jax.nn.softmax(dense(p, x, count))
        slots = jax.nn.one_hot(jnp.arange(time) % capacity, capacity)
        sent = jnp.einsum("bte,tc,btd->ebcd", gates, slots, x)
        hidden = jax.nn.relu(jnp.einsum("ebcd,edf->ebcf", sent, p(count, width, 2 * width, fan_in=width)))
        back = jnp.einsum("ebcf,efd->ebcd", hidden, p(count, 2 * width, width, fan_in=2 * width))
        x = x + jnp.einsum("ebcd,bte,tc->btd", back, gates, slots)
        return dense(p, x, _CLASSES)

    return Model(forward, (indices(1000, batch, time),))


def tensors(*, batch: int, sizes: Sequence[int], ranks: Sequence[int], layers: int) -> Model:
    """Build layers whose weights are a product of small tensors (Novikov et al., "Tensorizing networks", 2015)."""
    a, b, c = sizes

    def forward(p: Parameters, x: Array) -> Array:
        for _ in range(layers):
            first, second = p(a, ranks[0], a, fan_in=a), p(ranks[0], b, b, ranks[1], fan_in=b * ranks[0])
            third = p(ranks[1], c, c, fan_in=c * ranks[1])
            y = jnp.einsum("nabc,arx->nxrbc", x, first)
            y = jnp.einsum("nxrbc,rbys->nxysc", y, second)
            x = jax.nn.relu(jnp.einsum("nxysc,scz->nxyz", y, third)) + x
        return dense(p, x.reshape(batch, -1), _CLASSES)

    return Model(forward, (floats(batch, a, b, c),))


def nerf(*, batch: int, width: int, layers: int) -> Model:
    """Build colours from points and directions by a deep perceptron (Mildenhall et al., "NeRF", 2020)."""

    def forward(p: Parameters, points: Array) -> Array:
        scaled = points[..., None] * 2.0 ** jnp.arange(8)
        encoded = jnp.concatenate([jnp.sin(scaled), jnp.cos(scaled)], axis=-1).reshape(batch, -1)
        x = encoded
        for layer in range(layers):
            x = jnp.concatenate([x, encoded], axis=-1) if layer == layers // 2 else x
            x = jax.nn.relu(dense(p, x, width))
        return dense(p, x, 4)

    return Model(forward, (floats(batch, 3),), classifies=False)


def states(*, batch: int, time: int, width: int, size: int, layers: int) -> Model:
    """Build linear recurrences as long convolutions by products with Toeplitz matrices (Gu et al., "S4", 2021)."""

    def forward(p: Parameters, x: Array) -> Array:
        delays = jnp.arange(time)[:, None] - jnp.arange(time)
        for _ in range(layers):
            decay = jax.nn.sigmoid(p(size, fan_in=1))
            kernel = jnp.where(delays >= 0, decay[:, None, None] ** jnp.maximum(delays, 0), 0)
            entered = jnp.einsum("btw,ws->bts", layer_norm(p, x), p(width, size, fan_in=width))
            left = jnp.einsum("sqk,bks->bqs", kernel, entered)
            x = x + jnp.einsum("bqs,sw->bqw", left, p(size, width, fan_in=size))
        return dense(p, x, _CLASSES)

    return Model(forward, (floats(batch, time, width),))


def triangles(*, side: int, width: int, layers: int) -> Model:
    """Build updates of pairs by the third side of triangles (Jumper et al., "AlphaFold", 2021)."""

    def forward(p: Parameters, pairs: Array) -> Array:
        x = pairs
        for _ in range(layers):
            y = layer_norm(p, x)
            left, right = (jax.nn.sigmoid(dense(p, y, width)) * dense(p, y, width) for _ in range(2))
            x = x + dense(p, layer_norm(p, jnp.einsum("ikc,jkc->ijc", left, right)), width)
            x = x + perceptron(p, layer_norm(p, x), 2 * width, jax.nn.relu)
        return dense(p, x, 16)

    return Model(forward, (floats(side, side, width),))
