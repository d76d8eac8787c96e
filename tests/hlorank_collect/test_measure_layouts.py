from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hlorank.data.collection import read_graph, sidecar_path
from hlorank.data.configurations import LayoutConfigurations
from hlorank.files import read_json
from hlorank.hlo.layout_space import configuration_name
from hlorank_collect.measure_layouts import measure_layouts
from hlorank_collect.program import SkippedError
from hlorank_collect.task import LayoutTask, Progress
from tests.hlorank_collect.tasks import small_task

pytest.importorskip("jax", reason="needs jax (extra collect)")

PROGRAMS = """
import jax
import jax.numpy as jnp
import numpy as np

def fine(x, w):
    return jnp.tanh(x @ w).reshape(-1, 4) @ jnp.ones((4, 3))

def prints(x, w):
    jax.debug.print("{}", x[0, 0])
    return x @ w

def calls_back(x, w):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) @ w

def nothing(x, w):
    return jnp.tanh(x) + w.sum()

def nan(x, w):
    return jnp.log(-jnp.ones(3)) + (x @ w).sum()

def breaks(x, w):
    raise KeyError("oops")
"""


@pytest.fixture
def task(tmp_path: Path, user_module: Callable[[str, str], Path]) -> LayoutTask:
    user_module("layout_programs", PROGRAMS)
    return small_task(
        LayoutTask,
        program="layout_programs:fine",
        arguments="f32[8,16] f32[16,8]",
        collection="layout:cpu:random",
        output=str(tmp_path / "out"),
        configurations=6,
        time_limit=300.0,
    )


def silent(progress: Progress) -> None:
    pass


@pytest.mark.parametrize("search", ["random", "default"])
def test_a_program_is_measured(task: LayoutTask, search: str) -> None:
    task = dataclasses.replace(task, collection=f"layout:cpu:{search}")
    steps: list[Progress] = []
    about = measure_layouts(task, steps.append)
    npz = task.npz(about["name"])
    assert npz.parent == Path(task.output) / "layout" / "cpu" / search
    assert task.is_complete(about["name"])
    assert not dataclasses.replace(task, seed=1).is_complete(about["name"])
    assert read_json(sidecar_path(npz)) == about
    found = read_graph(npz, "layout")
    assert isinstance(found.configurations, LayoutConfigurations)
    assert len(found.configurations) == len(found.measurements) == about["measured"] == 6
    assert about["nodes"] == found.graph.nodes
    assert (found.configurations.values(np.array([0])) == -1).all()
    assert about["runtime_ns"]["default"] == found.measurements.runtime[about["default"]]
    assert found.graph.node_opcode[found.configurations.node_ids].tolist().count(34) == 2
    assert 2 <= about["rounds"] <= 4
    assert about["left_out"] == {}
    assert about["versions"]["jaxlib"] == "0.10.2"
    assert [step.stage for step in steps] == ["trace", *6 * ["compile"], *4 * ["measure"]][: len(steps)]
    assert steps[1].configuration is None
    assert None not in [step.configuration for step in steps[2:7]]
    shares = [step.share for step in steps]
    assert shares == sorted(shares)
    assert shares[-1] <= 1


def test_a_configuration_that_killed_a_process_is_left_out(task: LayoutTask) -> None:
    task = dataclasses.replace(task, rounds=2)
    steps: list[Progress] = []
    measure_layouts(task, steps.append)
    victim = steps[3].configuration
    assert victim is not None
    about = measure_layouts(dataclasses.replace(task, left_out={victim: "it hung"}), silent)
    assert about["left_out"] == {victim: "it hung"}
    configurations = read_graph(task.npz(about["name"]), "layout").configurations
    assert isinstance(configurations, LayoutConfigurations)
    assert victim not in [configuration_name(one) for one in configurations.values()]
    assert len(configurations) == about["measured"] == 5


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("prints", "it has side effects"),
        ("calls_back", "it has side effects"),
        ("breaks", "it does not trace: KeyError: 'oops'"),
        ("nothing", "no convolution, dot or reshape"),
        ("nan", "holds NaN"),
    ],
)
def test_a_program_that_cannot_be_measured_is_skipped_with_its_reason(
    task: LayoutTask, function: str, why: str
) -> None:
    task = dataclasses.replace(task, program=f"layout_programs:{function}")
    with pytest.raises(SkippedError, match=why):
        measure_layouts(task, silent)
    assert not Path(task.output).exists()


def test_after_the_time_limit_only_the_default_is_compiled(task: LayoutTask) -> None:
    with pytest.raises(SkippedError, match="time limit"):
        measure_layouts(dataclasses.replace(task, time_limit=1e-9), silent)
