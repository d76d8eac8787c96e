"""Batches of modules written by hand: shapes, attributes and constants follow, and the result runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.reader import read_records
from hlorank_collect.modules.module_program import draw_inputs
from hlorank_collect.modules.scale_batch import scale_batch
from hlorank_collect.program import SkippedError
from tests.hlorank_collect.modules.conftest import Parsed


def traced(function: Callable[..., Any], *arguments: Any) -> HloModuleProto:
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    from hlorank_collect import xla

    return HloModuleProto.FromString(xla.unoptimized_module(function, arguments))


def run(module: HloModuleProto) -> list[NDArray[Any]]:
    from hlorank_collect import xla

    inputs = xla.put([*draw_inputs(module, 0)], wide=True)
    return [np.asarray(output) for output in xla.compile_module(module.SerializeToString()).run(inputs)]


def shapes(module: HloModuleProto) -> dict[str, list[int]]:
    return {one.name: list(one.shape.dimensions) for c in module.computations for one in c.instructions}


def zeros(*sizes: int, dtype: str = "float32") -> NDArray[Any]:
    return np.zeros(sizes, dtype)


def forward(x: Any, w: Any, b: Any, v: Any) -> Any:
    import jax
    import jax.numpy as jnp

    hidden = jax.nn.relu(x.reshape(-1, x.shape[-1]) @ w + b)  # batch and time are merged
    heads = hidden.reshape(x.shape[0], x.shape[1], 2, -1).transpose(0, 2, 1, 3)
    attention = jax.nn.softmax(jnp.einsum("bhsd,bhtd->bhst", heads, heads))
    mixed = jnp.einsum("bhst,bhtd->bhsd", attention, heads)
    doubled = jnp.concatenate([mixed, -mixed])[: x.shape[0]]
    return jnp.pad(doubled, ((0, 0), (0, 0), (1, 1), (0, 0))).mean((1, 2)) @ v


def test_a_forward_pass_is_that_of_the_smaller_batch() -> None:
    weights = (zeros(8, 12), zeros(12), zeros(6, 8))
    big, small = traced(forward, zeros(8, 5, 8), *weights), traced(forward, zeros(3, 5, 8), *weights)
    scale_batch(big, 3)
    (found,), (expected,) = run(big), run(small)
    assert found.shape == (3, 8)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def sgd_step(images: Any, labels: Any, kernel: Any, w: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def loss(kernel: Any, w: Any) -> Any:
        y = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = jax.lax.reduce_window(jax.nn.relu(y), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        logits = jax.nn.log_softmax(y.reshape(y.shape[0], -1) @ w)
        return -jnp.take_along_axis(logits, labels[:, None], 1).sum()

    gradients = jax.grad(loss, (0, 1))(kernel, w)
    return kernel - 0.1 * gradients[0], w - 0.1 * gradients[1]


def test_a_training_step_contracts_the_batch() -> None:
    def module(batch: int) -> HloModuleProto:
        return traced(sgd_step, zeros(batch, 4, 4, 3), zeros(batch, dtype="int32"), zeros(3, 3, 3, 4), zeros(16, 4))

    scaled = module(4)  # a size that the weights have, too
    scale_batch(scaled, 2)
    for found, expected in zip(run(scaled), run(module(2)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_loops_calls_and_embeddings() -> None:
    import jax
    import jax.numpy as jnp

    twice = jax.jit(lambda x: x + x)

    def rolled(ids: Any, table: Any, w: Any) -> Any:
        start = jnp.take(table, ids, axis=0).sum(1)
        weights = twice(w)  # the same function on something without a batch, of the same shape
        return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(twice(x) @ weights), start)

    def module(batch: int) -> HloModuleProto:
        return traced(rolled, zeros(batch, 6, dtype="int32"), zeros(10, 8), zeros(8, 8))

    scaled = module(8)
    scale_batch(scaled, 1)
    found = run(scaled)
    np.testing.assert_allclose(found[0], run(module(1))[0], rtol=1e-5, atol=1e-6)


BATCH = """
  %x = f32[8,6] parameter(0)
  %w = f32[6,6] parameter(1)
  %d = f32[8,6] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
"""


@pytest.mark.parametrize(
    ("root", "opcode"),
    [
        ("f32[2,4,6] reshape(%d)", "reshape"),
        ("f32[3,6] slice(%d), slice={[0:3], [0:6]}", "slice"),
        ("f32[4,6] slice(%d), slice={[0:8:2], [0:6]}", "slice"),
        ("f32[14,6] concatenate(%d, %w), dimensions={0}", "concatenate"),
        ("f32[1,6] dynamic-slice(%d, %i, %i), dynamic_slice_sizes={1,6}", "dynamic-slice"),
        ("f32[8,6] add(%d, %rows)", "constant"),
        ("f32[9,6] pad(%d, %z), padding=1_0x0_0", "pad"),
        ('f32[8,6] custom-call(%d), custom_call_target="anything"', "custom-call"),
    ],
)
def test_what_does_not_follow_is_refused_by_name(parsed: Parsed, root: str, opcode: str) -> None:
    constants = "%i = s32[] constant(0)\n%z = f32[] constant(0)\n%eight = f32[8] constant({0, 1, 2, 3, 4, 5, 6, 7})"
    rows = "%rows = f32[8,6] broadcast(%eight), dimensions={0}"
    with pytest.raises(SkippedError, match=rf"instruction (root|eight) \({opcode}\)"):
        scale_batch(parsed(f"ENTRY %e {{\n{BATCH}{constants}\n{rows}\nROOT %root = {root}\n}}"), 2)


def test_weights_have_no_batch(parsed: Parsed) -> None:
    text = """ENTRY %e {
      %w = f32[6,6] parameter(0)
      ROOT %d = f32[6,6] dot(%w, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    }"""
    with pytest.raises(SkippedError, match="no batch"):
        scale_batch(parsed(text), 2)


def test_halves_of_the_batch_follow(parsed: Parsed) -> None:
    text = f"""ENTRY %e {{
      {BATCH}
      %both = f32[16,6] concatenate(%d, %x), dimensions={{0}}
      %merged = f32[96] reshape(%both)
      %apart = f32[2,8,6] reshape(%merged)
      %second = f32[1,8,6] slice(%apart), slice={{[1:2], [0:8], [0:6]}}
      %half = f32[8,6] slice(%both), slice={{[8:16], [0:6]}}
      %same = f32[8,6] reshape(%second)
      ROOT %zero = f32[8,6] subtract(%half, %same)
    }}"""
    module = parsed(text)
    scale_batch(module, 3)
    found = shapes(module)
    assert (found["both"], found["merged"], found["apart"], found["half"]) == ([6, 6], [36], [2, 3, 6], [3, 6])
    assert run(module)[0].tolist() == np.zeros((3, 6)).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "imagenette.training", "mlp_mixer.inference", "vit.inference",
    ],
)  # fmt: skip
def test_real_modules_compile_with_one_example(name: str, shared_data: Path) -> None:
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    from hlorank_collect import xla

    (record,) = read_records(shared_data / "hlo" / f"{name}.hlo.txt.xz")
    scale_batch(record.module, 1)
    xla.compile_module(record.module.SerializeToString())
