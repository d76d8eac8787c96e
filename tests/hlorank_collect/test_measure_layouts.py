from __future__ import annotations

import dataclasses
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
from tests.hlorank_collect.tasks import silent, small_task


@pytest.fixture
def task(programs: Path) -> LayoutTask:
    return small_task(
        LayoutTask,
        program="user_programs:dots",
        arguments="f32[8,16] f32[16,8]",
        collection="layout:cpu:random",
        output=str(programs / "out"),
        configurations=6,
        time_limit=300.0,
    )


@pytest.mark.parametrize("search", ["random", "default"])
def test_a_program_is_measured(task: LayoutTask, search: str) -> None:
    task = dataclasses.replace(task, collection=f"layout:cpu:{search}")
    steps: list[Progress] = []
    about = measure_layouts(task, steps.append)
    npz = task.npz(about["name"])
    assert task.is_complete(about["name"])
    assert not dataclasses.replace(task, seed=1).is_complete(about["name"])
    assert read_json(sidecar_path(npz)) == about
    found = read_graph(npz, "layout")
    assert isinstance(found.configurations, LayoutConfigurations)
    assert len(found.configurations) == len(found.measurements) == about["measured"] == 6
    assert about["nodes"] == found.graph.nodes
    assert (found.configurations.values(np.array([0])) == -1).all()
    assert about["runtime_ns"]["default"] == found.measurements.runtime[about["default"]]
    assert about["left_out"] == {}
    assert [step.stage for step in steps] == ["trace", *6 * ["compile"], *4 * ["measure"]][: len(steps)]
    assert [step.configuration is None for step in steps[1:7]] == [True, *5 * [False]]
    shares = [step.share for step in steps]
    assert shares == sorted(shares)
    assert shares[-1] <= 1
    victim = str(steps[3].configuration)
    again = measure_layouts(dataclasses.replace(task, left_out={victim: "it hung"}, rounds=2), silent)
    assert again["left_out"] == {victim: "it hung"}
    configurations = read_graph(npz, "layout").configurations
    assert isinstance(configurations, LayoutConfigurations)
    assert victim not in map(configuration_name, configurations.values())
    assert len(configurations) == again["measured"] == 5


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("prints", "it has side effects"),
        ("calls_back", "it has side effects"),
        ("breaks", "it does not trace: KeyError: 'oops'"),
        ("nothing", "no convolution, dot or reshape"),
        ("nan", "holds NaN"),
        ("dots", "time limit"),
    ],
)
def test_a_program_that_cannot_be_measured_is_skipped_with_its_reason(
    task: LayoutTask, function: str, why: str
) -> None:
    task = dataclasses.replace(task, program=f"user_programs:{function}", time_limit=1e-9)
    with pytest.raises(SkippedError, match=why):
        measure_layouts(task, silent)
    assert not Path(task.output).exists()
