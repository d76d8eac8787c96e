"""Estimates of programs for TPUs: sums over modules, proposed layouts, and the compiler where it is installed."""

import subprocess
import sys
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from hlorank.config import ConfigError
from hlorank.data.collection import read_graph
from hlorank.data.configurations import LayoutConfigurations
from hlorank.files import write_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import Layouts, LayoutSpace, configuration_name, outputs, tpu_layout_space
from hlorank_collect import measure_layouts, record, xla
from hlorank_collect.autotune.tune_program import tune
from hlorank_collect.autotune.tuned import Tuned, TuneTask
from hlorank_collect.child_process import environment, supervise
from hlorank_collect.commands.collect import _attached, _collection
from hlorank_collect.compiled_layouts import Attempts
from hlorank_collect.program import SkippedError, require_device
from hlorank_collect.task import LayoutTask
from hlorank_collect.tpu.estimate import CORES, Cost, OptimizedModule, padded_bytes
from hlorank_collect.tpu.estimated_layouts import CODE, EstimatedLayouts, TpuProgram
from tests.hlorank_collect.tasks import SHAPES, parsed, silent, small_task

pytest.importorskip("jax", reason="needs jax (extra collect)")
compiler = pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu (extra tpu)")

LOOP, ENTRY = ((Path(__file__).parent / f"{name}.hlo.txt").read_text(encoding="utf-8") for name in ("loop", "entry"))


def loop(bound: int, direction: str) -> str:
    return LOOP.replace("BOUND", str(bound)).replace("DIRECTION", direction)


@pytest.mark.parametrize(("bound", "direction", "trips"), [(9, "LT", 4), (9, "LE", 5), (10, "LT", 5), (1, "LT", 0)])
def test_costs_are_summed_through_loops_and_branches(bound: int, direction: str, trips: int) -> None:
    cost = OptimizedModule(parsed(ENTRY, loop(bound, direction))).cost
    assert cost.cycles == 100 * trips + 7 + 5
    assert dict(cost.unknown) == {"cosine": 1, "reshape": 1}
    assert cost.moved == 2 * (4096 + 4096)
    assert cost.padded == (trips + 4) * (4096 + 4096)
    assert (cost.copies, cost.kernels) == (1, trips + 4)
    moved = (trips + 4) * (1000 / 0.94 + 8192 / 225)
    assert replace(cost, cycles=0).nanoseconds(CORES["tpu-v3"]) == pytest.approx(moved)
    assert cost.nanoseconds(CORES["tpu-v3"]) == pytest.approx((100 * trips + 12) / 0.94 + 4 * 4096 / 450)


def test_a_loop_that_counts_otherwise_is_named() -> None:
    text = loop(9, "LT").replace("s32[] constant(2)", "s32[] get-tuple-element(%p), index=0")
    assert OptimizedModule(parsed(ENTRY, text)).cost.unknown["while"] == 1


def test_prefetches_run_beside_the_rest() -> None:
    core = CORES["tpu-v5e"]
    assert Cost(cycles=1500, prefetched=819).nanoseconds(core) == pytest.approx(1000)
    assert Cost(cycles=1500, prefetched=819 * 2000).nanoseconds(core) == pytest.approx(2000)


def test_arrays_are_padded_to_the_tiles_of_their_layouts() -> None:
    shape = HloModuleProto().host_program_shape.result
    shape.element_type = 16  # bf16
    shape.dimensions[:] = [3, 5, 130]
    shape.layout.minor_to_major[:] = [1, 2, 0]
    shape.layout.tiles.add(dimensions=[8, 128])
    assert padded_bytes(shape) == 3 * 128 * 136 * 2
    shape.layout.minor_to_major[:] = [2, 1, 0]
    assert padded_bytes(shape) == 3 * 8 * 256 * 2
    shape.layout.ClearField("tiles")
    assert padded_bytes(shape) == 3 * 5 * 130 * 2


def test_layouts_are_those_that_the_compiler_takes() -> None:
    module = parsed("""
      %x = f32[2,9,9,4] parameter(0)
      %k = f32[3,3,4,8] parameter(1)
      %y = f32[2,9,9,8] convolution(%x, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
      %z = f32[2,9,9,8] negate(%y)
      %c = f32[4,2,9,9] convolution(%z, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01oi->fb01
      ROOT %r = f32[8,81] reshape(%c)
    """)
    space = tpu_layout_space(module)
    assert space.ranks.tolist() == [[4, 0, 0], [4, 4, 0], [0, 0, 0]]  # no parameters of the program, no reshapes
    assert space.orders[0, 0].tolist() == [[3, 0, 2, 1], [0, 3, 2, 1]]
    assert space.orders[1, 0].tolist() == [[0, 1, 3, 2], [1, 0, 3, 2]]
    assert space.size == 3 * 3 * 25
    drawn = outputs(space, 9, np.random.default_rng(0), lambda _: np.zeros(0))
    assert len(drawn) == 9
    assert (drawn[:, :, 6:] == -1).all()


def test_what_cannot_be_estimated_is_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hlorank_collect.program.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"tpu-v3: .*hlorank\[tpu\]"):
        require_device("tpu-v3")
    for address in ("tile:tpu-v3", "layout:tpu-v9:random"):
        with pytest.raises(ConfigError, match=address):
            _collection(address)


@pytest.mark.parametrize("model", ["cycles", "bytes"])
def test_estimates_of_a_process_that_ended_are_not_made_again(tmp_path: Path, model: str) -> None:
    space = LayoutSpace(np.array([3]), np.array([[2, 0, 0]]))
    compiled: list[str] = []

    class Compiler:
        platform = "tpu-v3"

        def __init__(self) -> None:
            self.space = space

        def cost(self, configuration: Layouts, *, by_bytes: bool) -> Cost:
            assert by_bytes == (model == "bytes")
            compiled.append(configuration_name(configuration))
            cycles, padded = (94 * len(compiled), 22500 * len(compiled))
            return Cost(cycles * (not by_bytes), padded=padded, copies=1, unknown=Counter(["copy-start"]))

    memory = tmp_path / "program.partial"
    layouts = outputs(space, 3, np.random.default_rng(0), lambda _: np.zeros(0))
    announced, forbidden = list[str | None](), {CODE: "slow"} if model == "bytes" else {}
    program = cast("TpuProgram", Compiler())
    first = EstimatedLayouts(program, memory, Attempts(announced.append, forbidden))
    assert announced == [None, CODE][: 2 - len(forbidden)]
    assert first.runtimes(layouts[:2]) == pytest.approx([100, 200])
    memory.write_text(memory.read_text() + '["half')
    again = EstimatedLayouts(program, memory, Attempts(forbidden={}))
    assert again.runtimes(layouts) == pytest.approx([100, 200, 300])
    assert compiled == [*map(configuration_name, layouts)]
    assert first.about(layouts[:2]) == again.about(layouts[:2])
    assert (first.left_out, first.about(layouts[:1])["estimated_by"]) == ({}, model)


@compiler
@pytest.mark.slow
def test_estimates_are_those_of_the_compiler_and_the_same_again(programs: Path) -> None:
    task = small_task(
        LayoutTask,
        program="user_programs:dots",
        arguments="f32[256,512] f32[512,384]",
        collection="layout:tpu-v3:random",
        output=str(programs / "out"),
    )
    outcome = supervise(task, hang_seconds=300)
    assert outcome.about is not None, outcome.reason
    assert (outcome.about["runtimes"], outcome.about["device"]) == ("estimated", "TPU v3")
    graph = read_graph(task.npz(outcome.about["name"]), "layout")
    assert isinstance(graph.configurations, LayoutConfigurations)
    assert len(graph.configurations) == outcome.about["measured"] == 4
    assert graph.measurements.runtime[0] == outcome.about["runtime_ns"]["default"] > 100
    assert {**outcome.about, "seconds": 0} == {**(supervise(task, hang_seconds=300).about or {}), "seconds": 0}


COMPILED = """
import json
from pathlib import Path
import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_json import to_configuration
from hlorank.hlo.layout_space import random
from hlorank_collect import xla
from hlorank_collect.compiled_layouts import Attempts
from hlorank_collect.program import JaxProgram
from hlorank_collect.tpu.estimate import CORES, OptimizedModule
from hlorank_collect.tpu.estimated_layouts import EstimatedLayouts, TpuProgram
from hlorank_collect.tpu.proposals import compiler_options

def net(x, w, v):
    convolve = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", None, None, ("NHWC", "HWIO", "NHWC"))
    return convolve(jax.numpy.tanh(convolve(x, w)), v).sum()

arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 16, 16, 24), (3, 3, 24, 48), (3, 3, 48, 16))]
program = JaxProgram("net", "net", lambda: (net, tuple(arguments)))
compiled = TpuProgram(program, "tpu-v3")
estimated = EstimatedLayouts(compiled, None, Attempts())
layouts = random(compiled.space, 8, np.random.default_rng(0), estimated.runtimes)
runtimes = estimated.runtimes(layouts)
place = np.flatnonzero(np.isfinite(runtimes) & (runtimes != runtimes[0]))[0]  # others are refused by the compiler
about = dict(hlorank="0", model="random", collection="layout:tpu-v3:random", backend="tpu-v3", rank=1, score=0.0)
chosen = to_configuration(compiled.module, layouts[place], about).model_dump(mode="json")
saved = dict(program="", arguments="", platform="tpu-v3", seed=0, configuration=chosen)
Path("tuned.json").write_text(json.dumps(saved))
device = SingleDeviceSharding(xla._tpu("tpu-v3"))
lowered = jax.jit(net).lower(*(jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=device) for one in arguments))
(module,) = lowered.compile(compiler_options(lowered, "tuned.json")).runtime_executable().hlo_modules()
optimized = OptimizedModule(HloModuleProto.FromString(module.as_serialized_hlo_module_proto()))
print(runtimes[place], optimized.cost.nanoseconds(CORES["tpu-v3"]))
"""


@compiler
@pytest.mark.slow
def test_jax_compiles_the_program_that_was_estimated_with_the_options_of_its_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPILED]
    printed = subprocess.check_output(command, env=environment("tpu-v3"), cwd=tmp_path, text=True)
    estimate, compiled = map(float, printed.split())
    assert estimate == compiled


def test_the_best_estimate_wins(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = parsed("""
      %x = f32[8,16] parameter(0)
      %w = f32[16,8] parameter(1)
      %y = f32[8,8] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      ROOT %z = f32[8,8] dot(%y, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    """)
    cycles = dict[str, float]()

    class Compiler:
        def __init__(self, *_: object) -> None:
            self.module, self.space, self.platform = module, tpu_layout_space(module), "tpu-v3"

        def cost(self, configuration: Layouts, *, by_bytes: bool) -> Cost:
            assert not by_bytes
            return Cost(cycles.setdefault(configuration_name(configuration), 1000 - 100 * len(cycles)))

    monkeypatch.setattr(measure_layouts, "TpuProgram", Compiler)
    monkeypatch.setattr(record, "conditions", lambda _: {"runtimes": "estimated"})
    monkeypatch.setattr("hlorank_collect.task.version", lambda _: "2")  # libtpu is optional
    shared = {"program": "user_programs:dots", "arguments": SHAPES, "output": "tuned"}
    task = small_task(TuneTask, **shared, collection="layout:tpu-v3:random", configurations=12, budget=4)
    about = tune(task, silent)
    assert [tried["relative_runtime"] for tried in about["measured"]] == pytest.approx([0.9, 0.8, 0.7, 0.6])
    assert about["winner"] == min(cycles, key=cycles.__getitem__)
    assert [*about["speedup"].values()] == pytest.approx(3 * [1 / 0.6])
    with pytest.raises(SkippedError, match=task.saved(about["name"]).stem):
        Tuned(task.saved(about["name"]))


def test_a_folder_says_whether_runtimes_are_measured_or_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str | None] = ["tpu-v3"]
    monkeypatch.setattr("hlorank_collect.program.require_device", lambda _: None)
    monkeypatch.setattr("hlorank_collect.commands.collect.version", lambda _: "2")
    monkeypatch.setattr(xla, "attached_tpu", lambda: found[0])
    collection, here = _collection("layout:tpu-v3:random"), Namespace(out=tmp_path)
    graph = tmp_path / collection.path / "a.npz"
    graph.parent.mkdir(parents=True)
    assert _attached(here, collection)
    graph.touch()
    for runtimes, version, attached, expected in (
        ("estimated", "2", "tpu-v3", False), ("measured", "2", "tpu-v3", True), ("estimated", "2", None, False),
        ("measured", "2", "tpu-v4", None), ("estimated", "1", None, None),
    ):  # fmt: skip
        about = {"collection": str(collection), "runtimes": runtimes, "device": "TPU v3"}
        write_json(graph.with_suffix(".json"), about | {"versions": {"libtpu": version}})
        found[0] = attached
        if expected is None:
            with pytest.raises(ConfigError, match=f"{runtimes}.*libtpu {version}.*here is libtpu 2"):
                _attached(here, collection)
        else:
            assert _attached(here, collection) == expected
