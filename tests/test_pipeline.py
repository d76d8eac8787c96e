"""The pipeline as users run it: DVC, params.yaml, Hydra's composition."""

import shutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from dvc.dependency.param import ParamsDependency
from dvc.repo import Repo
from dvc.utils.hydra import compose_and_dump
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

import hydra_plugins.hlorank_pipeline as pipeline_plugin
from hlorank.config import ConfigError, TrainerConfig
from hlorank.config.root import Training
from hlorank.models.baselines.baseline import BASELINES
from hlorank.stages.command import load_composed
from scripts.params import write_params

ROOT = Path(__file__).parents[1]
TINY = {
    "pipeline": {"layout": ["layout/synthetic/random"], "methods": ["gst"], "tile": []},
    "data": {"synthetic": {"train": 2, "valid": 1, "test": 1, "min_nodes": 60, "max_nodes": 90, "configurations": 24}},
    "compute": {"form": "serial"},
    "partition": {"max_nodes": 30},
    "model": {"width": 8, "blocks": 1},
    "trainer": {"max_epochs": 4, "steps_per_epoch": 20, "configs_per_step": 4},
}


def test_the_pipeline_has_all_methods_of_the_kind_of_each_collection() -> None:
    overrides = {"layout": "layout:a:random", "methods": "full,gst", "tile": "tile/b,tile/c", "tile_methods": "full"}
    overrides["omit"] = "tile/b-full,layout/c/random-gst"
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        composed = compose("config", overrides=[f"pipeline.{k}=[{v}]" for k, v in overrides.items()])
        none = ["methods=[gst]", "layout=[layout/a/random]", "tile=[]", "omit=[layout/a/random-gst]"]
        none_left = compose("config", [f"pipeline.{setting}" for setting in none])
    with pytest.raises(ConfigError, match=r"pipeline\.omit"):
        load_composed(none_left)
    pipeline = load_composed(composed).pipeline
    assert pipeline.collections == ["layout/a/random", "tile/b", "tile/c"]
    names = ["layout/a/random-full", "layout/a/random-gst", "tile/c-full"]
    assert list(pipeline.trainings) == names
    reads = ["model", "model"]
    assert pipeline.trainings[names[1]] == Training(collection="layout/a/random", method="gst", reads=reads)


def test_what_python_keeps_is_no_dependency() -> None:
    with chdir(ROOT):
        assert Repo().dvcignore.is_ignored_dir(str(ROOT / "src/hlorank/__pycache__"))


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
        (root / "scripts").mkdir()
        for name in (
            "dvc.yaml",
            ".dvcignore",
            ".gitignore",
            "constraints.txt",
            "data/sample/split.json",
            "scripts/stage",
        ):
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
    with (tmp_path / "src/hlorank/files.py").open("a") as file:
        file.write("# a comment\n")
    assert project.changes() == {
        "code": {"src/hlorank"},
        "fetch": {"data/sample"},
        "featurize": {"featurize"},
        "partition": {"partition"},
        "train": {"trainer.max_epochs"},  # of a network, which no setting of baselines changes
        "evaluate": {"evaluate"},
    }


def composed_params(folder: Path, *overrides: str) -> Path:
    """Write params.yaml as `dvc exp run -S` does."""
    compose_and_dump(folder / "params.yaml", str(ROOT / "conf"), None, "pipeline", None, list(overrides))
    return folder / "params.yaml"


def test_trainings_depend_on_the_settings_that_can_change_them(tmp_path: Path) -> None:
    Project(tmp_path)
    overrides = "trainer.devices=2", "pipeline.methods=[gst,xgboost]", "ensemble.baselines=[analytical]"
    composed_params(tmp_path, *overrides, "experiment=best_layout", "pipeline.tile=[]")
    with chdir(tmp_path), Repo() as repo:
        stages = {
            stage.addressing.rpartition("-")[2]: stage for stage in repo.index.stages if "train@" in stage.addressing
        }
        used = (stages[method].deps for method in ("gst", "xgboost"))
        network, trees = (next(d for d in deps if isinstance(d, ParamsDependency)).read_params() for deps in used)
    both = {"model", "baseline"}
    assert (both & network.keys(), both & trees.keys()) == (both, {"baseline"})
    trainer = {key.partition(".")[2] for key in network if key.startswith("trainer.")}
    assert trainer == TrainerConfig.model_fields.keys() - {"accelerator", "memory_bytes", "workers"}
    assert (network["trainer.devices"], network["kind"]) == (2, "layout")
    assert set(BASELINES) == pipeline_plugin.BASELINES


@pytest.mark.parametrize(
    "override", ["method=full", "sweep.name=a", "output=a", "paths.raw=a", "+foo=1", "+method=full"]
)
def test_an_experiment_that_no_stage_would_see_is_refused(override: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigCompositionException) as raised:
        composed_params(tmp_path, "seed=1", override)
    assert override.strip("+").partition("=")[0] in str(raised.value.__cause__ or raised.value)
    assert not (tmp_path / "params.yaml").exists()
