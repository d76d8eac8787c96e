"""`hlorank init`: a project of the user, which the page about it is followed in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from omegaconf import OmegaConf

from hlorank.files import bundled, read_json
from tests.cli.conftest import Command
from tests.docs.blocks import blocks
from tests.warm import warm_programs

PAGE = "docs/how-to/start-a-project.md"
# The packages are there; what is measured is copied, a pair of small graphs of each of six families.
PRELUDE = """
export GIT_AUTHOR_NAME=Me GIT_AUTHOR_EMAIL=m@example.org GIT_COMMITTER_NAME=Me GIT_COMMITTER_EMAIL=m@example.org
pip() { :; }
hlorank() {
  if [ $1 = collect ]
  then for name in autoencoder densenet dlrm gru mixer mlp; do cp $(ls "$SAMPLE"/$name.*.npz | head -2) $own; done
  else command hlorank "$@"; fi
}
own=data/own/layout/cpu/random
"""
TINY = "\ntrainer: {max_epochs: 1, steps_per_epoch: 2, graphs_per_step: 2, configs_per_step: 4}\n"


def test_a_folder_with_a_file_is_refused_and_kept(call: Command, tmp_path: Path) -> None:
    kept = tmp_path / "my-ranker/kept"
    kept.parent.mkdir()
    kept.write_text("mine")
    for folder in (kept.parent, kept):
        assert str(folder) in call.error("init", folder)
    assert [*tmp_path.rglob("*")] == [kept.parent, kept]


@pytest.mark.parametrize("existed", [True, False])
def test_of_a_failed_start_nothing_is_left(
    existed: bool, call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))  # of dvc init, after the files are written
    folder = tmp_path / "my-ranker"
    if existed:
        folder.mkdir()
    call.error("init", folder)
    assert [*tmp_path.rglob("*")] == [folder] * existed


@pytest.mark.slow
def test_the_page_from_the_package_to_own_models(tmp_path: Path) -> None:
    project, (start, *others) = tmp_path / "my-ranker", [block.text for block in blocks(PAGE) if block.shell]
    sample = bundled("sample").resolve() / "layout/cpu/random"
    with warm_programs(tmp_path / "bin", Path(__file__).parents[2] / "src"):
        env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SAMPLE": str(sample)}

        def run(script: str, folder: Path) -> str:
            words = ["bash", "-euc", PRELUDE + script]
            done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
            return done.stdout

        run(start, tmp_path)
        with (project / "conf/config.yaml").open("a") as file:
            file.write(TINY)
        shown = [run(script, project) for script in others]
        again = run("dvc repro", project)
    trained = {*OmegaConf.load(project / "params.yaml").pipeline.trainings}
    assert trained == {f"layout/cpu/random-{name}" for name in ("full", "gradient_boosting", "analytical")}
    assert all(name in shown[0] for name in ("full", "gradient_boosting", "analytical"))
    assert read_json(project / "models/layout/cpu/random/full/spec.json")["plugins"].keys() == {"layers"}
    assert "Running stage 'train" not in again
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert sum(run.data.tags.get("method") == "full" and "sweep" not in run.info.run_name for run in runs) >= 3
    assert "Kendall tau" in shown[1]
