"""Families of recurrent networks: long short-term memory and gated recurrent units."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from .layers import dense
from .model import Model, Parameters, floats

State = tuple[Array, ...]
Cell = Callable[[Array, Array, State], State]
"""Maps projected input, recurrent weights and state to the next state, whose first part is the output."""

_CLASSES = 100


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
