"""Kernels of a user's program, measured in a child process or in this one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlorank.config import ConfigError
from hlorank.data.collection import read_graph
from hlorank.data.graph import TileConfigurations
from hlorank_collect.run_tasks import run_tasks
from hlorank_collect.task import Progress
from hlorank_collect.tiles.measure_kernels import measure_kernels
from hlorank_collect.tiles.tile_task import TileTask

PROGRAM = """
import jax.numpy as jnp


def layer(x, w):
    return jnp.tanh(x @ w + 1)


def again(x, w):
    return layer(x, w)


def tiny(x, w):
    return x + w


def broken(x, w):
    raise ValueError("no such thing")
"""


@pytest.fixture
def task(task: TileTask, user_module: Callable[[str, str], Path]) -> TileTask:
    """A task of both kernels of the program."""
    user_module("tiled", PROGRAM)
    return dataclasses.replace(task, kernels=2)


def silent(progress: Progress) -> None:
    pass


def test_kernels_are_measured_once(task: TileTask) -> None:
    lines: list[str] = []
    options: dict[str, Any] = {"hang_seconds": 60.0, "echo": lines.append, "check_machine": lambda: None}
    summary = run_tasks([task], **options)
    (program,) = summary.measured
    assert not summary.left_out
    files = sorted(task.folder.glob("*.npz"))
    assert len(files) == 2
    kinds = set()
    for npz in files:
        graph = read_graph(npz, "tile")
        about = json.loads(npz.with_name(npz.stem + ".json").read_text())
        kinds.add(about["kind"])
        runtimes = graph.measurements.runtime
        assert about["measured"] == len(runtimes) == 4
        assert graph.measurements.normalizer is not None
        assert (graph.measurements.normalizer == runtimes[0]).all()
        assert runtimes[0] == about["runtime_ns"]["default"] >= 20_000
        assert isinstance(graph.configurations, TileConfigurations)
        feat = graph.configurations.feat
        assert len(np.unique(feat, axis=0)) == 4
        assert feat[:, 8:10].max(axis=0).tolist() <= [512, 512]
        assert (feat[:, 0].min() >= 1) == (about["kind"] == "dot")
        assert "not TPU data" in about["what"]
        assert "gcc" in about["compiler"]["gcc"]
        assert about["compiler"]["flags"][0] == "-O2"
        assert about["family"]
    assert kinds == {"dot", "loop"}
    assert "measured" in lines[-1]
    assert set(json.loads(task.summary(program).read_text())["kernels"]) == {npz.stem for npz in files}

    before = {npz: npz.stat().st_mtime_ns for npz in files}
    assert run_tasks([task], **options).present == [program]
    task.summary(program).unlink()  # killed after the kernels, before the summary
    files[0].unlink()
    assert run_tasks([task], **options).measured == [program]
    assert files[0].exists()
    assert files[1].stat().st_mtime_ns == before[files[1]]


def test_a_kernel_of_another_program_is_not_measured_again(task: TileTask) -> None:
    again, tiny = (dataclasses.replace(task, program=f"tiled:{name}") for name in ("again", "tiny"))
    tiny = dataclasses.replace(tiny, arguments="f32[8] f32[8]")
    first, second, third = (measure_kernels(one, silent) for one in (task, again, tiny))
    assert len(list(task.folder.glob("*.npz"))) == len(first["kernels"]) == 2
    assert (second["kernels"], [*second["left_out"].values()]) == ({}, [2])
    ((reason, count),) = third["left_out"].items()
    assert (third["kernels"], count) == ({}, 1)
    assert "20 us" in reason


def test_a_kernel_that_ended_the_process_is_left_out(task: TileTask) -> None:
    measure_kernels(dataclasses.replace(task, kernels=1), silent)
    (first,) = task.folder.glob("*.npz")
    first.unlink()
    again = dataclasses.replace(task, kernels=1, seed=1, left_out={first.stem: "the process was ended by SIGSEGV"})
    summary = measure_kernels(again, silent)
    (second,) = task.folder.glob("*.npz")
    assert second.stem != first.stem
    assert summary["left_out"] == {"the process was ended by SIGSEGV": 1}


def test_a_program_that_fails_does_not_end_the_others(task: TileTask) -> None:
    broken = dataclasses.replace(task, program="tiled:broken")
    summary = run_tasks([broken], hang_seconds=60, echo=lambda _: None, check_machine=lambda: None)
    (reason,) = summary.left_out.values()
    assert "no such thing" in reason


def test_a_busy_machine_is_refused_before_anything_runs(task: TileTask) -> None:
    def busy() -> None:
        raise ConfigError("the machine is busy")

    with pytest.raises(ConfigError, match="busy"):
        run_tasks([task], hang_seconds=60, echo=lambda _: None, check_machine=busy)
    assert not task.folder.exists()
