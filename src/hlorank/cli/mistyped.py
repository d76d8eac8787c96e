"""Meaning of a mistyped program: the JAX function or the file that its user probably meant."""

from __future__ import annotations

import ast
import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

FORMS = "a file, or a JAX function as module:function, such as mymod:step"
_NAME = re.compile(r"[A-Za-z_]\w*")
_ZOO = re.compile(r"[a-z][a-z0-9.-]*\.(forward|train)")


def meant(program: str) -> str | None:
    """Return what the user of a command that takes no names of the zoo probably meant, None if that is unknown.

    Args:
        program: as of `resembling`.
    """
    in_zoo = f"{program} of the zoo, which only hlorank collect and hlorank autotune take"
    return resembling(program) or (in_zoo if _ZOO.fullmatch(program) else None)


def resembling(program: str) -> str | None:
    """Return `module:function` or a path that resembles a program, None if there is none.

    Args:
        program: neither a file that holds a program nor `module:function`, such as `mymod.step` or `mymod.py:step`.
    """
    return _function(program) or _file(Path(program))


def _function(program: str) -> str | None:
    """Return the function of a module in the current folder, or of an installed one."""
    path, _, function = program.removesuffix("()").replace("::", ":").partition(":")
    if Path(path).is_absolute():
        path = path.removeprefix(f"{Path.cwd()}/")
    parts = re.split(r"[./]", path.removeprefix("./").removesuffix(".py"))
    names = [*parts, *filter(None, re.split(r"[.:]", function))]
    if not all(map(_NAME.fullmatch, names)):
        return None
    for size in range(len(names), 0, -1):
        folder = Path(*names[:size])
        for source in (folder.with_suffix(".py"), folder / "__init__.py"):
            if source.is_file() and (chosen := _defined(source, names[size:])):
                return f"{'.'.join(names[:size])}:{chosen}"
    return f"{'.'.join(names[:-1])}:{names[-1]}" if len(names) > 1 and find_spec(names[0]) else None


def _defined(source: Path, wanted: list[str]) -> str | None:
    """Return the wanted name in a Python file, the one that resembles it, or else its first function."""
    try:
        body = ast.parse(source.read_bytes()).body
    except (SyntaxError, ValueError):
        return ".".join(wanted) or None
    functions = [one.name for one in body if isinstance(one, ast.FunctionDef)]
    assigned = [
        name.id for one in body if isinstance(one, ast.Assign) for name in one.targets if isinstance(name, ast.Name)
    ]
    classes = [one.name for one in body if isinstance(one, ast.ClassDef)]
    if not wanted:
        return functions[0] if functions else None
    near = get_close_matches(wanted[0], [*functions, *assigned, *classes], n=1)
    return ".".join([*near, *wanted[1:]]) if near else (functions[0] if functions else None)


def _file(path: Path) -> str | None:
    """Return the file of the same folder whose name resembles that of a missing one."""
    try:
        names = [one.name for one in path.parent.iterdir() if one.suffix != ".py"] if not path.exists() else []
    except OSError:
        return None
    near = get_close_matches(path.name, names, n=1, cutoff=0.8)
    return str(path.with_name(near[0])) if near else None
