"""Programs in files: what can be measured, demands on their inputs, measuring, tuning, and other batches."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.config import ConfigError
from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.reader import read_records
from hlorank_collect import machine, xla
from hlorank_collect.autotune.tune_program import tune
from hlorank_collect.autotune.tuned import Tuned, TuneTask
from hlorank_collect.compiled_layouts import captured
from hlorank_collect.modules.dataflow import Dataflow, Demand, Value, demands
from hlorank_collect.modules.module_program import (
    ELEMENT_TYPES,
    check_measurable,
    check_memory,
    draw_inputs,
    module_program,
)
from hlorank_collect.modules.scale_batch import scale_batch
from hlorank_collect.program import SkippedError
from hlorank_collect.task import LayoutTask, load_program
from tests.hlorank_collect.tasks import parsed, silent, small_task

jax = pytest.importorskip("jax", reason="needs jax (extra collect)")

MODULE = """HloModule net, input_output_alias={ {1}: (0, {}, may-alias) }

ENTRY %main {
  %state = f32[8,16] parameter(0)
  %ids = s64[8] parameter(1)
  %weights = f32[16,4] parameter(2)
  %column = s64[8,1] reshape(%ids)
  %rows = f32[8,16] gather(%state, %column),
    offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,16}
  %product = f32[8,4] dot(%rows, %weights), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %result = (f32[8,4], f32[8,16]) tuple(%product, %rows)
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the file net.small.hlo.txt."""
    (tmp_path / "net.small.hlo.txt").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_a_program_whose_content_decides_whether_it_was_measured(folder: Path) -> None:
    task = small_task(LayoutTask, program="net.small.hlo.txt", collection="layout:cpu:random", output="out")
    (folder / "net:small").write_text(MODULE)
    copy = dataclasses.replace(task, program="net:small")
    assert copy.load().family == "net-small"
    assert copy.fingerprint == task.fingerprint
    (folder / "net:small").write_text(MODULE.replace("main", "other"))
    assert copy.fingerprint != task.fingerprint
    with pytest.raises(ConfigError):
        load_program("net.large", None)


def test_inputs_keep_64_bits_and_can_be_used_again(folder: Path) -> None:
    file = folder / "net.small.hlo.txt"
    traced, again, changed = (module_program(file, seed).trace("cpu") for seed in (3, 3, 4))
    assert traced.module == again.module
    inputs = traced.inputs()
    assert [array.dtype.name for array in inputs] == ["float32", "int64", "float32"]
    for first, same, other in zip(inputs, again.inputs(), changed.inputs(), strict=True):
        np.testing.assert_array_equal(np.asarray(first), np.asarray(same))
        assert not np.array_equal(np.asarray(first), np.asarray(other))
    executable = xla.compile_module(traced.module)
    (first, _), (second, _) = executable.run(inputs), executable.run(inputs)
    np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


def test_a_tuned_file_is_called_with_flat_arrays(folder: Path) -> None:
    fields = {"program": "net.small.hlo.txt", "collection": "layout:cpu:random", "output": "tuned", "seed": 2}
    about = tune(small_task(TuneTask, **fields, budget=2), silent)
    assert about["program"] == "net.small.hlo.txt"
    tune(small_task(TuneTask, **fields, budget=2, scale_batch=4), silent)
    scaled = Tuned(Path("tuned/net.small.b4.json"))
    assert scaled(np.zeros((8, 16), "f"), np.zeros(4, "int64"), np.ones((16, 4), "f"))[0].shape == (4, 4)
    tuned = Tuned(Path("tuned/net.small.json"))
    state, ids, weights = np.eye(8, 16, dtype="f"), np.arange(8)[::-1].copy(), np.ones((16, 4), "f")
    product, rows = tuned(state, ids, weights)
    np.testing.assert_array_equal(np.asarray(rows), state[::-1])
    np.testing.assert_array_equal(np.asarray(product), np.ones((8, 4)))
    with pytest.raises(ValueError, match="int64"):
        tuned(state, ids.astype("int32"), weights)
    (folder / "net.small.hlo.txt").write_text(MODULE.replace("f32[16,4]", "f32[16,5]").replace("f32[8,4]", "f32[8,5]"))
    with pytest.raises(DataError, match="tune it again"):
        Tuned(Path("tuned/net.small.json"))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("gather(", "collect(", "line 8"),
        ("}\n", "", "line"),
        ("dot(%rows, %weights), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
         'custom-call(%rows, %weights), custom_call_target="their_kernel"', "their_kernel"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_measured_names_the_reason(folder: Path, old: str, new: str, reason: str) -> None:
    (folder / "net.small.hlo.txt").write_text(MODULE.replace(old, new))
    with pytest.raises((SkippedError, DataError), match=reason):
        captured(module_program(folder / "net.small.hlo.txt", 0), "cpu")


PARAMETER = "%x = f32[4] parameter(0)"
DYNAMIC = "ROOT %d = f32[<=4] set-dimension-size(%x, %n)"
SUM = "%sum {\n%a = f32[] parameter(0)\n%b = f32[] parameter(1)\nROOT %c = f32[] add(%a, %b)\n}"


@pytest.mark.parametrize(
    ("body", "instruction", "reason"),
    [
        (f"{PARAMETER}\nROOT %r = f32[4] all-reduce(%x), replica_groups={{{{0,1}}}}, to_apply=%sum", "r", "all-reduce"),
        (f"{PARAMETER}\nROOT %r = (f32[4], f32[8]) all-gather-start(%x), dimensions={{0}}", "r", "all-gather-start"),
        ("%x = f32[<=4] parameter(0)\nROOT %n = f32[<=4] negate(%x)", "x", "dynamic"),
        (f"{PARAMETER}\n%n = s32[] constant(2)\n{DYNAMIC}, dimensions={{0}}", "d", "dynamic"),
        ("%t = (f32[4], token[]) parameter(0)\nROOT %r = () tuple()", "t", "token"),
        ("%p = s1[4] parameter(0)\nROOT %r = () tuple()", "p", "s1"),
    ],
)
def test_what_cannot_run_is_named(body: str, instruction: str, reason: str) -> None:
    with pytest.raises(SkippedError, match=reason) as raised:
        check_measurable(parsed(body, SUM))
    assert f"instruction {instruction}: " in str(raised.value)


def test_a_module_beyond_the_memory_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = parsed("""
      %x = f32[100,10] parameter(0)
      %t = (bf16[10,5], s4[7]) parameter(1)
      %d = f32[100,100] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
      %fused = f32[1000,1000] iota(), iota_dimension=0
      ROOT %r = f32[100,1] slice(%d), slice={[0:100],[0:1]}
    """)
    needed = 4 * 1000 + 2 * 50 + 7 + 4 * 100 + 4 * 10_000  # inputs, outputs and the largest product
    check_memory(module, needed)
    with pytest.raises(SkippedError, match="instruction d "):
        check_memory(module, needed - 1)
    assert machine.memory_limit() > 2**30
    monkeypatch.setattr("hlorank_collect.modules.module_program.memory_limit", lambda: 1000)
    with pytest.raises(SkippedError, match="--scale-batch"):
        module_program(folder / "net.small.hlo.txt").trace("cpu")
    with pytest.raises(SkippedError, match=r"memory: (?!.*--scale-batch)"):
        module_program(folder / "net.small.hlo.txt", scale_batch=4).trace("cpu")


GATHER = """
  %table = f32[10,16] parameter(0)
  %ids = s32[8] parameter(1)
  %zero = s32[] constant(0)
  %zeros = s32[8] broadcast(%zero), dimensions={}
  %size = s32[] constant(10)
  %sizes = s32[8] broadcast(%size), dimensions={}
  %negative = pred[8] compare(%ids, %zeros), direction=LT
  %wrapped = s32[8] add(%ids, %sizes)
  %index = s32[8] select(%negative, %wrapped, %ids)
  %column = s32[8,1] reshape(%index)
  ROOT %rows = f32[8,16] gather(%table, %column),
    offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,16}
"""
SLICES = """
  %x = f32[10,16] parameter(0)
  %i = s32[] parameter(1)
  %j = s32[] parameter(2)
  %update = f32[2,16] dynamic-slice(%x, %i, %j), dynamic_slice_sizes={2,16}
  ROOT %r = f32[10,16] dynamic-update-slice(%x, %update, %i, %j)
"""
SCATTER = """
  %x = f32[10,16] parameter(0)
  %i = s32[4,1] parameter(1)
  %updates = f32[4,3,16] parameter(2)
  ROOT %r = f32[10,16] scatter(%x, %i, %updates),
    update_window_dims={1,2}, inserted_window_dims={}, scatter_dims_to_operand_dims={0}, index_vector_dim=1,
    to_apply=%set
"""
CALLED = """
%set {
  %old = f32[] parameter(0)
  ROOT %new = f32[] parameter(1)
}
%pick {
  %t = f32[10] parameter(0)
  %i = s32[] parameter(1)
  ROOT %r = f32[1] dynamic-slice(%t, %i), dynamic_slice_sizes={1}
}
%body {
  %state = (s32[], s32[], f32[10]) parameter(0)
  %n = s32[] get-tuple-element(%state), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%n, %one)
  %at = s32[] get-tuple-element(%state), index=1
  %values = f32[10] get-tuple-element(%state), index=2
  %picked = f32[1] call(%values, %at), to_apply=%pick
  %all = f32[10] dynamic-update-slice(%values, %picked, %next)
  ROOT %result = (s32[], s32[], f32[10]) tuple(%next, %at, %all)
}
%condition {
  %state = (s32[], s32[], f32[10]) parameter(0)
  %n = s32[] get-tuple-element(%state), index=0
  %five = s32[] constant(5)
  ROOT %r = pred[] compare(%n, %five), direction=LT
}
%same {
  ROOT %i = s32[] parameter(0)
}
%more {
  %i = s32[] parameter(0)
  ROOT %r = s32[] add(%i, %i)
}
"""
LOOP = """
  %n = s32[] parameter(0)
  %pair = (s32[], f32[10]) parameter(1)
  %p = pred[] parameter(2)
  %free = s32[] parameter(3)
  %i = s32[] get-tuple-element(%pair), index=0
  %t = f32[10] get-tuple-element(%pair), index=1
  %j = s32[] conditional(%p, %i, %free), true_computation=%same, false_computation=%more
  %start = (s32[], s32[], f32[10]) tuple(%n, %j, %t)
  ROOT %end = (s32[], s32[], f32[10]) while(%start), condition=%condition, body=%body
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (GATHER, {1: 10}),  # behind the wrapping of negative indices
        (SLICES, {1: 9, 2: 1}),  # starts where the slice fits
        (SLICES.replace("%i, %j)\n", "%j, %i)\n"), {1: 1, 2: 1}),
        (SCATTER, {1: 8}),
        (LOOP, {0: 10, 1: 10, 3: 10}),  # through tuples, calls, loops and branches
    ],
)
def test_the_bound_of_a_parameter_is_the_smallest_size_that_it_indexes(body: str, expected: dict[int, int]) -> None:
    flow = Dataflow(parsed(body, CALLED))
    found = {flow.entry.index(value.node): demand.bound for value, demand in demands(flow).items()}
    assert found == expected


def test_positive_are_variances_and_second_moments_but_no_squares() -> None:
    flow = Dataflow(
        parsed("""
      %variance = f32[8] parameter(0)
      %moment = f32[8] parameter(1)
      %gradient = f32[8] parameter(2)
      %weight = f32[8] parameter(3)
      %r = f32[8] rsqrt(%variance)
      %square = f32[8] multiply(%gradient, %gradient)
      %sum = f32[8] add(%moment, %square)
      %s = f32[8] sqrt(%sum)
      %product = f32[8] multiply(%r, %weight)
      ROOT %result = f32[8] divide(%product, %s)
    """)
    )
    positive = Demand(positive=True)
    assert [demands(flow).get(Value(node)) for node in flow.entry] == [positive, positive, None, None]


def drawn(parameters: str, seed: int = 0) -> list[NDArray[Any]]:
    return [*draw_inputs(parsed(f"{parameters}\nROOT %r = () tuple()"), seed)]


def test_values_depend_on_the_seed_and_the_number_of_the_parameter_only() -> None:
    one, other = "%a = f32[4] parameter(0)\n", "%b = f32[4] parameter(1)\n"
    first, second = drawn(one + other)
    assert first.tolist() != second.tolist()
    assert drawn(one)[0].tolist() == first.tolist()
    assert drawn(one, seed=1)[0].tolist() != first.tolist()
    _, ids = draw_inputs(parsed(GATHER), 0)
    assert set(ids.tolist()) <= set(range(10))
    assert len(set(ids.tolist())) > 2
    (key,) = drawn("%key = u32[50,2] parameter(0)")
    assert key.max() > 2**31


def test_every_type_has_values_of_its_own_that_can_be_put_and_run() -> None:
    names = [
        "pred", "s2", "s4", "s8", "s16", "s32", "s64", "u2", "u4", "u8", "u16", "u32", "u64", "f16", "bf16", "f32",
        "f64", "c64", "c128", "f8e5m2", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "f8e3m4",
        "f8e8m0fnu", "f4e2m1fn",
    ]  # fmt: skip
    assert len(names) == len(ELEMENT_TYPES)
    lines = [f"%p{i} = {name}[40,30] parameter({i})" for i, name in enumerate(names)]
    lines += [f"%r{i} = {name}[1200] reshape(%p{i})" for i, name in enumerate(names)]
    results = ", ".join(f"{name}[1200]" for name in names)
    module = parsed("\n".join([*lines, f"ROOT %t = ({results}) tuple({', '.join(f'%r{i}' for i in range(28))})"]))
    check_measurable(module)
    arrays = dict(zip(names, draw_inputs(module, 0), strict=True))
    outputs = xla.compile_module(module.SerializeToString()).run(xla.put([*arrays.values()], wide=True))
    for (name, array), output in zip(arrays.items(), outputs, strict=True):
        np.testing.assert_array_equal(np.asarray(output), array.ravel())
        if name[0] in "psu":
            assert sorted({*array.ravel().tolist()}) == [0, 1]
        elif name == "f8e8m0fnu":
            assert (array.astype(float) > 0).all()
        elif name != "f4e2m1fn":  # too coarse
            assert np.real(array).astype(float).std() == pytest.approx(0.1, rel=0.1)


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
    function: Callable[..., Any], arguments: Callable[[int], list[Any]], before: int, after: int
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
