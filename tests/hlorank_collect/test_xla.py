"""XLA's compiler and the machine: captured, compiled and exported modules, and their outputs."""

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.config import ConfigError
from hlorank.hlo.entry_layouts import EntryLayouts, entry_layouts
from hlorank.hlo.forms import hlo_text
from hlorank.hlo.hlo_pb2 import HloModuleProto, HloProto
from hlorank.hlo.layout_json import ModuleConfiguration, apply, module_fingerprint, to_configuration
from hlorank.hlo.layout_space import constrained, layout_space, random
from hlorank.hlo.reader import DUMPS
from hlorank.hlo.xla_process import in_process
from hlorank_collect import machine, xla, xla_jobs, xla_texts
from hlorank_collect.timing import difference

jax = pytest.importorskip("jax", reason="needs jax (extra collect)")

ABOUT = {"hlorank": "0.1.0", "model": "m", "collection": "layout:cpu:random", "backend": "cpu", "rank": 1, "score": 0.0}


def program(x: Any, w: Any) -> Any:
    y = jax.lax.conv(x, w, (1, 1), "SAME")
    return {"sum": y.sum(0), "map": jax.numpy.tanh(y).transpose(0, 2, 3, 1).reshape(-1, 4)}


ARGUMENTS = (np.linspace(-1, 1, 512, dtype=np.float32).reshape(2, 4, 8, 8), np.ones((4, 4, 3, 3), np.float32))


@pytest.fixture(scope="module")
def captured() -> HloModuleProto:
    return HloModuleProto.FromString(xla.capture(xla.unoptimized_module(program, ARGUMENTS)))


def opcodes(data: bytes) -> list[str]:
    module = HloModuleProto.FromString(data)
    return [one.opcode for computation in module.computations for one in computation.instructions]


def test_private_calls_are_in_two_modules_and_were_tested_with_the_pinned_version() -> None:
    import jaxlib

    assert xla.TESTED == "0.10.2" == jaxlib.__version__
    pins = re.findall(r'"jax(?:lib)?==([^"]*)"', (Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert {*pins} == {xla.TESTED}
    private = re.compile(r"jax\._src|jaxlib import|import _jax|jaxlib\.(?!__version__)")
    users = [path.name for path in Path(xla.__file__).parent.rglob("*.py") if private.search(path.read_text())]
    assert sorted(users) == ["xla.py", "xla_texts.py"]


def test_modules_come_before_during_and_after_the_passes(captured: HloModuleProto) -> None:
    before = opcodes(xla.unoptimized_module(program, ARGUMENTS))
    during = opcodes(captured.SerializeToString())
    after = opcodes(xla.compile_module(xla.unoptimized_module(program, ARGUMENTS)).module())
    assert ("convolution" in before, "convolution" in during, "fusion" in during, "fusion" in after) == (
        True, True, False, True,
    )  # fmt: skip
    # XLA:CPU convolves in NHWC: a pass before layout assignment inserts a transpose.
    assert before.count("transpose") == 1 < during.count("transpose")


def test_of_a_cpu_only_the_module_that_is_read_is_dumped(
    captured: HloModuleProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumped: list[list[str]] = []
    compile_module = xla.compile_module

    def counted(module: bytes, platform: xla.Platform, overrides: xla.Overrides) -> None:
        compile_module(module, platform, {**overrides, "xla_dump_hlo_pass_re": ".*"} if dumped else overrides)
        dumped.append([path.name for path in Path(str(overrides["xla_dump_to"])).glob("*.hlo.pb")])

    monkeypatch.setattr(xla, "compile_module", counted)
    module = xla.unoptimized_module(program, ARGUMENTS)
    few, all_passes = (HloModuleProto.FromString(xla.capture(module)) for _ in range(2))
    assert few == all_passes == captured
    assert len(dumped[0]) == 4 < len(dumped[1])  # with the first and the last module


def test_what_comes_after_layout_assignment_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler works on when the module is there; its errors before that time are raised."""
    ended: list[object] = []
    monkeypatch.setattr("atexit.register", lambda *call: ended.append(call))
    monkeypatch.setattr(xla_jobs, "_PATIENCE", 0.1)
    compile_module, go_on = xla.compile_module, threading.Event()

    def slow(*arguments: Any) -> None:
        compile_module(*arguments)
        if go_on.wait(60):
            raise RuntimeError("of code generation")

    monkeypatch.setattr(xla, "compile_module", slow)
    module = xla.unoptimized_module(program, ARGUMENTS)
    found = HloModuleProto.FromString(xla.capture(module, "cpu", xla_jobs._impatient))
    assert (ended, found.computations[0].instructions[0].opcode) == ([(os._exit, 0)], "parameter")
    go_on.set()
    monkeypatch.setattr(xla_jobs, "_PATIENCE", 60)
    with pytest.raises(RuntimeError, match="of code generation"):
        xla.capture(module, "cpu", xla_jobs._impatient)
    assert len(ended) == 1


def test_of_a_gpu_the_module_before_calls_of_cudnn_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes have the names of a GPU's dumps; conv-rewriter dumps nothing where nothing is convolved."""

    def dump(names: list[str]) -> str:
        def written(module: bytes, platform: str, overrides: xla.Overrides) -> None:
            for number, name in enumerate(names):
                proto = HloProto(hlo_module=HloModuleProto(name=name))
                path = Path(str(overrides["xla_dump_to"]))
                (path / f"module_1.jit_f.{number:04}.passes.{name}.hlo.pb").write_bytes(proto.SerializeToString())

        monkeypatch.setattr(xla, "compile_module", written)
        return HloModuleProto.FromString(xla.capture(b"", "gpu")).name

    start, rewritten = "after_pipeline-start.before_bf16", "after_conv-rewriter.before_cudnn-fused-convolution-rewriter"
    assigned = "after_layout-assignment.before_sub-byte-size-setter"
    assert dump([start, rewritten, assigned]) == start
    assert dump([start, "after_algsimp.before_dce", assigned]) == "after_algsimp.before_dce"
    with pytest.raises(xla.NotCapturedError):
        dump([start])


def test_every_configuration_computes_what_the_function_does(captured: HloModuleProto) -> None:
    space, inputs = layout_space(captured), xla.put(ARGUMENTS)
    configuration = space.default
    for node, tensor, rank in space.slots():
        configuration[node, tensor * 6 : tensor * 6 + rank] = np.roll(np.arange(rank), 1)
    expected = jax.tree.leaves(program(*ARGUMENTS))
    sizes = []
    for one in (space.default, configuration):
        executable = xla.compile_module(constrained(captured, space, one).SerializeToString())
        for wanted, found in zip(expected, executable.run(inputs), strict=True):
            np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-5, atol=1e-5)
        optimized = opcodes(executable.module())
        assert "custom-call" not in optimized
        sizes.append(optimized.count("copy") + optimized.count("transpose"))
    assert sizes[0] < sizes[1]  # at the borders of the constrained layouts


def test_exported_texts_compute_what_the_default_computes() -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)

    def looped(x: Any) -> Any:
        last, sums = jax.lax.scan(lambda carry, row: (carry @ carry.T, row.sum()), x @ x.T, x)
        return jax.numpy.tanh(last).reshape(2, 2, 4).transpose(2, 0, 1), sums

    def outputs(module: HloModuleProto) -> list[Any]:
        return [np.asarray(one) for one in xla.compile_module(module.SerializeToString()).run(xla.put([x]))]

    module = HloModuleProto.FromString(xla.capture(xla.unoptimized_module(looped, [x])))
    for one in random(layout_space(module), 4, np.random.default_rng(0), lambda rows: np.zeros(len(rows))):
        saved = to_configuration(module, one, ABOUT).model_dump_json()
        constrained = apply(module, ModuleConfiguration.model_validate_json(saved))
        text = hlo_text(constrained.SerializeToString())
        parsed = HloModuleProto.FromString(xla_texts.parse(text.encode(), stablehlo=False))
        assert difference(outputs(module), outputs(parsed)) is None


def test_unused_arguments_random_keys_and_trees_are_passed_on() -> None:
    def draws(key: Any, unused: Any, tree: dict[str, Any]) -> Any:
        return tree["b"] + jax.random.uniform(key, (3,)), tree["a"]

    arguments = (jax.random.key(3), np.zeros(2), {"b": 1.5, "a": np.int64(7)})
    executable = xla.compile_module(xla.unoptimized_module(draws, arguments))
    first, second = executable.run(xla.put(arguments))
    np.testing.assert_array_equal(np.asarray(first), np.asarray(draws(*arguments)[0]))
    assert np.asarray(second) == 7


def test_a_machine_is_described_and_refused_where_it_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.busy_cores() >= 0
    monkeypatch.setattr(machine, "busy_cores", lambda: 1.5)
    with pytest.raises(ConfigError, match=r"1\.5.*--allow-busy"):
        machine.require_quiet()
    monkeypatch.setenv("XLA_FLAGS", "--xla_x=1")
    description = machine.description()
    assert json.loads(json.dumps(description)) == description
    assert description["xla_flags"] == "--xla_x=1"
    assert description["cpu"]
    assert set(description["versions"]) == {"python", "hlorank", "jax", "jaxlib"}
    for name, text in (("_MAPS", "00400000-00452000 r-xp\n00651000-00652000 r--p\n"), ("_MAX_MAPS", "8\n")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(machine, name, tmp_path / name)
    assert machine.used_mappings() == 0.25


def test_entry_layouts_of_jax_functions_are_obeyed_and_inputs_have_them() -> None:
    from jax.experimental.layout import Format, Layout
    from jax.sharding import SingleDeviceSharding

    columns = Format(Layout((1, 0)), SingleDeviceSharding(jax.devices("cpu")[0]))
    left, right = (np.random.default_rng(seed).standard_normal((3, 4)).astype(np.float32) for seed in range(2))

    def product(a: Any, b: Any) -> Any:
        return a @ b.T

    asked = jax.jit(product, in_shardings=(None, columns), out_shardings=columns)
    for function, arguments in ((asked, (left, right)), (product, (left, jax.device_put(right, columns)))):
        module = xla.capture(xla.unoptimized_module(function, arguments))
        layouts = entry_layouts(HloModuleProto.FromString(module))
        assert layouts == EntryLayouts([(), (0, 1)], [(0, 1) if function is asked else ()])
        (output,) = xla.compile_module(module).run(xla.put(arguments, layouts=layouts.parameters))
        np.testing.assert_allclose(np.asarray(output), left @ right.T, rtol=1e-6)


def transposed(x: Any, w: Any) -> Any:
    return x @ w.T


def test_a_function_and_its_file_are_compiled_alike() -> None:
    """Flags of XLA decide whether the transpose becomes a part of the dot."""
    function, shapes = f"{__name__}:{transposed.__name__}", "f32[32,64] f32[32,64]"
    before, direct = (in_process("trace", b"", function, stage, "cpu", shapes) for stage in reversed(DUMPS))
    modules = map(HloModuleProto.FromString, (in_process("capture", before, "cpu"), direct))
    assert len({*map(module_fingerprint, modules)}) == 1
