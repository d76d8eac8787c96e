"""Keras's applications as models of the zoo, without weights of a training (Keras 3 on its JAX backend)."""

from __future__ import annotations

import os
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from .model import Model, Parameters, floats

_CLASSES = 100


def application(*, name: str, side: int, batch: int = 1) -> Model:
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

    return Model(forward, (floats(batch, side, side, 3),))
