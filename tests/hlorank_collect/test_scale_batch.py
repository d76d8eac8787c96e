"""Batches of modules: shapes, attributes and constants follow, and the result is that of the smaller batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.reader import read_records
from hlorank_collect import xla
from hlorank_collect.modules.module_program import draw_inputs
from hlorank_collect.modules.scale_batch import scale_batch
from hlorank_collect.program import SkippedError
from tests.hlorank_collect.tasks import parsed

jax = pytest.importorskip("jax", reason="needs jax (extra collect)")
Traced = Callable[[int], list[Any]]


def run(module: HloModuleProto) -> list[NDArray[Any]]:
    inputs = xla.put([*draw_inputs(module, 0)], wide=True)
    return [np.asarray(output) for output in xla.compile_module(module.SerializeToString()).run(inputs)]


def zeros(*sizes: int, dtype: str = "float32") -> NDArray[Any]:
    return np.zeros(sizes, dtype)


def forward(x: Any, w: Any, b: Any, v: Any) -> Any:
    jnp = jax.numpy
    hidden = jax.nn.relu(x.reshape(-1, x.shape[-1]) @ w + b)  # batch and time are merged
    heads = hidden.reshape(x.shape[0], x.shape[1], 2, -1).transpose(0, 2, 1, 3)
    attention = jax.nn.softmax(jnp.einsum("bhsd,bhtd->bhst", heads, heads))
    mixed = jnp.einsum("bhst,bhtd->bhsd", attention, heads)
    doubled = jnp.concatenate([mixed, -mixed])[: x.shape[0]]
    return jnp.pad(doubled, ((0, 0), (0, 0), (1, 1), (0, 0))).mean((1, 2)) @ v


def sgd_step(images: Any, labels: Any, kernel: Any, w: Any) -> Any:
    def loss(kernel: Any, w: Any) -> Any:
        y = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = jax.lax.reduce_window(jax.nn.relu(y), -np.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        logits = jax.nn.log_softmax(y.reshape(y.shape[0], -1) @ w)
        return -jax.numpy.take_along_axis(logits, labels[:, None], 1).sum()

    gradients = jax.grad(loss, (0, 1))(kernel, w)
    return kernel - 0.1 * gradients[0], w - 0.1 * gradients[1]


def rolled(ids: Any, table: Any, w: Any) -> Any:
    twice = jax.jit(lambda x: x + x)
    start = jax.numpy.take(table, ids, axis=0).sum(1)
    weights = twice(w)  # the same function on something without a batch, of the same shape
    return jax.lax.fori_loop(0, 3, lambda _, x: jax.numpy.tanh(twice(x) @ weights), start)


@pytest.mark.parametrize(
    ("function", "arguments", "before", "after"),
    [
        (forward, lambda n: [zeros(n, 5, 8), zeros(8, 12), zeros(12), zeros(6, 8)], 8, 3),
        # A size that the weights have, too; the training step contracts the batch.
        (sgd_step, lambda n: [zeros(n, 4, 4, 3), zeros(n, dtype="int32"), zeros(3, 3, 3, 4), zeros(16, 4)], 4, 2),
        (rolled, lambda n: [zeros(n, 6, dtype="int32"), zeros(10, 8), zeros(8, 8)], 8, 1),
    ],
)
def test_the_result_is_that_of_the_program_traced_with_the_other_batch(
    function: Callable[..., Any], arguments: Traced, before: int, after: int
) -> None:
    scaled, traced = (
        HloModuleProto.FromString(xla.unoptimized_module(function, arguments(batch))) for batch in (before, after)
    )
    scale_batch(scaled, after)
    for found, expected in zip(run(scaled), run(traced), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


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
def test_what_does_not_follow_is_refused_by_name(root: str, opcode: str) -> None:
    constants = "%i = s32[] constant(0)\n%z = f32[] constant(0)\n%eight = f32[8] constant({0, 1, 2, 3, 4, 5, 6, 7})"
    rows = "%rows = f32[8,6] broadcast(%eight), dimensions={0}"
    with pytest.raises(SkippedError, match=rf"instruction (root|eight) \({opcode}\)"):
        scale_batch(parsed(f"{BATCH}{constants}\n{rows}\nROOT %root = {root}"), 2)


def test_weights_have_no_batch() -> None:
    dot = "ROOT %d = f32[6,6] dot(%w, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    with pytest.raises(SkippedError, match="no batch"):
        scale_batch(parsed(f"%w = f32[6,6] parameter(0)\n{dot}"), 2)


def test_halves_of_the_batch_follow() -> None:
    module = parsed(f"""
      {BATCH}
      %both = f32[16,6] concatenate(%d, %x), dimensions={{0}}
      %merged = f32[96] reshape(%both)
      %apart = f32[2,8,6] reshape(%merged)
      %second = f32[1,8,6] slice(%apart), slice={{[1:2], [0:8], [0:6]}}
      %half = f32[8,6] slice(%both), slice={{[8:16], [0:6]}}
      %same = f32[8,6] reshape(%second)
      ROOT %zero = f32[8,6] subtract(%half, %same)
    """)
    scale_batch(module, 3)
    found = {one.name: [*one.shape.dimensions] for c in module.computations for one in c.instructions}
    assert (found["both"], found["merged"], found["apart"], found["half"]) == ([6, 6], [36], [2, 3, 6], [3, 6])
    assert run(module)[0].tolist() == np.zeros((3, 6)).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["imagenette.training", "mlp_mixer.inference", "vit.inference"])
def test_real_modules_compile_with_one_example(name: str, shared_data: Path) -> None:
    (record,) = read_records(shared_data / "hlo" / f"{name}.hlo.txt.xz")
    scale_batch(record.module, 1)
    xla.compile_module(record.module.SerializeToString())
