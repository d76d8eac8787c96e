from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.hlo.hlo_pb2 import HloModuleProto, HloProto
from hlorank.hlo.layout_space import constrained, layout_space
from hlorank_collect import xla

jax = pytest.importorskip("jax", reason="needs jax (extra collect)")


def program(x: Any, w: Any) -> Any:
    y = jax.lax.conv(x, w, (1, 1), "SAME")
    return {"sum": y.sum(0), "map": jax.numpy.tanh(y).transpose(0, 2, 3, 1).reshape(-1, 4)}


ARGUMENTS = (np.linspace(-1, 1, 512, dtype=np.float32).reshape(2, 4, 8, 8), np.ones((4, 4, 3, 3), np.float32))


@pytest.fixture(scope="module")
def captured() -> HloModuleProto:
    return HloModuleProto.FromString(xla.capture(xla.unoptimized_module(program, ARGUMENTS)))


def opcodes(data: bytes) -> list[str]:
    return [
        one.opcode for computation in HloModuleProto.FromString(data).computations for one in computation.instructions
    ]


def test_the_private_calls_were_tested_with_the_pinned_version() -> None:
    import jaxlib

    assert xla.TESTED == "0.10.2" == jaxlib.__version__
    pins = re.findall(r'"jax(?:lib)?==([^"]*)"', (Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert pins == [xla.TESTED, xla.TESTED]


def test_another_version_is_warned_of_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(xla, "TESTED", "0.0.1")
    xla._device.cache_clear()
    xla.device_name("cpu")
    xla.device_name("cpu")
    # jax may log too, where nothing in this process used it before.
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("hlorank")]
    assert all(part in message for part in (f"jaxlib {jax.__version__}: ", "0.0.1"))


def test_only_one_module_calls_private_parts() -> None:
    folder = Path(xla.__file__).parent
    private = re.compile(r"jax\._src|jaxlib import|import _jax|jaxlib\.(?!__version__)")
    users = [path.name for path in folder.rglob("*.py") if private.search(path.read_text())]
    assert users == ["xla.py"]


def test_modules_come_before_during_and_after_the_passes(captured: HloModuleProto) -> None:
    before = opcodes(xla.unoptimized_module(program, ARGUMENTS))
    during = opcodes(captured.SerializeToString())
    after = opcodes(xla.compile_module(xla.unoptimized_module(program, ARGUMENTS)).module())
    assert "convolution" in before
    assert "convolution" in during
    assert "fusion" in after
    assert "fusion" not in before + during
    # XLA:CPU convolves in NHWC: a pass before layout assignment inserts a transpose.
    assert before.count("transpose") == 1 < during.count("transpose")


def test_of_a_gpu_the_module_before_calls_of_cudnn_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes have the names of a GPU's dumps; conv-rewriter dumps nothing where nothing is convolved."""

    def dump(names: list[str]) -> str:
        def written(module: bytes, platform: str, *, dump: Path) -> None:
            for number, name in enumerate(names):
                proto = HloProto(hlo_module=HloModuleProto(name=name))
                (dump / f"module_1.jit_f.{number:04}.passes.{name}.hlo.pb").write_bytes(proto.SerializeToString())

        monkeypatch.setattr(xla, "compile_module", written)
        return HloModuleProto.FromString(xla.capture(b"", "gpu")).name

    start, rewritten = "after_pipeline-start.before_bf16", "after_conv-rewriter.before_cudnn-fused-convolution-rewriter"
    assigned = "after_layout-assignment.before_sub-byte-size-setter"
    assert dump([start, rewritten, assigned]) == start
    assert dump([start, "after_algsimp.before_dce", assigned]) == "after_algsimp.before_dce"
    with pytest.raises(xla.NotCapturedError):
        dump([start])


def test_equal_programs_give_equal_modules_without_metadata(captured: HloModuleProto) -> None:
    assert HloModuleProto.FromString(xla.capture(xla.unoptimized_module(program, ARGUMENTS))) == captured
    assert not captured.HasField("stack_frame_index")
    assert not any(one.HasField("metadata") for c in captured.computations for one in c.instructions)
    unoptimized = HloModuleProto.FromString(xla.unoptimized_module(program, ARGUMENTS))
    assert any(one.HasField("metadata") for c in unoptimized.computations for one in c.instructions)


@pytest.mark.parametrize("fusion_emitters", [True, False])
def test_every_configuration_computes_what_the_function_does(captured: HloModuleProto, fusion_emitters: bool) -> None:
    space, inputs = layout_space(captured), xla.put(ARGUMENTS)
    configuration = space.default
    for node, tensor, rank in space.slots():
        configuration[node, tensor * 6 : tensor * 6 + rank] = np.roll(np.arange(rank), 1)
    expected = jax.tree.leaves(program(*ARGUMENTS))
    sizes = []
    for one in (space.default, configuration):
        module = constrained(captured, space, one).SerializeToString()
        executable = xla.compile_module(module, fusion_emitters=fusion_emitters)
        for wanted, found in zip(expected, executable.run(inputs), strict=True):
            np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-5, atol=1e-5)
        optimized = opcodes(executable.module())
        assert "custom-call" not in optimized
        sizes.append(optimized.count("copy") + optimized.count("transpose"))
    assert sizes[0] < sizes[1]  # at the borders of the constrained layouts


def test_constrained_layouts_are_in_the_compiled_module() -> None:
    def double(x: Any) -> Any:
        return (x * 2).reshape(4, 6)

    arguments = (np.arange(24, dtype=np.float32).reshape(6, 4),)
    module = HloModuleProto.FromString(xla.capture(xla.unoptimized_module(double, arguments)))
    space = layout_space(module)
    configuration = space.default
    configuration[0, :2] = [0, 1]
    executable = xla.compile_module(constrained(module, space, configuration).SerializeToString())
    found = HloModuleProto.FromString(executable.module())
    layouts = {
        tuple(one.shape.layout.minor_to_major)
        for computation in found.computations
        for one in computation.instructions
        if [*one.shape.dimensions] == [4, 6]
    }
    assert (0, 1) in layouts
    (result,) = executable.run(xla.put(arguments))
    np.testing.assert_array_equal(np.asarray(result), double(arguments[0]))


def test_unused_arguments_random_keys_and_trees_are_passed_on() -> None:
    def draws(key: Any, unused: Any, tree: dict[str, Any]) -> Any:
        return tree["b"] + jax.random.uniform(key, (3,)), tree["a"]

    arguments = (jax.random.key(3), np.zeros(2), {"b": 1.5, "a": np.int64(7)})
    executable = xla.compile_module(xla.unoptimized_module(draws, arguments))
    first, second = executable.run(xla.put(arguments))
    np.testing.assert_array_equal(np.asarray(first), np.asarray(draws(*arguments)[0]))
    assert np.asarray(second) == 7


def test_further_options_are_passed_on_and_unknown_ones_refused() -> None:
    module = xla.unoptimized_module(program, ARGUMENTS)
    fused, unfused = (xla.compile_module(module, overrides=one) for one in (None, {"xla_disable_hlo_passes": "fusion"}))
    assert opcodes(fused.module()) != opcodes(unfused.module())
    with pytest.raises(RuntimeError, match="No such compile option: 'xla_gpu_no_such'"):
        xla.compile_module(module, overrides={"xla_gpu_no_such": 1})


def test_runs_need_no_other_thread() -> None:
    # In a process of its own: jax ignores the setting where another test has made a client.
    code = (
        "import resource\n"
        "import numpy as np\n"
        "from hlorank_collect import xla\n"
        "arguments = (np.ones((8, 8), np.float32),)\n"
        "executable = xla.compile_module(xla.unoptimized_module(lambda x: x @ x, arguments))\n"
        "inputs = xla.put(arguments)\n"
        "executable.run(inputs)\n"
        "switches = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw\n"
        "before = switches()\n"
        "for _ in range(100):\n    executable.run(inputs)\n"
        "print(switches() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20


def test_a_missing_dump_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "compile_module", lambda *_, **__: None)
    with pytest.raises(xla.NotCapturedError, match="0 dumps"):
        xla.capture(xla.unoptimized_module(program, ARGUMENTS))
