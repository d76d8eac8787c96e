"""Programs of a model: its forward function or a training step, with parameters and example inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from hlorank_collect.program import Arguments, Function

_SEED = 0
_LEARNING_RATE = 0.01


class Parameters:
    """Parameters of a model, in the order in which its forward function calls for them.

    A forward function thus declares its parameters where it uses them. Without arrays, each call draws an initial
    value, which `drawn` keeps.
    """

    def __init__(self, arrays: Sequence[Array] | None = None) -> None:
        self._arrays = None if arrays is None else iter(arrays)
        self._rng = np.random.default_rng(_SEED)
        self.drawn: list[NDArray[np.float32]] = []

    def __call__(self, *shape: int, fan_in: int = 1, mean: float = 0.0) -> Array:
        """Return the next parameter, initially normal with standard deviation 1 / sqrt(fan_in)."""
        if self._arrays is None:
            return self.given(self._rng.normal(mean, fan_in**-0.5, shape).astype(np.float32))
        return next(self._arrays)

    def given(self, initial: NDArray[np.float32]) -> Array:
        """Return the next parameter, of this initial value."""
        if self._arrays is not None:
            return next(self._arrays)
        self.drawn.append(initial)
        return jnp.zeros(initial.shape)


@dataclass(frozen=True)
class Model:
    """A forward function and its example inputs."""

    forward: Callable[..., Array]
    """Maps Parameters and the inputs to the outputs."""
    inputs: Arguments
    classifies: bool = True
    """True if the last axis of the outputs holds logits of classes; False if the outputs are regressed."""


def floats(*shape: int) -> NDArray[np.float32]:
    """Return normal inputs, equal at every call."""
    return np.random.default_rng(_SEED).standard_normal(shape, dtype=np.float32)


def indices(bound: int, *shape: int) -> NDArray[np.int32]:
    """Return uniform inputs from 0 to below `bound`, equal at every call."""
    return np.random.default_rng(_SEED).integers(bound, size=shape, dtype=np.int32)


def forward_program(model: Model) -> tuple[Function, Arguments]:
    """Return the function (parameters, *inputs) -> outputs, and its arguments."""
    arrays, _ = _initialize(model)
    return _forward(model), (arrays, *model.inputs)


def train_program(model: Model) -> tuple[Function, Arguments]:
    """Return the function (parameters, *inputs, targets) -> (parameters, loss), and its arguments.

    The function is one step of stochastic gradient descent on cross entropy or on the mean squared error.
    """
    arrays, outputs = _initialize(model)
    forward, loss = _forward(model), _cross_entropy if model.classifies else _squared_error
    targets = indices(outputs.shape[-1], *outputs.shape[:-1]) if model.classifies else floats(*outputs.shape)

    def step(parameters: list[Array], *batch: Array) -> tuple[list[Array], Array]:
        *inputs, wanted = batch
        value, gradients = jax.value_and_grad(lambda p: loss(forward(p, *inputs), wanted))(parameters)
        return [p - _LEARNING_RATE * g for p, g in zip(parameters, gradients, strict=True)], value

    return step, (arrays, *model.inputs, targets)


def _forward(model: Model) -> Function:
    return lambda parameters, *inputs: model.forward(Parameters(parameters), *inputs)


def _initialize(model: Model) -> tuple[list[NDArray[np.float32]], Any]:
    """Return the initial parameters, and shape and dtype of the outputs."""
    initial = Parameters()
    outputs = jax.eval_shape(lambda *inputs: model.forward(initial, *inputs), *model.inputs)
    return initial.drawn, outputs


def _cross_entropy(logits: Array, labels: Array) -> Array:
    return -(jax.nn.one_hot(labels, logits.shape[-1]) * jax.nn.log_softmax(logits)).sum(-1).mean()


def _squared_error(outputs: Array, targets: Array) -> Array:
    return jnp.square(outputs - targets).mean()
