"""The zoo: every family traces, its layers agree in all data layouts, and `hlorank collect` takes its names."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="needs jax (extra collect)")

import jax

import examples.zoo
from examples.zoo import layers, programs
from examples.zoo.__main__ import main
from examples.zoo.catalog import CATALOG
from examples.zoo.families import application
from examples.zoo.model import Model, Parameters, floats, forward_program, train_program
from hlorank_collect.program import JaxProgram, SkippedError, user_program

TO_NCHW = (0, 3, 1, 2)
FIRST = {name.partition(".")[0]: name for name in reversed([*CATALOG])}


def run(forward: Callable[..., Any], *inputs: Any, arrays: Any = None) -> tuple[Any, list[Any]]:
    """Return the outputs and the parameters, given or drawn."""
    function, (drawn, *_) = forward_program(Model(forward, inputs))
    arrays = drawn if arrays is None else arrays
    return np.asarray(jax.jit(function)(arrays, *inputs)), arrays


def test_names_are_unique_safe_and_taken_by_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(programs()) >= 90
    assert {program.family for program in programs().values()} > set(FIRST)
    assert all(re.fullmatch(r"[a-z0-9._-]+", name) for name in programs())
    assert main(["vit", "keras-vgg"]) == 0
    names = capsys.readouterr().out.split()
    assert names[:2] == ["examples.zoo:vit_b2_forward", "examples.zoo:vit_b2_train"]
    assert names[-5:-2] == [f"examples.zoo:keras_vgg16{rest}" for rest in ("_train", "_160_forward", "_160_train")]
    assert user_program(names[0], None) is programs()["vit.b2.forward"] is examples.zoo.vit_b2_forward
    assert main(["perceptron"]) == 2
    with pytest.raises(AttributeError, match="no_such"):
        _ = examples.zoo.no_such


@pytest.mark.parametrize("name", FIRST.values())
def test_a_training_step_and_the_forward_function_trace(name: str) -> None:
    step, (parameters, *batch) = programs()[f"{name}.train"].build()
    updated, loss = jax.eval_shape(step, parameters, *batch)
    assert loss.shape == ()
    assert [new.shape for new in updated] == [old.shape for old in parameters]
    function, arguments = programs()[f"{name}.forward"].build()
    assert jax.eval_shape(function, *arguments).dtype == np.float32


@pytest.mark.slow
def test_an_application_of_keras_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # read at the first import
    pytest.importorskip("keras", reason="needs keras")
    traced = programs()["keras.mobilenetv3small.train"].trace("cpu")
    assert len(traced.inputs()) > 100
    assert len(traced.module) < 2**22  # the weights are parameters, not constants


@pytest.mark.slow
def test_an_application_of_keras_that_does_not_trace_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras", reason="needs keras")
    too_small = partial(application, name="Xception", side=32)
    with pytest.raises(SkippedError, match="input"):
        JaxProgram("small", "keras", lambda: forward_program(too_small())).trace("cpu")
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(SkippedError, match="KERAS_BACKEND=torch"):
        programs()["keras.mobilenetv3small.forward"].trace("cpu")


def test_a_step_descends_the_loss() -> None:
    def linear(p: Parameters, x: Any) -> Any:
        return x @ p(3, 2, fan_in=3) + p(2, fan_in=100)

    step, (parameters, x, labels) = train_program(Model(linear, (floats(4, 3),)))
    (_, bias), loss = step(parameters, x, labels)
    logits = x @ parameters[0] + parameters[1]
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert float(loss) == pytest.approx(-np.log(shares[np.arange(4), labels]).mean(), rel=1e-5)
    np.testing.assert_allclose(bias, parameters[1] - 0.01 * (shares - np.eye(2)[labels]).mean(0), rtol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        lambda p, x, layout: layers.conv(p, x, 8, layout, stride=2),
        lambda p, x, layout: layers.conv_transpose(p, x, 8, layout),
        lambda p, x, layout: layers.average_pool(x, layout),
        lambda p, x, layout: layers.upsample(x, layout),
    ],
)
def test_data_layouts_agree(layer: Callable[..., Any]) -> None:
    images = floats(2, 6, 6, 4)
    expected, arrays = run(lambda p, x: layer(p, x, "NHWC"), images)
    moved = [np.transpose(array, (3, 2, 0, 1)) if array.ndim == 4 else array for array in arrays]  # HWIO to OIHW
    outputs, _ = run(lambda p, x: layer(p, x, "NCHW"), images.transpose(TO_NCHW), arrays=moved)
    np.testing.assert_allclose(outputs, expected.transpose(TO_NCHW), atol=1e-5)
