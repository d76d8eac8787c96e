"""Triton GEMM configurations of programs; in place of a GPU, XLA's CPU backend, which ignores their options."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlorank.data.collection import read_graph
from hlorank.data.configurations import TileConfigurations
from hlorank.files import read_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank_collect import xla
from hlorank_collect.modules.dataflow import Demand
from hlorank_collect.modules.module_program import draw
from hlorank_collect.program import SkippedError
from hlorank_collect.task import Progress, TileTask
from hlorank_collect.tiles import measure_gemms, triton_gemm
from tests.hlorank_collect.tasks import silent, small_task

jax = pytest.importorskip("jax", reason="needs jax (extra collect)")

CONFIGURATION = triton_gemm.GemmConfiguration(block_m=64, block_n=128, block_k=32, split_k=4, num_stages=3, num_warps=8)
SIZES = st.integers(2, 5000)
PROGRAM = """
import jax.numpy as jnp

def layers(x, w, v):
    return (jnp.tanh(x @ w) @ w) @ v

def again(x, w, v):
    return layers(x, w, v)
"""


def gemms_of(function: Callable[..., Any], *arguments: Any) -> tuple[list[triton_gemm.Gemm], Counter[str]]:
    """Find the products of a function of float32 arrays of these shapes, or of these arrays."""
    arrays = [np.zeros(one, np.float32) if isinstance(one, tuple) else one for one in arguments]
    return triton_gemm.extract_gemms("program", HloModuleProto.FromString(xla.unoptimized_module(function, arrays)))


@pytest.fixture
def gemm() -> triton_gemm.Gemm:
    """The product of a (64, 128) and a (128, 96) matrix."""
    ((gemm,), _) = gemms_of(lambda x, y: x @ y, (64, 128), (128, 96))
    return gemm


@pytest.fixture
def task(tmp_path: Path, user_module: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> TileTask:
    """A task whose GPU is the CPU; no product counts as too fast, and Triton is not required."""
    device = xla._device("cpu")
    monkeypatch.setattr(xla, "_device", lambda _: device)
    monkeypatch.setattr(measure_gemms, "_TRITON", b"")
    monkeypatch.setattr(measure_gemms, "MIN_RUNTIME", 0)
    user_module("gemm_programs", PROGRAM)
    return small_task(
        TileTask,
        program="gemm_programs:layers",
        arguments="f32[64,128] f32[128,128] f32[128,1]",
        collection="tile:gpu",
        output=str(tmp_path / "out"),
        configurations=6,
        rounds=3,
    )


def test_the_compiler_reads_the_options_as_intended(gemm: triton_gemm.Gemm, tmp_path: Path) -> None:
    xla.compile_module(
        gemm.module.SerializeToString(), overrides={**CONFIGURATION.options(), **xla.dump_options(tmp_path)}
    )
    (dumped,) = tmp_path.glob("*.debug_options")
    found = dict(line.split(": ", 1) for line in dumped.read_text().splitlines() if ": " in line)
    assert found["xla_gpu_override_gemm_autotuner"] == (
        '"block_m: 64 block_n: 128 block_k: 32 split_k: 1 num_stages: 3 num_warps: 8 num_ctas: 1"'
    )
    assert found["xla_gpu_experimental_force_split_k"] == "4"
    assert found["xla_gpu_experimental_autotune_backends"] == "TRITON"
    assert found["xla_gpu_autotune_level"] == "0"


@settings(deadline=None, max_examples=20)
@given(m=SIZES, n=SIZES, k=SIZES, element_bytes=st.sampled_from([2, 4]), seed=st.integers(0, 9))
def test_configurations_are_distinct_and_fit_and_the_default_is_first(
    m: int, n: int, k: int, element_bytes: int, seed: int
) -> None:
    gemm = triton_gemm.GemmSizes(1, 0, m, n, k, element_bytes)
    found = triton_gemm.draw_configurations(gemm, 12, np.random.default_rng(seed))
    assert found[0] == triton_gemm.default_configuration(gemm)
    assert len(set(found)) == len(found) == 12
    assert all(triton_gemm.fits(one, gemm) for one in found)
    for block, size in ((one.__dict__[f"block_{name}"], gemm.__dict__[name]) for one in found for name in "mnk"):
        assert block < max(2 * size, 17)
        assert block in (16, 32, 64, 128, 256)
    assert found == triton_gemm.draw_configurations(gemm, 12, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((128, 128, 32, 1, 5, 4), True),
        ((256, 128, 16, 1, 1, 8), True),
        ((16, 16, 64, 16, 1, 4), True),
        ((128, 128, 64, 1, 4, 4), False),  # 256 kB of shared memory
        ((256, 128, 16, 1, 1, 4), False),  # 256 sums for each thread
        ((16, 16, 128, 16, 1, 4), False),  # parts of half a block
    ],
)
def test_configurations_that_no_gpu_can_run_are_not_drawn(values: tuple[int, ...], expected: bool) -> None:
    large = triton_gemm.GemmSizes(batch=1, batch_dims=0, m=1024, n=1024, k=1024, element_bytes=4)
    assert triton_gemm.fits(triton_gemm.GemmConfiguration(*values), large) == expected


@pytest.mark.parametrize(
    ("subscripts", "left", "right", "expected"),
    [
        ("mk,kn->mn", (8, 16), (16, 32), triton_gemm.GemmSizes(1, 0, 8, 32, 16, 4)),
        ("km,nk->mn", (16, 8), (32, 16), triton_gemm.GemmSizes(1, 0, 8, 32, 16, 4)),
        ("bmk,bkn->bmn", (3, 8, 16), (3, 16, 32), triton_gemm.GemmSizes(3, 1, 8, 32, 16, 4)),
        ("abmk,abnk->abmn", (2, 3, 8, 16), (2, 3, 32, 16), triton_gemm.GemmSizes(6, 2, 8, 32, 16, 4)),
        ("amkl,kln->amn", (5, 8, 4, 6), (4, 6, 32), triton_gemm.GemmSizes(1, 0, 40, 32, 24, 4)),
    ],
)
def test_sizes_of_a_product(
    subscripts: str, left: tuple[int, ...], right: tuple[int, ...], expected: triton_gemm.GemmSizes
) -> None:
    ((gemm,), _) = gemms_of(lambda x, y: jax.numpy.einsum(subscripts, x, y), left, right)
    # jax may put either operand first
    assert gemm.sizes in (expected, dataclasses.replace(expected, m=expected.n, n=expected.m))
    assert gemm.sizes.work == expected.work


def test_products_are_found_once_wherever_they_are() -> None:
    def steps(x: Any, w: Any) -> Any:
        y, _ = jax.lax.scan(lambda carry, _: (jax.numpy.tanh(carry @ w), None), x, None, length=3)
        return (y @ w) @ w[:, :8]

    gemms, left_out = gemms_of(steps, (16, 32), (32, 32))
    assert [gemm.sizes.n for gemm in gemms] == [32, 8]
    assert left_out == {"equal to another": 1}
    assert [gemm.name for gemm in gemms] == [f"program.{gemm.fingerprint[:8]}" for gemm in gemms]
    ((other,), _) = gemms_of(lambda x, w: jax.numpy.tanh(x) @ w, (16, 32), (32, 32))
    assert other.fingerprint == gemms[0].fingerprint  # of another program


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_a_module_of_one_product_computes_it(dtype: str) -> None:
    ((gemm,), _) = gemms_of(lambda x, y: x @ y, np.zeros((8, 16), dtype), np.zeros((16, 4), dtype))
    assert gemm.sizes.element_bytes == np.dtype(dtype).itemsize
    rng = np.random.default_rng(0)
    operands = [draw(shape, Demand(), rng) for shape in gemm.module.host_program_shape.parameters]
    assert [operand.dtype for operand in operands] == [np.dtype(dtype)] * 2
    (output,) = xla.compile_module(gemm.module.SerializeToString()).run(xla.put(operands))
    left, right = (operand.astype(np.float32) for operand in operands)
    np.testing.assert_allclose(np.asarray(output).astype(np.float32), left @ right, rtol=2e-2, atol=2e-2)


def change_result(monkeypatch: pytest.MonkeyPatch, change: Callable[[triton_gemm.GemmConfiguration, Any], Any]) -> None:
    """Replace the result of each configuration by a function of it."""
    compile_gemm = measure_gemms.compile_gemm

    class Changed:
        def __init__(self, module: Any, configuration: triton_gemm.GemmConfiguration, platform: Any) -> None:
            self._executable, self._configuration = compile_gemm(module, configuration, platform), configuration

        def run(self, inputs: Any) -> list[Any]:
            return [change(self._configuration, np.array(output)) for output in self._executable.run(inputs)]

    monkeypatch.setattr(measure_gemms, "compile_gemm", Changed)


def test_products_of_a_program_are_measured(task: TileTask) -> None:
    steps: list[Progress] = []
    summary = measure_gemms.measure_gemms(task, steps.append)
    assert summary["harvested"] == {"dot": 1}
    assert summary["left_out"] == {"no matrix product": 1, "equal to another": 1}
    (npz,) = (Path(task.output) / "tile" / "gpu").glob("*.npz")
    assert [*summary["kernels"]] == [npz.stem]
    assert {step.configuration for step in steps[1:]} == {npz.stem}
    graph, about = read_graph(npz, "tile"), read_json(npz.with_suffix(".json"))
    sizes = triton_gemm.GemmSizes(1, 0, 64, 128, 128, 4)
    drawn = triton_gemm.draw_configurations(sizes, 6, np.random.default_rng([0, int(about["structure"][:8], 16)]))
    assert isinstance(graph.configurations, TileConfigurations)
    kept = [0, 8, 9, 16, 17, 18]  # columns of the bounds: kernel, output and input
    np.testing.assert_array_equal(
        graph.configurations.feat[:, kept],
        [[one.block_k, one.block_m, one.block_n, one.split_k, one.num_stages, one.num_warps] for one in drawn],
    )
    assert (graph.measurements.normalizer == graph.measurements.runtime[0]).all()
    assert (about["collection"], about["kind"], about["left_out"], about["device"]) == ("tile:gpu", "dot", {}, "cpu")
    assert about["gemm"] == dataclasses.asdict(sizes)


def test_configurations_that_fail_are_left_out_with_their_reason(
    task: TileTask, gemm: triton_gemm.Gemm, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng([0, int(gemm.fingerprint[:8], 16)])
    default, wrong, refused, *others = triton_gemm.draw_configurations(gemm.sizes, 6, rng)

    def change(configuration: triton_gemm.GemmConfiguration, output: Any) -> Any:
        if configuration == refused:
            raise RuntimeError("RESOURCE_EXHAUSTED: shared memory\nmore")
        return output + (configuration == wrong)

    change_result(monkeypatch, change)
    configurations, times, known = measure_gemms.measure_gemm(gemm, task, lambda _: None)
    assert configurations == [default, *others]
    assert times.shape[1] == 4  # the number of rounds depends on the speed of the machine
    assert known["left_out"] == {
        wrong.name: "WrongOutputError: 6144 of 6144 values of output 0 differ from the default's",
        refused.name: "RuntimeError: RESOURCE_EXHAUSTED: shared memory",
    }


def test_a_product_that_cannot_be_measured_has_a_reason(
    task: TileTask, gemm: triton_gemm.Gemm, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = triton_gemm.default_configuration(gemm.sizes)

    def refused(reason: str, measured: triton_gemm.Gemm = gemm, configurations: int = 6) -> None:
        own = dataclasses.replace(task, configurations=configurations)
        with pytest.raises(SkippedError, match=reason):
            measure_gemms.measure_gemm(measured, own, lambda _: None)

    refused(r"\b50\b", dataclasses.replace(gemm, sizes=triton_gemm.GemmSizes(1, 0, 8, 8, 8, 4)), configurations=100)
    with monkeypatch.context() as patch:
        change_result(patch, lambda one, output: output * (np.nan if one == default else 1))
        refused("NaN")
    with monkeypatch.context() as patch:
        change_result(patch, lambda one, output: output * (1 if one == default else np.inf))
        refused("only its default configuration works: WrongOutputError")
    with monkeypatch.context() as patch:
        patch.setattr(measure_gemms, "_TRITON", b"__triton")
        refused("without Triton")
    monkeypatch.setattr(measure_gemms, "MIN_RUNTIME", 1e15)
    refused("takes less than")


def test_what_was_measured_before_is_kept(task: TileTask) -> None:
    two = dataclasses.replace(task, arguments="f32[64,128] f32[128,128] f32[128,16]", kernels=2)
    first = measure_gemms.measure_gemms(two, silent)
    files = {two.npz(name): two.npz(name).stat().st_mtime_ns for name in first["kernels"]}
    assert len(files) == 2
    assert two.is_complete(first["name"])
    two.summary(first["name"]).unlink()  # killed after the products, before the summary
    lost = next(iter(files))
    lost.unlink()
    assert not two.is_complete(first["name"])
    assert [*measure_gemms.measure_gemms(two, silent)["kernels"]] == [*first["kernels"]]
    assert lost.exists()
    assert all(npz.stat().st_mtime_ns == time for npz, time in files.items() if npz != lost)
    again = measure_gemms.measure_gemms(dataclasses.replace(two, program="gemm_programs:again"), silent)
    assert (again["kernels"], again["left_out"]) == ({}, {"measured in another program": 2, "equal to another": 1})
    assert "measured 2" in two.summarize(first)
    lost.unlink()
    killed = measure_gemms.measure_gemms(dataclasses.replace(two, left_out={lost.stem: "ended by SIGSEGV"}), silent)
    assert killed["left_out"] == {"ended by SIGSEGV": 1, "equal to another": 1}
