"""Programs in files: what can be measured, demands on their inputs, measuring and tuning."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hlorank.config import ConfigError
from hlorank.files import DataError
from hlorank_collect import machine, xla
from hlorank_collect.autotune.tune_program import tune
from hlorank_collect.autotune.tuned import Tuned, TuneTask
from hlorank_collect.compiled_layouts import captured
from hlorank_collect.modules import module_program as programs
from hlorank_collect.modules.dataflow import Dataflow, Demand, Value, demands
from hlorank_collect.program import ELEMENT_TYPES, SkippedError
from hlorank_collect.task import LayoutTask, load_program
from tests.hlorank_collect.tasks import parsed, silent, small_task

jax = pytest.importorskip("jax", reason="needs jax (extra collect)")


def text(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


MODULE = text("net.hlo.txt")


@pytest.fixture
def folder(cwd: Path) -> Path:
    """The current folder, with the file net.small.hlo.txt."""
    (cwd / "net.small.hlo.txt").write_text(MODULE)
    return cwd


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
    traced, again, changed = (programs.module_program(file, seed).trace("cpu") for seed in (3, 3, 4))
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
        captured(programs.module_program(folder / "net.small.hlo.txt", 0), "cpu")


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
        programs.check_measurable(parsed(body, SUM))
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
    programs.check_memory(module, needed)
    with pytest.raises(SkippedError, match="instruction d "):
        programs.check_memory(module, needed - 1)
    assert machine.memory_limit() > 2**30
    monkeypatch.setattr("hlorank_collect.modules.module_program.memory_limit", lambda: 1000)
    with pytest.raises(SkippedError, match="GB of memory"):
        programs.module_program(folder / "net.small.hlo.txt").trace("cpu")
    assert programs.module_program(folder / "net.small.hlo.txt").trace("tpu-v5e").module, "nothing runs there"


GATHER = text("gather.txt")
SLICES = text("slices.txt")
SCATTER = text("scatter.txt")
CALLED = text("called.hlo.txt")
LOOP = text("flow.txt")


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
    flow = Dataflow(parsed(text("moments.txt")))
    positive = Demand(positive=True)
    assert [demands(flow).get(Value(node)) for node in flow.entry] == [positive, positive, None, None]


def drawn(parameters: str, seed: int = 0) -> list[NDArray[Any]]:
    return [*programs.draw_inputs(parsed(f"{parameters}\nROOT %r = () tuple()"), seed)]


def test_values_depend_on_the_seed_and_the_number_of_the_parameter_only() -> None:
    one, other = "%a = f32[4] parameter(0)\n", "%b = f32[4] parameter(1)\n"
    first, second = drawn(one + other)
    assert first.tolist() != second.tolist()
    assert drawn(one)[0].tolist() == first.tolist()
    assert drawn(one, seed=1)[0].tolist() != first.tolist()
    _, ids = programs.draw_inputs(parsed(GATHER), 0)
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
    programs.check_measurable(module)
    arrays = dict(zip(names, programs.draw_inputs(module, 0), strict=True))
    outputs = xla.compile_module(module.SerializeToString()).run(xla.put([*arrays.values()], wide=True))
    for (name, array), output in zip(arrays.items(), outputs, strict=True):
        np.testing.assert_array_equal(np.asarray(output), array.ravel())
        if name[0] in "psu":
            assert sorted({*array.ravel().tolist()}) == [0, 1]
        elif name == "f8e8m0fnu":
            assert (array.astype(float) > 0).all()
        elif name != "f4e2m1fn":  # too coarse
            assert np.real(array).astype(float).std() == pytest.approx(0.1, rel=0.1)
