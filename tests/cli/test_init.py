"""`hlorank init`: a project whose stages need nothing of this repository."""

import subprocess
import sys
from pathlib import Path

import pytest
from dvc.repo import Repo
from omegaconf import OmegaConf

from tests.cli.conftest import Command


def test_a_project_has_the_stages_of_the_package_and_only_settings_that_differ(
    cwd: Path, monkeypatch: pytest.MonkeyPatch, call: Command
) -> None:
    (cwd / "params.yaml").write_text("seed: 7")
    call("init", "mine")
    project = cwd / "mine"
    monkeypatch.chdir(project)
    assert (project / ".git").is_dir()
    assert len((project / "conf/config.yaml").read_text().splitlines()) <= 20
    params = OmegaConf.load("params.yaml")
    assert (params.seed, params.plugins, params.data.local.root) == (0, ["layers"], "data/own")
    with Repo() as repo:
        jobs = {stage.addressing: stage for stage in repo.index.stages}
    inputs = {str(dep.def_path) for stage in jobs.values() for dep in stage.deps if dep.def_path != "params.yaml"}
    made = {str(out.def_path) for stage in jobs.values() for out in stage.outs}
    assert {path for path in inputs - made if path != "reports"} == {"data/own", "layers.py"}
    assert jobs["code"].always_changed
    assert "layers.py" in {dep.def_path for dep in jobs["train@layout/cpu/random-full"].deps}
    words = {stage.cmd.partition(" hlorank.")[0] for stage in jobs.values()}
    assert words == {"python -P -m"}
    stage = [sys.executable, "-P", "-m", "hlorank.stages.train", "--cfg", "job", "seed=3"]
    shown = OmegaConf.create(subprocess.run(stage, capture_output=True, text=True, check=True).stdout)
    assert (shown.seed, shown.model.block[1], shown.trainer) == (3, "max_conv", params.trainer)


def test_a_folder_with_files_is_refused_and_an_error_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Command
) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "empty").mkdir()
    (tmp_path / "fails").write_text("#!/bin/sh\nprintf 'one\\ntwo\\n' >&2\nexit 3\n")
    (tmp_path / "fails").chmod(0o755)
    before = sorted(tmp_path.rglob("*"))
    for folder in (tmp_path, tmp_path / "file"):
        assert str(folder) in call.error("init", folder)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "fails"))
    for name in ("new", "empty"):
        assert "one two" in call.error("init", tmp_path / name)
        assert sorted(tmp_path.rglob("*")) == before
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nowhere")
    call("init", tmp_path / "new")
    assert "no_scm = True" in (tmp_path / "new/.dvc/config").read_text()


def test_a_folder_of_another_repository_is_in_that_unless_it_is_ignored_there(tmp_path: Path, call: Command) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("out/")
    for name, own in (("in", False), ("out/mine", True)):
        call("init", tmp_path / name)
        assert (tmp_path / name / ".git").is_dir() == own
        assert (tmp_path / name / ".dvc/config").is_file()
