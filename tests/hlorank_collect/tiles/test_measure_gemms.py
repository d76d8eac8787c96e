"""Triton GEMM configurations of a program, with XLA's CPU backend in place of its GPU backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.data.collection import read_graph
from hlorank.data.configurations import TileConfigurations
from hlorank.files import read_json
from hlorank_collect.task import Progress, TileTask
from hlorank_collect.tiles import measure_gemms
from hlorank_collect.tiles.triton_gemm import (
    Gemm,
    GemmConfiguration,
    GemmSizes,
    UnsupportedGemmError,
    default_configuration,
    draw_configurations,
)
from tests.hlorank_collect.tasks import silent, small_task

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
    )


def change_result(monkeypatch: pytest.MonkeyPatch, change: Callable[[GemmConfiguration, Any], Any]) -> None:
    """Replace the result of each configuration by a function of it."""
    compile_gemm = measure_gemms.compile_gemm

    class Changed:
        def __init__(self, module: Any, configuration: GemmConfiguration, platform: Any) -> None:
            self._executable, self._configuration = compile_gemm(module, configuration, platform), configuration

        def run(self, inputs: Any) -> list[Any]:
            return [change(self._configuration, np.array(output)) for output in self._executable.run(inputs)]

    monkeypatch.setattr(measure_gemms, "compile_gemm", Changed)


@pytest.mark.usefixtures("cpu_as_gpu")
def test_products_of_a_program_are_measured(task: TileTask) -> None:
    steps: list[Progress] = []
    summary = measure_gemms.measure_gemms(task, steps.append)
    assert (summary["harvested"], summary["repeated"]) == ({"dot": 1}, 1)
    assert summary["left_out"] == {"no matrix product": 1}
    (npz,) = (Path(task.output) / "tile" / "gpu").glob("*.npz")
    assert [*summary["kernels"]] == [npz.stem]
    assert {step.configuration for step in steps[1:]} == {npz.stem}
    graph, about = read_graph(npz, "tile"), read_json(npz.with_suffix(".json"))
    rng = np.random.default_rng([0, int(about["structure"][:8], 16)])
    drawn = draw_configurations(GemmSizes(1, 0, 64, 128, 128, 4), 6, rng)
    assert isinstance(graph.configurations, TileConfigurations)
    kept = [0, 8, 9, 16, 17, 18]  # columns of the bounds: kernel, output and input
    np.testing.assert_array_equal(
        graph.configurations.feat[:, kept],
        [[one.block_k, one.block_m, one.block_n, one.split_k, one.num_stages, one.num_warps] for one in drawn],
    )
    assert (graph.measurements.normalizer == graph.measurements.runtime[0]).all()
    assert (about["collection"], about["kind"], about["left_out"], about["device"]) == ("tile:gpu", "dot", {}, "cpu")
    assert about["gemm"] == dataclasses.asdict(GemmSizes(1, 0, 64, 128, 128, 4))


@pytest.mark.usefixtures("cpu_as_gpu")
def test_configurations_that_fail_are_left_out_with_their_reason(
    task: TileTask, gemm: Gemm, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng([0, int(gemm.fingerprint[:8], 16)])
    default, wrong, refused, *others = draw_configurations(gemm.sizes, 6, rng)

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
def test_a_product_that_cannot_be_measured_has_a_reason(
    task: TileTask, gemm: Gemm, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = default_configuration(gemm.sizes)

    def refused(reason: str, measured: Gemm = gemm, configurations: int = 6) -> None:
        own = dataclasses.replace(task, configurations=configurations)
        with pytest.raises(UnsupportedGemmError, match=reason):
            measure_gemms.measure_gemm(measured, own, lambda _: None)

    refused(r"\b50\b", dataclasses.replace(gemm, sizes=GemmSizes(1, 0, 8, 8, 8, 4)), configurations=100)
    with monkeypatch.context() as patch:
        change_result(patch, lambda one, output: output * (np.nan if one == default else 1))
        refused("NaN in its result")
    with monkeypatch.context() as patch:
        change_result(patch, lambda one, output: output * (1 if one == default else np.inf))
        refused("only its default configuration works: WrongOutputError")
    with monkeypatch.context() as patch:
        patch.setattr(measure_gemms, "_TRITON", b"__triton")
        refused("without Triton")
    monkeypatch.setattr(measure_gemms, "MIN_RUNTIME", 1e15)
    refused("takes less than")


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
    lost.unlink()
    killed = measure_gemms.measure_gemms(dataclasses.replace(two, left_out={lost.stem: "ended by SIGSEGV"}), silent)
    assert killed["left_out"] == {"ended by SIGSEGV": 1}
