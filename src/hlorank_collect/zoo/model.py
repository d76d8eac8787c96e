"""From a forward function to a program: its parameters, its training step, its arguments."""

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

Shape = tuple[int, ...]

_SEED = 0
_LEARNING_RATE = 0.01


class Parameters:
    """The parameters of a model, handed out in the order in which its forward function asks for them.

    A forward function is thus written once, and says in one place which parameters there are and what they do.

    Attributes:
        drawn: the initial parameters, where there were none to hand out.
    """

    def __init__(self, arrays: Sequence[Array] | None = None) -> None:
        self._arrays = None if arrays is None else iter(arrays)
        self._rng = np.random.default_rng(_SEED)
        self.drawn: list[NDArray[np.float32]] = []

    def __call__(self, *shape: int, fan_in: int = 1, mean: float = 0.0) -> Array:
        """The next parameter.

        Args:
            shape: its shape.
            fan_in: inputs per output; the parameter starts with standard deviation 1 / sqrt(fan_in).
            mean: that it starts around.
        """
        if self._arrays is not None:
            return next(self._arrays)
        self.drawn.append(self._rng.normal(mean, fan_in**-0.5, shape).astype(np.float32))
        return jnp.zeros(shape)


@dataclass(frozen=True)
class Model:
    """A forward function and what it is applied to."""

    forward: Callable[..., Array]
    """Of Parameters and the inputs."""
    inputs: Arguments
    classifies: bool = True
    """Whether the last axis of the outputs holds logits of classes; else the outputs are regressed."""


def floats(*shape: int) -> NDArray[np.float32]:
    """Normal inputs, the same ones whenever it is called."""
    return np.random.default_rng(_SEED).standard_normal(shape, dtype=np.float32)


def indices(bound: int, *shape: int) -> NDArray[np.int32]:
    """Uniform inputs from 0 to below `bound`, the same ones whenever it is called."""
    return np.random.default_rng(_SEED).integers(bound, size=shape, dtype=np.int32)


def forward_program(model: Model) -> tuple[Function, Arguments]:
    """The function (parameters, *inputs) -> outputs, and its arguments."""
    arrays, _ = _initialize(model)
    return _forward(model), (arrays, *model.inputs)


def train_program(model: Model) -> tuple[Function, Arguments]:
    """The function (parameters, *inputs, targets) -> (parameters, loss), and its arguments.

    One step of stochastic gradient descent on cross entropy or on the mean squared error.
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
    """The initial parameters, and shape and dtype of the outputs."""
    initial = Parameters()
    outputs = jax.eval_shape(lambda *inputs: model.forward(initial, *inputs), *model.inputs)
    return initial.drawn, outputs


def _cross_entropy(logits: Array, labels: Array) -> Array:
    return -(jax.nn.one_hot(labels, logits.shape[-1]) * jax.nn.log_softmax(logits)).sum(-1).mean()


def _squared_error(outputs: Array, targets: Array) -> Array:
    return jnp.square(outputs - targets).mean()
