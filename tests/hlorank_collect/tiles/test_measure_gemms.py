"""Triton GEMM configurations of a program, with XLA's CPU backend in place of its GPU backend."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.data.collection import read_graph
from hlorank.data.configurations import TileConfigurations
from hlorank.files import read_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank_collect import xla
from hlorank_collect.task import Progress, TileTask
from hlorank_collect.tiles import measure_gemms
from hlorank_collect.tiles.measure_gemms import TooFastError
from hlorank_collect.tiles.triton_gemm import (
    Gemm,
    GemmConfiguration,
    GemmSizes,
    UnsupportedGemmError,
    default_configuration,
    draw_configurations,
)
from tests.hlorank_collect.tasks import small_task

PROGRAM = """
import jax.numpy as jnp


def layers(x, w, v):
    return (jnp.tanh(x @ w) @ w) @ v


def again(x, w, v):
    return layers(x, w, v)
"""


@pytest.fixture
def task(tmp_path: Path, user_module: Callable[[str, str], Path]) -> TileTask:
    user_module("gemm_programs", PROGRAM)
    return small_task(
        TileTask,
        program="gemm_programs:layers",
        arguments="f32[64,128] f32[128,128] f32[128,1]",
        collection="tile:gpu",
        output=str(tmp_path / "out"),
        configurations=6,
        rounds=3,
        time_limit=60,
    )


class Broken:
    """An executable with a changed result."""

    def __init__(self, executable: xla.Executable, change: Callable[[Any], Any]) -> None:
        self._executable, self._change = executable, change

    def run(self, inputs: Any) -> list[Any]:
        return [self._change(np.array(output)) for output in self._executable.run(inputs)]


def change_result(monkeypatch: pytest.MonkeyPatch, change: Callable[[GemmConfiguration, Any], Any]) -> None:
    compile_gemm = measure_gemms.compile_gemm

    def changed(module: HloModuleProto, configuration: GemmConfiguration, platform: xla.Platform) -> Any:
        executable = compile_gemm(module, configuration, platform)
        return Broken(executable, lambda output: change(configuration, output))

    monkeypatch.setattr(measure_gemms, "compile_gemm", changed)


@pytest.mark.usefixtures("cpu_as_gpu")
def test_products_of_a_program_are_measured(task: TileTask) -> None:
    steps: list[Progress] = []
    summary = measure_gemms.measure_gemms(task, steps.append)
    assert summary["harvested"] == {"dot": 1}
    assert summary["repeated"] == 1
    assert summary["left_out"] == {"no matrix product": 1}
    (npz,) = (Path(task.output) / "tile" / "gpu").glob("*.npz")
    assert [*summary["kernels"]] == [npz.stem]
    assert {step.configuration for step in steps[1:]} == {npz.stem}
    assert 1 + 1 + 6 + 2 <= len(steps) <= 1 + 1 + 6 + 3  # trace, the kernel, compilations, rounds

    graph = read_graph(npz, "tile")
    about = read_json(npz.with_suffix(".json"))
    drawn = draw_configurations(
        GemmSizes(1, 0, 64, 128, 128, 4), 6, np.random.default_rng([0, int(about["structure"][:8], 16)])
    )
    assert isinstance(graph.configurations, TileConfigurations)
    for found, one in zip(graph.configurations.feat, drawn, strict=True):
        groups = [(one.block_k,), (one.block_m, one.block_n), (one.split_k, one.num_stages, one.num_warps)]
        for number, values in enumerate(groups):
            padded = (*values, *[0] * (6 - len(values)), sum(values), math.prod(values))
            np.testing.assert_array_equal(found[8 * number : 8 * number + 8], padded)
    assert graph.graph.node_opcode.tolist().count(34) == 1
    assert (graph.measurements.normalizer == graph.measurements.runtime[0]).all()
    assert about["collection"] == "tile:gpu"
    assert about["kind"] == "dot"
    assert about["gemm"] == dataclasses.asdict(GemmSizes(1, 0, 64, 128, 128, 4))
    assert about["left_out"] == {}
    assert about["compiler"]["options"]["xla_gpu_experimental_autotune_backends"] == "TRITON"
    assert "Not TPU data" in about["what"]
    assert about["device"] == "cpu"

    before = npz.stat().st_mtime_ns
    measure_gemms.measure_gemms(task, steps.append)
    assert npz.stat().st_mtime_ns == before


@pytest.mark.usefixtures("cpu_as_gpu")
def test_configurations_that_fail_are_left_out_with_their_reason(
    task: TileTask, gemm: Gemm, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = gemm.sizes
    default, wrong, refused, *others = draw_configurations(
        sizes, 6, np.random.default_rng([0, int(gemm.fingerprint[:8], 16)])
    )

    def change(configuration: GemmConfiguration, output: Any) -> Any:
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


@pytest.mark.usefixtures("cpu_as_gpu")
@pytest.mark.parametrize(
    ("fails", "value", "why"),
    [
        (lambda one, default: one == default, np.nan, "NaN in its result"),
        (lambda one, default: one != default, np.inf, "only its default configuration works: WrongOutputError"),
    ],
)
def test_a_product_that_cannot_be_measured_has_a_reason(
    task: TileTask, gemm: Gemm, monkeypatch: pytest.MonkeyPatch, fails: Any, value: float, why: str
) -> None:
    sizes = gemm.sizes
    default = default_configuration(sizes)
    change_result(monkeypatch, lambda one, output: output * value if fails(one, default) else output)
    with pytest.raises(UnsupportedGemmError, match=why):
        measure_gemms.measure_gemm(gemm, task, lambda _: None)


@pytest.mark.usefixtures("cpu_as_gpu")
def test_a_product_that_xla_gives_to_something_else_is_left_out(
    task: TileTask, gemm: Gemm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_gemms, "_TRITON", b"__triton")
    with pytest.raises(UnsupportedGemmError, match="NotTritonError"):
        measure_gemms.measure_gemm(gemm, task, lambda _: None)


@pytest.mark.usefixtures("cpu_as_gpu")
def test_fast_products_and_those_with_few_configurations_are_left_out(
    task: TileTask, gemm: Gemm, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = dataclasses.replace(task, configurations=100)
    small = dataclasses.replace(gemm, sizes=GemmSizes(1, 0, 8, 8, 8, 4))
    with pytest.raises(UnsupportedGemmError, match=r"\b50\b"):
        measure_gemms.measure_gemm(small, many, lambda _: None)
    monkeypatch.setattr(measure_gemms, "MIN_RUNTIME", 1e15)
    with pytest.raises(TooFastError, match="us"):
        measure_gemms.measure_gemm(gemm, task, lambda _: None)


def silent(progress: Progress) -> None:
    pass


@pytest.mark.usefixtures("cpu_as_gpu")
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
    assert (again["kernels"], again["left_out"]) == ({}, {"measured in another program": 2})
    assert "measured 2" in two.summarize(first)


@pytest.mark.usefixtures("cpu_as_gpu")
def test_a_product_that_ended_the_process_is_left_out(task: TileTask) -> None:
    (name,) = measure_gemms.measure_gemms(task, silent)["kernels"]
    task.npz(name).unlink()
    summary = measure_gemms.measure_gemms(dataclasses.replace(task, left_out={name: "ended by SIGSEGV"}), silent)
    assert summary["kernels"] == {}
    assert summary["left_out"] == {"no matrix product": 1, "ended by SIGSEGV": 1}
