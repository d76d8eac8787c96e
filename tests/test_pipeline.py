"""The pipeline as users run it: DVC, params.yaml, Hydra's composition."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, cast

import grimp
import pytest
from dvc.dependency.param import ParamsDependency
from dvc.repo import Repo
from dvc.utils.hydra import compose_and_dump
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from hlorank.config.root import Training
from hlorank.datasets import PROCESSED
from hlorank.stages.command import load_composed
from scripts.params import write_params

ROOT = Path(__file__).parents[1]
STAGES = ("fetch", "featurize", "partition", "train", "evaluate")
TINY = {
    "pipeline": {"layout": ["layout/synthetic/random"], "methods": ["gst"], "tile": []},
    "data": {"synthetic": {"train": 2, "valid": 1, "test": 1, "min_nodes": 60, "max_nodes": 90, "configurations": 24}},
    "compute": {"form": "serial"},
    "partition": {"max_nodes": 30},
    "model": {"width": 8, "blocks": 1},
    "trainer": {"max_epochs": 4, "steps_per_epoch": 20, "configs_per_step": 4},
}


def imported(stage: str) -> set[str]:
    """Return the packages that a stage imports, directly or not, and its own modules, as paths."""
    graph = grimp.build_graph("hlorank", cache_dir=None)
    for module in graph.find_modules_directly_imported_by("hlorank"):  # for users, such as what hlorank.load needs
        graph.remove_import(importer="hlorank", imported=module)
    for module in {"hlorank.runs", *graph.find_descendants("hlorank.runs")}:
        graph.remove_module(module)  # recording a run cannot change the result of a stage
    entry = f"hlorank.stages.{stage}"
    parts = [module.split(".") for module in {entry, *graph.find_upstream_modules(entry)}]
    places = {"/".join(names[: 3 if names[1:2] == ["stages"] else 2]) for names in parts}
    places = {"hlorank/__init__" if place == "hlorank" else place for place in places}
    return {f"src/{place}" if (ROOT / "src" / place).is_dir() else f"src/{place}.py" for place in places}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_all_packages_that_it_imports(stage: str) -> None:
    entry = cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.load(ROOT / "dvc.yaml"), resolve=False))
    listed = entry["stages"][stage].get("do", entry["stages"][stage])["deps"]
    assert {place for place in listed if place.startswith("src/")} == imported(stage)


def test_the_pipeline_has_all_methods_of_the_kind_of_each_collection() -> None:
    overrides = {"layout": "layout/a/random", "methods": "full,gst", "tile": "tile/b,tile/c", "tile_methods": "full"}
    overrides["omit"] = "tile/b-full,layout/c/random-gst"
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        composed = compose("config", overrides=[f"pipeline.{k}=[{v}]" for k, v in overrides.items()])
    pipeline = load_composed(composed).pipeline
    assert pipeline.collections == ["layout/a/random", "tile/b", "tile/c"]
    names = ["layout/a/random-full", "layout/a/random-gst", "tile/c-full"]
    assert list(pipeline.trainings) == names
    assert pipeline.trainings[names[1]] == Training(collection="layout/a/random", method="gst")


@pytest.mark.parametrize("folder", ["src/hlorank/__pycache__", f"data/sample/{PROCESSED}"])
def test_what_python_and_datasets_keep_is_no_dependency(folder: str) -> None:
    with chdir(ROOT):
        assert Repo().dvcignore.is_ignored_dir(str(ROOT / folder))


def test_params_yaml_is_the_composition_of_conf(tmp_path: Path) -> None:
    write_params(tmp_path / "params.yaml", ROOT / "conf")
    assert (tmp_path / "params.yaml").read_text() == (ROOT / "params.yaml").read_text(), "run `make params`"


class Project:
    """A copy of the project with one tiny training, in which DVC runs offline; tests/attack runs it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("src", "conf"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        self.sample = root / "data" / "sample" / "split.json"
        self.sample.parent.mkdir(parents=True)
        for name in ("dvc.yaml", ".dvcignore", ".gitignore", "data/sample/split.json"):
            shutil.copy(ROOT / name, root / name)
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            merged = OmegaConf.merge(compose("config", overrides=["experiment=synthetic"]), TINY)
        self.params = cast("dict[str, Any]", OmegaConf.to_container(merged, resolve=True))
        Repo.init(str(root), no_scm=True).close()
        with self.opened():
            pass

    @contextmanager
    def opened(self) -> Iterator[Repo]:
        """Write params.yaml, and open the project with DVC."""
        OmegaConf.save(OmegaConf.create(self.params), self.root / "params.yaml")
        with chdir(self.root), Repo() as repo:
            yield repo

    def changes(self) -> dict[str, set[str]]:
        """Return what changed for each stage, without collections and methods: sections of params.yaml, and paths."""
        found: dict[str, set[str]] = {}
        with self.opened() as repo:
            for name, reasons in repo.status().items():
                changed = found.setdefault(name.partition("@")[0], set())
                for path, change in ((path, change) for one in reasons for path, change in one["changed deps"].items()):
                    changed.update(change if path == "params.yaml" else [path])
        return found


def test_a_change_reaches_exactly_the_stages_that_read_it(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with project.opened() as repo:  # as if all stages had run
        for output in repo.index.outs:
            Path(output.fs_path).parent.mkdir(parents=True, exist_ok=True)
            Path(output.fs_path).write_text(output.def_path)
        repo.commit(force=True)
    assert project.changes() == {}
    for section, key, value in (
        ("tracking", "experiment", "other"),
        ("trainer", "max_epochs", 5),
        ("baseline", "leaves", 7),
        ("evaluate", "splits", ["valid"]),
        ("partition", "max_nodes", 20),
        ("featurize", "log_range", 10),
    ):
        project.params[section][key] = value
    project.sample.write_text("{}")
    assert project.changes() == {
        "fetch": {"data/sample"},
        "featurize": {"featurize"},
        "partition": {"partition"},
        "train": {"trainer", "baseline"},
        "evaluate": {"evaluate"},
    }


def test_the_number_of_devices_is_a_parameter_of_train(tmp_path: Path) -> None:
    """params.yaml is composed as by `dvc exp run -S trainer.devices=2`."""
    Project(tmp_path)
    with chdir(tmp_path):
        compose_and_dump(tmp_path / "params.yaml", str(tmp_path / "conf"), None, "config", None, ["trainer.devices=2"])
        with Repo() as repo:
            trained = [stage for stage in repo.index.stages if stage.addressing.startswith("train@")]
            tracked = [one for stage in trained for one in stage.deps if isinstance(one, ParamsDependency)]
            assert len(tracked) == len(trained) > 0
            assert {one.read_params()["trainer"]["devices"] for one in tracked} == {2}
