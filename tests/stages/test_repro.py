"""`make repro`: the order of stages, and failures."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/repro.sh"
TRAININGS = ("layout/a-full", "layout/a-trees", "tile/b-full")
STAGES = ("fetch@layout/a", "partition@layout/a", "partition@tile/b", *(f"train@{name}" for name in TRAININGS))
DVC = """#!/usr/bin/env bash
case "$1" in
  status) [ -e done ] ;;
  stage) printf '%s\\n' STAGES ;;
  *) echo "working on ${@: -1}"; echo "$@" >> calls; sleep 0.1; case "$*" in *"$FAILING"*) exit 1 ;; esac ;;
esac
"""


def repro(folder: Path, failing: str = "nothing", *added: str) -> tuple[int, str, list[str]]:
    """Return the exit status, the output and the calls of DVC, in whose place is a script."""
    (folder / "dvc").write_text(DVC.replace("STAGES", " ".join((*STAGES, *added))))
    (folder / "dvc").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "FAILING": failing}
    done = subprocess.run(["bash", SCRIPT, "2"], cwd=folder, env=environment, capture_output=True, text=True)
    calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    assert calls[:1] in ([], ["repro --quiet code"])
    return done.returncode, done.stdout, calls[1:]


@pytest.mark.parametrize("added", [(), ("plots",)])
def test_trainings_follow_all_collections_and_baselines_the_networks(added: tuple[str, ...], tmp_path: Path) -> None:
    status, output, calls = repro(tmp_path, "nothing", *added)
    assert status == 0
    assert {call.rpartition(" ")[2] for call in calls[:2]} == {"partition@layout/a", "partition@tile/b"}
    trained = [f"train@{name} evaluate@{name}" for name in ("layout/a-full", "tile/b-full", "layout/a-trees")]
    begun = [call.rpartition("item ")[2] for call in calls[2:5]]
    assert (sorted(begun[:2]), begun[2:]) == (trained[:2], trained[2:])
    assert calls[5:] == ["repro --quiet"] * len(added)
    assert "tile/b-full | working on evaluate@tile/b-full" in output


@pytest.mark.parametrize(("failing", "calls"), [("partition@tile/b", 2), ("train@tile/b-full", 5)])
def test_a_failure_is_that_of_the_pipeline(failing: str, calls: int, tmp_path: Path) -> None:
    status, _, called = repro(tmp_path, failing)
    assert (status != 0, len(called)) == (True, calls)


TAU = "reports/tile/cpu/full/scores.json:valid.tau"


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            f'Experiment,rev,{TAU},kind,model.stem\n,main,0.50,layout,"[1, 2]"\ntwo,c0ffee,,layout,[]\n',
            ["main two", "tile/cpu/full 0.50", "kind layout layout", "model.stem [1, 2] []"],
        ),
        (f"rev,{TAU}\nworkspace,0.6\nmain,0.5\n", ["workspace main", "tile/cpu/full 0.6 0.5"]),
    ],
    ids=["experiments", "none"],
)
def test_experiments_are_columns(table: str, expected: list[str], tmp_path: Path) -> None:
    """`dvc exp show` has a column for everything, here without those that the options drop."""
    (tmp_path / "dvc").write_text(f"#!/bin/sh\ncat << END\n{table}END\n")
    (tmp_path / "dvc").chmod(0o755)
    (tmp_path / ".venv").mkdir()
    for name in ("pyproject.toml", "constraints.txt", ".venv/.ready"):
        (tmp_path / name).touch()
    command = ["make", "-s", "-f", str(SCRIPT.parents[1] / "Makefile"), "experiments"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == expected


def test_nothing_is_started_where_all_is_up_to_date(tmp_path: Path) -> None:
    (tmp_path / "done").touch()
    assert repro(tmp_path) == (0, "Data and pipelines are up to date.\n", [])
