"""Families of the zoo: functions that build a model of given sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .layers import (
    attention,
    average_pool,
    conv,
    conv_transpose,
    dense,
    embed,
    image_shape,
    layer_norm,
    per_channel,
    perceptron,
    upsample,
)
from .model import Model, Parameters, floats, indices

State = tuple[Array, ...]
Cell = Callable[[Array, Array, State], State]
"""Maps projected input, recurrent weights and state to the next state, whose first part is the output."""

_CLASSES = 100


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
        return dense(p, x.mean(1), _CLASSES)

    return Model(forward, (floats(batch, side, side, 3),))


def unet(*, layout: str, batch: int, side: int, widths: tuple[int, ...], learned: bool) -> Model:
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

    return Model(forward, (floats(*image_shape(layout, batch, side, 3)),), classifies=False)


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

    return Model(forward, (floats(*image_shape(layout, batch, side, 3)),), classifies=False)


def textcnn(*, layout: str, batch: int, time: int, width: int, filters: int, windows: tuple[int, ...]) -> Model:
    """Build a classifier of texts (Kim, "Convolutional neural networks for sentence classification", 2014)."""

    def forward(p: Parameters, words: Array) -> Array:
        x = embed(p, words, 1000, width)
        x = x if layout == "NWC" else x.swapaxes(1, 2)
        features = [conv(p, x, filters, layout, window=window) for window in windows]
        maxima = [jax.nn.relu(y + per_channel(p(filters, fan_in=100), layout)).max(layout.index("W")) for y in features]
        return dense(p, jnp.concatenate(maxima, axis=-1), _CLASSES)

    return Model(forward, (indices(1000, batch, time),))


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


def _lstm_cell(projected: Array, weights: Array, state: State) -> State:
    hidden, memory = state
    enter, forget, new, leave = jnp.split(projected + hidden @ weights, 4, axis=-1)
    memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return jax.nn.sigmoid(leave) * jnp.tanh(memory), memory


def _gru_cell(projected: Array, weights: Array, state: State) -> State:
    (hidden,) = state
    reset, update, new = jnp.split(projected, 3, axis=-1)
    reset_own, update_own, new_own = jnp.split(hidden @ weights, 3, axis=-1)
    candidate = jnp.tanh(new + jax.nn.sigmoid(reset + reset_own) * new_own)
    keep = jax.nn.sigmoid(update + update_own)
    return (keep * hidden + (1 - keep) * candidate,)


def _recurrent(
    cell: Cell,
    *,
    gates: int,
    states: int,
    axes: str,
    batch: int,
    time: int,
    width: int,
    layers: int = 1,
    scan: bool = False,
) -> Model:
    """Build a classifier of every step of sequences."""
    time_axis = axes.index("t")

    def layer(p: Parameters, x: Array) -> Array:
        inner, outer = p(width, gates * width, fan_in=width), p(width, gates * width, fan_in=width)
        bias = p(gates * width, fan_in=100)
        state = (jnp.zeros((batch, width)),) * states

        if scan:

            def step(before: State, x_t: Array) -> tuple[State, Array]:
                after = cell(x_t @ inner + bias, outer, before)
                return after, after[0]

            return jnp.moveaxis(jax.lax.scan(step, state, jnp.moveaxis(x, time_axis, 0))[1], 0, time_axis)

        outputs = []
        projected = x @ inner + bias
        for moment in range(time):
            x_t = jax.lax.index_in_dim(projected, moment, time_axis, keepdims=False)
            state = cell(x_t, outer, state)
            outputs.append(state[0])
        return jnp.stack(outputs, axis=time_axis)

    def forward(p: Parameters, x: Array) -> Array:
        for _ in range(layers):
            x = layer(p, x)
        return dense(p, x, _CLASSES)

    return Model(forward, (floats(*((batch, time) if axes == "bt" else (time, batch)), width),))


lstm = partial(_recurrent, _lstm_cell, gates=4, states=2)
"""Hochreiter and Schmidhuber, "Long short-term memory", 1997."""

gru = partial(_recurrent, _gru_cell, gates=3, states=1)
"""Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014."""


def dlrm(*, axes: str, batch: int, tables: int, width: int, hidden: int) -> Model:
    """Build a predictor of clicks (Naumov et al., "Deep learning recommendation model", 2019)."""

    def forward(p: Parameters, numbers: Array, categories: Array) -> Array:
        bottom = numbers
        for size in (hidden, width):
            bottom = jax.nn.relu(dense(p, bottom, size))
        features = [bottom, *(embed(p, categories[table], 1000, width) for table in range(tables))]
        stacked = jnp.stack(features, axis=axes.index("f"))
        pairs = jnp.einsum(f"{axes}d,{axes.replace('f', 'g')}d->bfg", stacked, stacked)
        x = jnp.concatenate([bottom, pairs.reshape(batch, -1)], axis=-1)
        x = jax.nn.relu(dense(p, jax.nn.relu(dense(p, x, hidden)), hidden))
        return dense(p, x, 2)

    return Model(forward, (floats(batch, 16), indices(1000, tables, batch)))


def gnn(*, nodes: int, width: int, layers: int, graphs: int = 1, edges: int | None = None) -> Model:
    """Build a classifier of the nodes of graphs by messages along edges (Kipf and Welling, 2016)."""

    def forward(p: Parameters, x: Array, *structure: Array) -> Array:
        for _ in range(layers):
            messages = dense(p, layer_norm(p, x), width)
            if edges is None:
                received = jnp.einsum("gij,gjd->gid", structure[0], messages) / nodes
            else:
                senders, receivers = structure
                sent = jnp.take(messages, senders, axis=0, mode="clip")
                received = jax.ops.segment_sum(sent, receivers, nodes) * (nodes / edges)
            x = x + jax.nn.relu(dense(p, jnp.concatenate([x, received], axis=-1), width))
        return dense(p, x, 16)

    if edges is None:
        return Model(forward, (floats(graphs, nodes, width), floats(graphs, nodes, nodes)))
    ends = indices(nodes, 2, edges)
    return Model(forward, (floats(nodes, width), ends[0], ends[1]))


def application(*, name: str, side: int) -> Model:
    """Return a class of `keras.applications`, for images of `side` x `side` pixels; its states stay as they are."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    if keras.backend.backend() != "jax":
        raise RuntimeError(f"KERAS_BACKEND={keras.backend.backend()}: expected jax")
    keras.utils.set_random_seed(0)
    network = getattr(keras.applications, name)(
        weights=None, input_shape=(side, side, 3), classes=_CLASSES, classifier_activation=None
    )
    drawn = [np.asarray(variable.value) for variable in network.trainable_variables]
    states = [np.asarray(variable.value) for variable in network.non_trainable_variables]

    def forward(p: Parameters, images: Array) -> Array:
        weights = [p.given(value) for value in drawn]
        outputs: Any
        outputs, _ = network.stateless_call(weights, [jnp.asarray(state) for state in states], images, training=False)
        return jnp.asarray(outputs)

    return Model(forward, (floats(1, side, side, 3),))
