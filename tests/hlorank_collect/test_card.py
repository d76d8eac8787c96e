from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hlorank.data.collection import Collection
from hlorank_collect.card import main, table
from hlorank_collect.left_out import record_left_out


def about(name: str, tau: float | None, ceiling: float | None, worst: int) -> dict[str, Any]:
    return {
        "name": name,
        "family": "net",
        "nodes": 7,
        "measured": 4,
        "rounds": 10,
        "runtime_ns": {"default": 110, "best": 100, "worst": worst},
        "split_half_tau": tau,
        "noise_ceiling": ceiling,
    }


def test_a_row_for_each_graph_and_their_medians() -> None:
    lines = table([about("a", 0.5, 0.75, 200), about("b", None, None, 400)]).splitlines()
    assert lines[2] == "| a | net | 7 | 4 | 10 | 2.00 | 1.10 | 0.50 | 0.75 |"
    assert lines[3] == "| b | net | 7 | 4 | 10 | 4.00 | 1.10 | unknown | unknown |"
    assert lines[4] == "| median of 2 |  |  |  |  | 3.00 | 1.10 | 0.50 | 0.75 |"
    assert len({line.count("|") for line in lines}) == 1


def test_graphs_of_layouts_have_their_configurable_nodes() -> None:
    lines = table([about("a", 0.5, 0.75, 200) | {"configurable_nodes": 3}]).splitlines()
    assert lines[2].startswith("| a | net | 7 | 3 | 4 | 10 | ")
    assert len({line.count("|") for line in lines}) == 1


def test_collections_are_found_below_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("layout/cpu/random/a.b", "tile/cpu/k"):
        path = tmp_path / f"{place}.npz"
        path.parent.mkdir(parents=True)
        path.touch()
        path.with_suffix(".json").write_text(json.dumps(about(path.stem, 0.5, 0.75, 200)))
    (tmp_path / "layout/cpu/random").rename(tmp_path / "elsewhere")
    (tmp_path / "layout/cpu/random").symlink_to(tmp_path / "elsewhere")
    main([str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.count("### layout:cpu:random\n\n| graph |") == printed.count("### tile:cpu\n\n| graph |") == 1
    assert "| a.b |" in printed


def test_what_was_left_out_is_below_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "layout/cpu/random/a.npz"
    path.parent.mkdir(parents=True)
    path.touch()
    path.with_suffix(".json").write_text(json.dumps(about("a", 0.5, 0.75, 200)))
    for collection, program in (("layout:cpu:random", "c"), ("layout:cpu:random", "b"), ("tile:cpu", "d")):
        record_left_out(tmp_path, Collection.parse(collection), program, f"why {program}")
    main([str(tmp_path)])
    random, tile = capsys.readouterr().out.split("### ")[1:]
    assert random.splitlines()[0] == "layout:cpu:random"
    assert random.splitlines()[2:] == [
        *table([about("a", 0.5, 0.75, 200)]).splitlines(),
        *("", "Left out:", "", "- b: why b", "- c: why c", ""),
    ]
    assert tile.splitlines() == ["tile:cpu", "", "Left out:", "", "- d: why d"]


def test_a_folder_without_graphs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main([str(tmp_path)])
    assert "npz" in capsys.readouterr().err


def test_a_graph_without_its_json_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tile/cpu").mkdir(parents=True)
    (tmp_path / "tile/cpu/k.npz").touch()
    with pytest.raises(SystemExit, match="1"):
        main([str(tmp_path)])
    assert "k.json" in capsys.readouterr().err
