"""Measuring of layouts, files of measured graphs, what was left out, and the tables of a data card."""

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from hlorank.data.collection import Collection, read_graph, sidecar_path
from hlorank.data.configurations import LayoutConfigurations
from hlorank.files import DataError, read_json
from hlorank.hlo.layout_space import configuration_name
from hlorank_collect import record
from hlorank_collect.measure_layouts import measure_layouts
from hlorank_collect.program import SkippedError
from hlorank_collect.record import LEFT_OUT, read_left_out, record_left_out
from hlorank_collect.task import LayoutTask, Progress
from scripts.card import main
from tests.data.npz_files import assert_holds, layout_arrays, save
from tests.hlorank_collect.tasks import DOTS, silent, small_task


@pytest.fixture
def task(programs: Path) -> LayoutTask:
    return small_task(LayoutTask, **DOTS, output=str(programs / "out"), configurations=6, time_limit=300.0)


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
        ("reads", r"it does not trace: .*weights\.bin"),
        ("downloads", "it does not trace: (URL|HTTP)Error"),
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


def test_what_is_written_is_read_back_and_half_of_a_pair_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a.npz", layout_arrays())
    times = np.array([[900.4, 1500.0, 7.0], [901.0, 1500.0, 7.0], [899.0, 1500.0, 7.0]])
    measured = dataclasses.replace(read_graph(tmp_path / "a.npz", "layout"), measurements=record.measurements(times))
    task = small_task(LayoutTask, program="p", collection="layout:cpu:random", output=str(tmp_path))
    npz, name, about = task.npz("a.b.forward"), "a.b.forward", {"fingerprint": task.fingerprint, "x": 1}
    assert not task.is_complete(name)
    record.write(npz, measured, about)
    assert json.loads(sidecar_path(npz).read_text()) == about
    assert_holds(read_graph(npz, "layout"), layout_arrays() | {"config_runtime": np.array([900, 1500, 7])})
    assert task.is_complete(name)
    assert not dataclasses.replace(task, seed=1).is_complete(name)
    sidecar_path(npz).rename(tmp_path / "away.json")
    assert not task.is_complete(name)
    (tmp_path / "away.json").rename(sidecar_path(npz))
    monkeypatch.setattr(record, "write_graph", Mock(side_effect=KeyboardInterrupt))  # as if it were killed
    with pytest.raises(KeyboardInterrupt):
        record.write(npz, measured, about)
    assert not task.is_complete(name)
    sidecar_path(npz).write_text("{")
    npz.touch()
    assert not task.is_complete(name)


def test_runtimes_that_are_all_equal_rank_nothing() -> None:
    assert record.quality(np.full((4, 3), 10.0)) == {
        "rounds": 4,
        "split_half_tau": None,
        "noise_ceiling": None,
        "measured": 3,
        "default": 0,
        "runtime_ns": {"default": 10, "best": 10, "worst": 10},
    }


RANDOM, TILE = Collection.parse("layout:cpu:random"), Collection.parse("tile:cpu")


def test_each_program_has_its_last_reason_until_it_is_measured(tmp_path: Path) -> None:
    record_left_out(tmp_path, RANDOM, "a", None)
    assert not list(tmp_path.iterdir())
    for collection, program, reason in ((RANDOM, "a", "first"), (TILE, "a", "second"), (RANDOM, "a", "third")):
        record_left_out(tmp_path, collection, program, reason)
    record_left_out(tmp_path, RANDOM, "b", "fourth")
    expected = {"layout:cpu:random": {"a": "third", "b": "fourth"}, "tile:cpu": {"a": "second"}}
    assert read_left_out(tmp_path) == read_json(tmp_path / LEFT_OUT) == expected
    for collection in (TILE, RANDOM):
        record_left_out(tmp_path, collection, "a", None)
    assert read_left_out(tmp_path) == {"layout:cpu:random": {"b": "fourth"}}
    assert [path.name for path in tmp_path.iterdir()] == [LEFT_OUT]


@pytest.mark.parametrize("text", ["{", "[]", '{"tile:cpu": []}', '{"tile:cpu": {"a": 1}}'])
def test_a_damaged_file_is_named_and_kept(text: str, tmp_path: Path) -> None:
    (tmp_path / LEFT_OUT).write_text(text)
    with pytest.raises(DataError, match=LEFT_OUT):
        read_left_out(tmp_path)
    with pytest.raises(DataError, match=LEFT_OUT):
        record_left_out(tmp_path, TILE, "b", "why")
    assert (tmp_path / LEFT_OUT).read_text() == text


def about(name: str, tau: Any, ceiling: Any, worst: Any) -> dict[str, Any]:
    runtimes = {"default": 110, "best": 100, "worst": worst}
    known = {"name": name, "family": "net", "nodes": 7, "measured": 4, "rounds": 10, "runtime_ns": runtimes}
    return {**known, "split_half_tau": tau, "noise_ceiling": ceiling}


def test_a_card_has_a_row_for_each_graph_their_medians_and_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "layout/cpu/random"
    folder.mkdir(parents=True)
    for name, *figures in (("a", 0.5, 0.75, 200), ("b", None, None, 400)):
        (folder / f"{name}.npz").touch()
        (folder / f"{name}.json").write_text(json.dumps(about(name, *figures)))
    for collection, program in ((RANDOM, "d"), (RANDOM, "c"), (TILE, "e")):
        record_left_out(tmp_path, collection, program, f"why {program}")
    main([str(tmp_path)])
    random, tile = capsys.readouterr().out.split("### ")[1:]
    title, _, head, _, *lines = random.splitlines()
    assert (title, head.count("|")) == ("layout:cpu:random", lines[0].count("|"))
    assert lines == [
        "| a | net | 7 | 4 | 10 | 2.00 | 1.10 | 0.50 | 0.75 |",
        "| b | net | 7 | 4 | 10 | 4.00 | 1.10 | unknown | unknown |",
        "| median of 2 |  |  |  |  | 3.00 | 1.10 | 0.50 | 0.75 |",
        *("", "Left out:", "", "- c: why c", "- d: why d", ""),
    ]
    assert tile.splitlines() == ["tile:cpu", "", "Left out:", "", "- e: why e"]
