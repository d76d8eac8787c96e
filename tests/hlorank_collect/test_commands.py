"""The commands collect and autotune, the programs of the user that they take, and remedies without jax."""

import lzma
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from hlorank.cli.main import main
from hlorank.config import ConfigError
from hlorank.data.collection import read_graph
from hlorank.data.configurations import LayoutConfigurations
from hlorank.files import MAX_NAME, DataError, read_json
from hlorank.hlo.hlo_pb2 import HloModuleProto, ShapeProto
from hlorank.hlo.node_features import element_type
from hlorank.runs.find import model_folder
from hlorank_collect import machine
from hlorank_collect.autotune import tune_program
from hlorank_collect.autotune.search import Speedup
from hlorank_collect.child_process import Outcome
from hlorank_collect.program import ELEMENT_TYPES, JaxProgram, SkippedError, user_program
from hlorank_collect.record import read_left_out
from hlorank_collect.run_tasks import run_tasks
from hlorank_collect.task import Task
from tests.cli.conftest import Command
from tests.hlorank_collect import tasks

SHAPES = ["--arguments", tasks.SHAPES]


@pytest.fixture
def collect(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys, "collect", "--out", "out", "--configurations", 8, "--max-rounds", 6)


@pytest.fixture
def autotune(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys, "autotune", "--rounds", 5)


def in_this_process(task: Task, *, progress: Callable[..., None], hang_seconds: float) -> Outcome:
    """Measure a program without a child process, which starts for seconds."""
    assert hang_seconds > 0
    try:
        return Outcome(resolve_name(task.work)(task, progress))
    except (SkippedError, ConfigError, DataError) as error:
        return Outcome(None, str(error))


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank_collect.run_tasks.run_tasks", partial(run_tasks, supervise=in_this_process))


def test_programs_are_measured_once(
    programs: Path, collect: Command, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine, "busy_cores", lambda: 1.5)
    names = ["user_programs:dots", "user_programs:nothing"]
    out, errors = collect(*names, *SHAPES, "--allow-busy", status=1)
    ((name, reason),) = read_left_out(programs / "out")["layout:cpu:random"].items()
    assert name.startswith("user_programs-nothing-")
    first, *steps, last = errors.splitlines()
    assert (first, last) == ("2 programs to measure", f"error: {name}: {reason}")
    assert [step.rpartition(": ")[2] for step in steps] == ["start", "trace", "compile", "measure", "start", "trace"]
    assert "busy" in caplog.text
    assert len(out.splitlines()) == 2
    files = sorted((programs / "out" / "layout" / "cpu" / "random").iterdir())
    assert [path.suffix for path in files] == [".json", ".npz"]
    found = read_graph(files[1], "layout")
    assert isinstance(found.configurations, LayoutConfigurations)
    assert len(found.configurations) == 8
    assert len(np.unique(found.configurations.codes, axis=0)) == 8
    about = read_json(files[0])
    assert about["core"] == max(os.sched_getaffinity(0))
    assert about["xla_flags"].endswith("intra_op_parallelism_threads=1")

    before = {path: path.read_bytes() for path in files}
    assert collect(names[0], *SHAPES)[0].count("\n") == 1
    assert {path: path.read_bytes() for path in files} == before


MODULE = """HloModule dots

ENTRY %main {
  %x = f32[8,16] parameter(0)
  %w = f32[16,4] parameter(1)
  ROOT %d = f32[8,4] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


@pytest.mark.usefixtures("no_children")
def test_of_folders_and_globs_what_works_is_measured(programs: Path, collect: Command) -> None:
    (programs / "dumps").mkdir()
    for name, text in (("good", MODULE), ("bad", MODULE.replace("dot(", "dots("))):
        (programs / "dumps" / f"module.{name}.before_optimizations.txt").write_text(text)
    (programs / "dumps" / "module.good.after_optimizations.txt").write_text(MODULE)
    (programs / "other.hlo").write_text(MODULE)
    _, errors = collect("dumps", "oth*.hlo", "--allow-busy", status=1)
    assert "module.bad.before_optimizations: " in errors
    assert "line 6" in errors
    written = {path.stem for path in (programs / "out").rglob("*.npz")}
    assert written == {"module.good.before_optimizations", "other"}
    assert "measured already" in collect("other.hlo")[0]


@pytest.mark.usefixtures("no_children")
def test_programs_are_tuned_and_run_again(programs: Path, autotune: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "busy_cores", lambda: 0.0)
    monkeypatch.setattr(tune_program, "winner", lambda times, rng: (1, Speedup(1.5, 1.4, 1.6)))
    names = ["user_programs:nothing", "user_programs:dots"]
    out, errors = autotune(*names, *SHAPES, "--random", "--candidates", 9, "--top", 3, status=1)
    assert "user_programs-nothing" in errors
    assert "3 of 9 candidates measured, 0 left out" in out
    (saved,) = (programs / "tuned").glob("*.json")
    about = read_json(saved)
    assert (about["candidates"], len(about["measured"]), about["rounds"]) == (9, 3, 5)
    rows = [(line.split()[0], line[line.index("{") :].split()[0]) for line in out.splitlines() if " {" in line]
    layouts = ["{" + ",".join(map(str, change["after"])) + "}" for change in about["changes"]]
    instructions = [change["instruction"] for change in about["changes"]]
    assert rows == [*zip(instructions, layouts, strict=True)] != []
    assert {*instructions} == {one["instruction"] for one in about["configuration"]["instructions"]}
    assert all("user_programs.py:" in change["origin"] for change in about["changes"])
    assert "times as fast as the default" in autotune(names[1], *SHAPES, "--apply", saved)[0]


def test_models_of_mlflow_and_the_package(programs: Path, autotune: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (programs / "spec.json").write_text('{"collection": "layout:cpu:random"}')
    name, run_tasks = "models:/layout.cpu.random@champion", Mock(return_value={})
    folders = {name: programs, "layout.cpu": model_folder("layout.cpu")}
    monkeypatch.setattr("hlorank.runs.find.model_folder", folders.__getitem__)
    monkeypatch.setattr("hlorank_collect.run_tasks.run_tasks", run_tasks)
    autotune("user_programs:dots", *SHAPES, "--model", name)
    autotune("user_programs:dots", *SHAPES)
    given = [(task.model, task.reference) for call in run_tasks.call_args_list for task in call.args[0]]
    assert given == [(str(folders[reference]), reference) for reference in (name, "layout.cpu")]
    assert "layouts of gpu" in autotune.error("user_programs:dots", *SHAPES, "--backend", "gpu")


@pytest.mark.slow
def test_a_real_model_is_tuned_with_one_example(programs: Path, autotune: Command, shared_data: Path) -> None:
    text = lzma.decompress((shared_data / "hlo" / "imagenette.inference.hlo.txt.xz").read_bytes()).decode()
    (programs / "imagenette.hlo.txt").write_text(text.replace("[32,", "[1,"))  # one example: a batch takes minutes
    autotune("imagenette.hlo.txt", "--allow-busy", "--random", "--candidates", 4, "--top", 2)
    assert len(read_json(programs / "tuned/imagenette.json")["measured"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["collect"], "no program"),
        (["collect", "m:f", "--allow-busy"], "'m:f'"),
        (["collect", "mlp", *SHAPES], "'mlp'"),
        (["collect", "m:f", "--core", "12345"], "--core 12345"),
        (["collect", "m:f", "--collection", "layout:xla:random"], "layout:xla:random"),
        (["collect", "m:f", "--collection", "tile:cpu"], "tile:cpu"),
        (["collect", "no-such.hlo"], "no-such.hlo: "),
        (["collect", __file__, *SHAPES], "--arguments"),
        (["autotune", "--random"], "no program"),
        (["autotune", "m:f", "--model", "nowhere"], "--model nowhere"),
        (["autotune", "m:f", "m:g", *SHAPES, "--apply", "missing.json"], "missing.json"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    assert message in Command(capsys, *arguments).error("--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("out", "status"), [("user_programs.py/own", 2), ("/proc/own", 1)])
@pytest.mark.parametrize("command", [["collect"], ["autotune", "--random"]])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    command: list[str], out: str, status: int, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hlorank_collect.run_tasks.run_tasks", None)
    assert main([*command, "user_programs:dots", *SHAPES, "--out", out]) == status


OWN = (Path(__file__).parent / "users_own.txt").read_text(encoding="utf-8")


@pytest.fixture
def module(user_module: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that can be imported from the current folder only."""
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    user_module("users_own", OWN)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return "users_own"


def inputs(made: JaxProgram) -> list[Any]:
    return [np.asarray(array) for array in made.trace("cpu").inputs()]


def test_arguments_by_shape(module: str) -> None:
    made = user_program(f"{module}:double", "f32[8,128] s32[8] pred[] bf16[4]")
    floats, integers, scalar, short = inputs(made)
    assert (floats.shape, floats.dtype) == ((8, 128), np.float32)
    assert floats.std() == pytest.approx(0.1, rel=0.1)
    np.testing.assert_array_equal(integers, np.zeros(8, dtype=np.int32), strict=True)
    np.testing.assert_array_equal(scalar, np.asarray(False), strict=True)
    assert (short.shape, str(short.dtype)) == ((4,), "bfloat16")
    np.testing.assert_array_equal(inputs(made)[0], floats)
    assert (made.name, made.family) == ("users_own-double-f32-8-128-s32-8-pred-bf16-4", "users_own-double")
    assert inputs(user_program(f"{module}:none", "")) == []
    long = [user_program(f"{module}:double", " ".join([*99 * ["f32[8,128]"], last])).name for last in ("f32[]", "s8[]")]
    assert ([*map(len, long)], long[0] == long[1]) == ([MAX_NAME] * 2, False)


def test_static_arguments_of_a_jitted_function_are_part_of_the_program(module: str) -> None:
    made = user_program(f"{module}:power", f"{module}:statics")
    parts = HloModuleProto.FromString(made.trace("cpu").module).computations
    assert [node.opcode for part in parts for node in part.instructions].count("multiply") == 2
    assert [array.shape for array in inputs(made)] == [(3,)]
    assert made.result()([np.ones(3)]).shape == (3,)


def test_every_element_type_of_a_parameter_is_an_argument_and_shapes_get_values(module: str) -> None:
    names = {element_type(ShapeProto(element_type=number)): name for number, name in ELEMENT_TYPES.items()}
    made = user_program(f"{module}:double", " ".join(f"{name}[3]" for name in ("f32", *names)))
    arrays = inputs(made)[1:]
    assert [str(array.dtype) for array in arrays] == [*names.values()]
    parameters = HloModuleProto.FromString(made.trace("cpu").module).host_program_shape.parameters[1:]
    assert [parameter.element_type for parameter in parameters] == [*ELEMENT_TYPES]
    small = "float4_e2m1fn"  # whose least number is 0.5
    floats = {name for name in names.values() if ("float" in name or "complex" in name) and name != small}
    assert {str(array.dtype) for array in arrays if array.any()} == floats
    some, table = inputs(user_program(f"{module}:double", f"{module}:shapes"))
    np.testing.assert_array_equal(some, inputs(user_program(f"{module}:double", "f32[3] s32[2,2]"))[0], strict=True)
    np.testing.assert_array_equal(table, np.zeros((2, 2), dtype=np.int32), strict=True)


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("users_own:absent", "no attribute 'absent'"),
        ("users_own", "no colon"),
        ("users_own:", "not callable"),
        ("users_own:constant", "float"),
        ("not a name:f", "invalid format"),
    ],
)
def test_references_without_a_function_are_refused(module: str, reference: str, found: str) -> None:
    for role, arguments in (("function", (reference, "f32[2]")), ("arguments", (f"{module}:double", reference))):
        with pytest.raises(ConfigError, match=f"^{role} '{reference}': .*{found}"):
            user_program(*arguments)


def test_a_program_has_its_own_arguments_and_a_function_needs_shapes_or_a_tuple(module: str) -> None:
    made = user_program(f"{module}:ready", None)
    assert (made.name, made.family, sys.path[-1]) == ("net.b2", "net", str(Path.cwd()))
    with pytest.raises(ConfigError, match="its own"):
        user_program(f"{module}:ready", "f32[2]")
    with pytest.raises(ConfigError, match="needs --arguments"):
        user_program(f"{module}:double", None)
    with pytest.raises(ConfigError, match=r"^arguments .* returned a list"):
        user_program(f"{module}:double", f"{module}:no_tuple").trace("cpu")
    for shape in ("f32[?]", "f32[<=8]", "f32[2,]", "f32[2]{0}"):
        with pytest.raises(ConfigError, match="not a shape") as raised:
            user_program(f"{module}:double", f"s32[1] {shape}")
        assert repr(shape) in str(raised.value)
