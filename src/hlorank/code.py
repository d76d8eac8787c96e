"""Digests of the package's own code, without comments and docstrings."""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_FEATURES = ("hlorank.featurize.", "hlorank.hlo.")


def modules_of(entry: str, outside: tuple[str, ...] = ()) -> tuple[dict[str, str], set[str]]:
    """Return the digest of each module of hlorank that a module imports, directly or not, and all that these import.

    Modules whose names begin with one of `outside` are left out.
    """
    modules, imported, waiting = dict[str, str](), set[str](), [entry]
    while waiting:
        name = waiting.pop()
        if name not in modules and not name.startswith(outside or "/"):
            modules[name], found = read_module(name)
            waiting += [module for module in found if module.startswith("hlorank.")]
            imported |= found
    return dict(sorted(modules.items())), imported


def features_digest() -> str:
    """Return the digest of the code that makes a model's inputs of a graph or a program."""
    modules, _ = modules_of("hlorank.featurize.featurize_graph")
    used = [f"{name} {digest}" for name, digest in modules.items() if name.startswith(_FEATURES)]
    return hashlib.sha256("\n".join(used).encode()).hexdigest()[:16]


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
        try:
            if find_spec(package) is None:
                return
        except ModuleNotFoundError:  # an attribute of a module
            return
        yield package
