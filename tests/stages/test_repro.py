"""`make repro`: the order of stages, and failures."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/repro.sh"
STAGES = ("fetch@layout/a", "partition@layout/a", "partition@tile/b", "train@layout/a-full", "train@tile/b-full")
DVC = """#!/usr/bin/env bash
case "$1" in
  status) [ -e done ] ;;
  stage) printf '%s\\n' STAGES ;;
  *) echo "working on ${@: -1}"; echo "$@" >> calls; sleep 0.1; case "$*" in *"$FAILING"*) exit 1 ;; esac ;;
esac
"""


def repro(folder: Path, failing: str = "nothing") -> tuple[int, str, list[str]]:
    """Return the exit status, the output and the calls of DVC, in whose place is a script."""
    (folder / "dvc").write_text(DVC.replace("STAGES", " ".join(STAGES)))
    (folder / "dvc").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "FAILING": failing}
    done = subprocess.run(
        ["bash", SCRIPT, "2"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    return done.returncode, done.stdout, calls


def test_trainings_follow_the_preparation_of_all_collections(tmp_path: Path) -> None:
    status, output, calls = repro(tmp_path)
    assert status == 0
    assert {call.rpartition(" ")[2] for call in calls[:2]} == {"partition@layout/a", "partition@tile/b"}
    assert {call.rpartition("item ")[2] for call in calls[2:4]} == {
        "train@layout/a-full evaluate@layout/a-full",
        "train@tile/b-full evaluate@tile/b-full",
    }
    assert "tile/b-full | working on evaluate@tile/b-full" in output


@pytest.mark.parametrize(("failing", "calls"), [("partition@tile/b", 2), ("train@tile/b-full", 4)])
def test_a_failure_is_that_of_the_pipeline(failing: str, calls: int, tmp_path: Path) -> None:
    status, _, called = repro(tmp_path, failing)
    assert (status != 0, len(called)) == (True, calls)


def test_nothing_is_started_where_all_is_up_to_date(tmp_path: Path) -> None:
    (tmp_path / "done").touch()
    assert repro(tmp_path) == (0, "Data and pipelines are up to date.\n", [])
