"""Programs in files: checks, measuring and tuning."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from hlorank.config import ConfigError
from hlorank.files import DataError
from hlorank_collect import machine
from hlorank_collect.autotune.tune_program import tune
from hlorank_collect.autotune.tuned import Tuned, TuneTask
from hlorank_collect.compiled_layouts import captured
from hlorank_collect.modules.module_program import check_measurable, check_memory, module_program
from hlorank_collect.program import SkippedError
from hlorank_collect.task import LayoutTask, load_program
from tests.hlorank_collect.modules.conftest import Parsed
from tests.hlorank_collect.tasks import silent, small_task

pytest.importorskip("jax", reason="needs jax (extra collect)")

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
    from hlorank_collect import xla

    traced, again = (module_program(folder / "net.small.hlo.txt", 3).trace("cpu") for _ in range(2))
    assert traced.module == again.module
    inputs, same = traced.inputs(), again.inputs()
    other = module_program(folder / "net.small.hlo.txt", 4).trace("cpu").inputs()
    assert [array.dtype.name for array in inputs] == ["float32", "int64", "float32"]
    for first, second, third in zip(inputs, same, other, strict=True):
        np.testing.assert_array_equal(np.asarray(first), np.asarray(second))
        assert not np.array_equal(np.asarray(first), np.asarray(third))
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


def test_a_module_beyond_the_memory_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank_collect.modules.module_program.memory_limit", lambda: 1000)
    with pytest.raises(SkippedError, match="--scale-batch"):
        module_program(folder / "net.small.hlo.txt").trace("cpu")
    with pytest.raises(SkippedError, match="memory") as raised:
        module_program(folder / "net.small.hlo.txt", scale_batch=4).trace("cpu")
    assert "--scale-batch" not in str(raised.value)
    assert machine.memory_limit() > 2**30


ADD = """
%sum {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
"""


PARAMETER = "%x = f32[4] parameter(0)"
DYNAMIC = "ROOT %d = f32[<=4] set-dimension-size(%x, %n)"


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
def test_what_cannot_run_is_named(parsed: Parsed, body: str, instruction: str, reason: str) -> None:
    with pytest.raises(SkippedError, match=reason) as raised:
        check_measurable(parsed(f"{ADD}ENTRY %e {{\n{body}\n}}"))
    assert f"instruction {instruction}: " in str(raised.value)


def test_memory_is_that_of_inputs_outputs_and_the_largest_product(parsed: Parsed) -> None:
    module = parsed("""ENTRY %e {
      %x = f32[100,10] parameter(0)
      %t = (bf16[10,5], s4[7]) parameter(1)
      %d = f32[100,100] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
      %fused = f32[1000,1000] iota(), iota_dimension=0
      ROOT %r = f32[100,1] slice(%d), slice={[0:100],[0:1]}
    }""")
    needed = 4 * 1000 + 2 * 50 + 7 + 4 * 100 + 4 * 10_000
    check_memory(module, needed)
    with pytest.raises(SkippedError, match="instruction d "):
        check_memory(module, needed - 1)
