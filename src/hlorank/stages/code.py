"""Stage code: a digest of the code of each stage, and the versions of the libraries that it computes with.

DVC compares files, so that a comment in a module would run every stage again that depends on its package. Here a stage
depends on the statements of the modules that it imports, directly or not: comments and docstrings are left out.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from hlorank.files import write_json

STAGES = ("fetch", "featurize", "partition", "train", "evaluate")
LIBRARIES = {
    "lightning": "lightning",
    "numpy": "numpy",
    "pandas": "pandas",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "torch": "torch",
    "torch_geometric": "torch-geometric",
}
"""Distributions whose version may change a result, by the name of their package."""
_SOURCE = Path(__file__).parents[2]
# Records, the page, which shows other outputs, and graphs for other systems, which no stage computes with.
_OUTSIDE = ("hlorank.runs", "hlorank.evaluation.report", "hlorank.datasets")


def code_of(stage: str) -> dict[str, dict[str, str]]:
    """Return the digest of each module that a stage imports, and the version of each of `LIBRARIES`, by name."""
    modules: dict[str, str] = {}
    libraries: dict[str, str] = {}
    waiting = [f"hlorank.stages.{stage}"]
    while waiting:
        name = waiting.pop()
        if name in modules or name.startswith(_OUTSIDE):
            continue
        modules[name], imported = read_module(name)
        waiting += [module for module in imported if module.startswith("hlorank.")]
        libraries |= {LIBRARIES[package]: version(LIBRARIES[package]) for package in imported if package in LIBRARIES}
    return {"modules": dict(sorted(modules.items())), "libraries": dict(sorted(libraries.items()))}


@cache
def read_module(name: str) -> tuple[str, frozenset[str]]:
    """Return the digest of a module's statements, and what it imports: modules of hlorank, and packages."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None, f"{name} has no source file"
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):  # without docstrings, of variables too
            texts = (isinstance(one, ast.Expr) and isinstance(getattr(one.value, "value", 0), str) for one in body)
            body[:] = [one for one, is_text in zip(body, texts, strict=True) if not is_text] or [ast.Pass()]
    imported = {part for dotted in _imported(tree) for part in _modules(dotted)}
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16], frozenset(imported)


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names that a module imports, also within functions, attributes of modules among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _modules(dotted: str) -> Iterator[str]:
    """Yield the package of a dotted name; of hlorank the module and its packages but that for users, hlorank itself."""
    package, *parts = dotted.split(".")
    if package != "hlorank":
        yield package
        return
    for part in parts:
        package = f"{package}.{part}"
        path = _SOURCE.joinpath(*package.split("."))  # `find_spec` would import what the package is in: PyTorch
        if not (path.is_dir() or path.with_suffix(".py").is_file()):  # an attribute of a module
            return
        yield package


def main() -> None:
    """Write the files <stage>.json into the folder that the command names."""
    for stage in STAGES:
        write_json(Path(sys.argv[1]) / f"{stage}.json", code_of(stage))


if __name__ == "__main__":
    main()
