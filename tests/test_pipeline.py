"""The pipeline as users run it: DVC, params.yaml, Hydra's composition."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from hlorank.stages.params import write_params

ROOT = Path(__file__).parents[1]
TINY = {
    # A network and a baseline: each more of them is a process of each of its stages.
    "pipeline": {
        "layout": ["layout/synthetic/random"],
        "methods": ["gst", "gradient_boosting"],
        "tile": ["tile/synthetic"],
        "tile_methods": ["gradient_boosting"],
    },
    "data": {"synthetic": {"train": 2, "valid": 1, "test": 1, "min_nodes": 60, "max_nodes": 90, "configurations": 24}},
    "featurize": {"workers": 1},
    "partition": {"workers": 1, "max_nodes": 30},
    "model": {"width": 8, "blocks": 1},
    "baseline": {"iterations": 3},
    "trainer": {"max_epochs": 1, "steps_per_epoch": 2, "configs_per_step": 4},
}


def test_params_yaml_is_the_composition_of_conf(tmp_path: Path) -> None:
    write_params(tmp_path / "params.yaml", ROOT / "conf")
    assert (tmp_path / "params.yaml").read_text() == (ROOT / "params.yaml").read_text(), "run `make params`"


class Project:
    """A copy of the project with tiny settings, in which DVC runs offline."""

    def __init__(self, root: Path, database: Path) -> None:
        self.root = root
        for name in ("src", "conf"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        self.sample = root / "data" / "sample" / "split.json"
        self.sample.parent.mkdir(parents=True)
        for name in ("dvc.yaml", ".gitignore", "data/sample/split.json"):
            shutil.copy(ROOT / name, root / name)
        shutil.copy(database, root / "mlflow.db")
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            merged = OmegaConf.merge(compose("config", overrides=["experiment=synthetic"]), TINY)
        self.params = cast("dict[str, Any]", OmegaConf.to_container(merged))
        self.run("git", "init", "-q")
        self.run("dvc", "init", "-q")
        self.run("dvc", "config", "core.analytics", "false")

    def run(self, *command: str) -> str:
        OmegaConf.save(OmegaConf.create(self.params), self.root / "params.yaml")
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.root / "src"),
            "OMP_NUM_THREADS": "1",
            "DVC_NO_ANALYTICS": "1",
        }
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def repro(self, *options: str) -> set[str]:
        """Runs the pipeline and returns the stages that ran, without what a matrix adds to their names."""
        output = self.run("dvc", "repro", *options)
        return {name.partition("@")[0] for name in re.findall(r"^Running stage '(.+)':", output, re.MULTILINE)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tracking_database: Path) -> Project:
    return Project(tmp_path_factory.mktemp("project"), tracking_database)


def test_a_change_runs_exactly_the_stages_that_read_it(project: Project) -> None:
    train = {"train", "train_tile"}
    after_train = {"evaluate", "evaluate_tile"}
    everything = {"fetch", "fetch_tile", "featurize", "featurize_tile", "partition"} | train | after_train
    assert project.repro() == everything
    assert project.repro() == set(), "a second call does nothing"
    for collection, key in (("layout/synthetic/random", "methods"), ("tile/synthetic", "tile_methods")):
        for method in project.params["pipeline"][key]:
            assert (project.root / "reports" / collection / method / "metrics.json").is_file()

    def planned() -> set[str]:
        # A dry run does not go on to the stages that read what these write.
        return project.repro("--dry")

    for group, key, value, expected in (
        ("tracking", "experiment", "other", set()),
        ("trainer", "max_epochs", 2, train),
        ("baseline", "leaves", 7, train),
        ("evaluate", "splits", ["valid"], after_train),
        ("partition", "max_nodes", 20, {"partition"}),
        ("featurize", "log_range", 10, {"featurize", "featurize_tile"}),
    ):
        before = project.params[group][key]
        project.params[group][key] = value
        assert planned() == expected, f"{group}.{key}"
        project.params[group][key] = before
    assert planned() == set()

    project.sample.write_text("{}")
    assert planned() == {"fetch", "fetch_tile"}, "the sample"
