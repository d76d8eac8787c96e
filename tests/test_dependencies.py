"""Everything that is imported is declared, in a range that the lock is in; everything that is declared is imported."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GROUPS = {
    name: {canonicalize_name(one.name): one for one in map(Requirement, lines)}
    for name, lines in {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items()
}
"""Requirements by distribution; "" is what is always installed, the others are extras."""
EXTRAS = {
    "hlorank_collect": "collect",
    "hlorank/runs/search": "sweep",
    "hlorank/training/baselines/fit_trees": "rivals",
    "hlorank/compute": "ray",
    "hydra_plugins": "sweep",
}
"""The extra that a module, or the modules of a folder, may import."""
NOT_IMPORTED = {
    "hydra-joblib-launcher": "a plugin that Hydra finds",
    "hydra-submitit-launcher": "a plugin that Hydra finds",
    "hydra-ray-launcher": "a plugin that Hydra finds",
    "psycopg": "a driver that SQLAlchemy imports",
    "jaxlib": "pinned together with jax",
    "keras": "examples/zoo imports it",
    "dvc": "a command of the pipeline; scripts/params.py imports it",
}


def imported(path: Path) -> frozenset[str]:
    """Return the distributions that a module imports, at its top or inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    own = {path.stem if path.is_file() else path.name for path in SOURCE.iterdir()}
    return frozenset(_distribution(name) for name in names - own - set(sys.stdlib_module_names))


@cache
def _by_import() -> dict[str, list[str]]:
    return {name: sorted({canonicalize_name(one) for one in found}) for name, found in packages_distributions().items()}


def _distribution(name: str) -> str:
    """Return the distribution of a top-level import: a declared one, where several share a namespace."""
    found = _by_import().get(name, [canonicalize_name(name)])
    declared = {one for group in GROUPS.values() for one in group}
    return next((one for one in found if one in declared), found[0])


MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if not path.name.endswith("_pb2.py")]


def test_what_is_imported_is_declared() -> None:
    undeclared = {}
    for path in MODULES:
        name = path.relative_to(SOURCE).as_posix()
        extras = [GROUPS[extra] for folder, extra in EXTRAS.items() if name.startswith(folder)]
        undeclared[name] = imported(path) - {one for group in (GROUPS[""], *extras) for one in group}
    assert not {name: found for name, found in undeclared.items() if found}


def test_what_is_declared_is_imported() -> None:
    used = {name for path in MODULES for name in imported(path)} | set(NOT_IMPORTED)
    assert {name for extra, group in GROUPS.items() if extra != "dev" for name in group} <= used


def test_the_lock_is_in_every_range() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    lock = {
        canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines) if version
    }
    for group in GROUPS.values():
        for name, requirement in group.items():
            assert requirement.specifier.contains(lock[name]), name


def test_every_requirement_has_a_lower_bound_and_torch_is_exact() -> None:
    for group in GROUPS.values():
        for name, requirement in group.items():
            assert re.search("[>=]=", str(requirement.specifier)), name
    torch = GROUPS[""][canonicalize_name("torch")]
    assert {one.operator for one in torch.specifier} == {"=="}
