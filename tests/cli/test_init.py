"""`hlorank init`: a project whose stages need nothing of this repository."""

import subprocess
import sys
from pathlib import Path

import pytest
from dvc.repo import Repo
from omegaconf import OmegaConf

from hlorank.cli.main import main


def test_a_project_has_the_stages_of_the_package_and_only_settings_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "params.yaml").write_text("seed: 7")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    project = tmp_path / "mine"
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("kept")
    assert main(["init", str(tmp_path)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    monkeypatch.setattr(sys, "executable", "false")
    assert main(["init", str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["init", str(tmp_path / "new")]) == 0
    assert "no_scm = True" in (tmp_path / "new/.dvc/config").read_text()
