"""JAX programs to measure: a function and its example arguments."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from hlorank.config import ConfigError

Function = Callable[..., Any]
Arguments = tuple[Any, ...]

_ELEMENTS = {
    "pred": "bool", "s8": "int8", "s16": "int16", "s32": "int32", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32",
}  # fmt: skip
_SHAPE = re.compile(rf"({'|'.join(_ELEMENTS)})\[((?:\d+(?:,\d+)*)?)\]")
_SCALE = 0.1  # small enough for deep programs to stay finite


@dataclass(frozen=True)
class Program:
    """A function that XLA compiles, by name."""

    name: str
    """Unique and safe in file names: letters, digits, dot, minus, underscore."""
    family: str
    """What a split by model family groups by."""
    build: Callable[[], tuple[Function, Arguments]]
    """Makes the function and its example arguments, pytrees of arrays; the same ones whenever it is called."""


def require_jax() -> None:
    """Raises ConfigError where jax is missing."""
    try:
        import jax  # noqa: F401 (whether it is there)
    except ImportError as error:
        raise ConfigError(f"hlorank collect needs jax ({error}); pip install 'hlorank[collect]'") from None


def require_device(platform: str) -> None:
    """Raises ConfigError where jax finds no device of a platform; its message names the remedy.

    A process of its own looks for a GPU: to look for one takes most of its memory, which the measurements need.
    """
    if platform == "cpu":
        return
    command = [sys.executable, "-c", f"import jax; jax.devices({platform!r})"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own interpreter)
    if found.returncode:
        said = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(
            f"jax finds no {platform} ({said}); on a machine that has one, install the backend of jax for it, such as "
            f"pip install 'jax[cuda12]=={version('jax')}', or measure on the cpu"
        )


def user_program(reference: str, arguments: str) -> Program:
    """A program of the user's, from modules that can be imported from the current folder.

    Args:
        reference: `module:function`.
        arguments: `module:function` of a function without parameters that returns the tuple of example arguments; or
            their shapes as in HLO, such as `f32[8,128] s32[8]`. Those of floats are then normal with standard
            deviation 0.1 (seed 0), those of integers and booleans are zeros.

    Raises:
        ConfigError: jax is missing, a reference leads to no function, or the shapes can't be read.
    """
    require_jax()
    function = _resolve("function", reference)
    make = _shaped(arguments) if "[" in arguments else _made_by(arguments)
    unsafe = re.compile(r"[^A-Za-z0-9._]+")
    family = unsafe.sub("-", reference)
    return Program(
        name=f"{family}-{unsafe.sub('-', arguments).strip('-')}",
        family=family,
        build=lambda: (function, make()),
    )


def _resolve(what: str, reference: str) -> Function:
    """What `module:function` names."""
    if str(Path.cwd()) not in sys.path:  # a console script's path starts with its own folder
        sys.path.insert(0, str(Path.cwd()))
    try:
        if ":" not in reference:
            raise ValueError("no colon between the module and the function")
        found = resolve_name(reference)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"{what} {reference!r}: {error}; give module:function, importable from {Path.cwd()}"
        ) from error
    if not callable(found):
        raise ConfigError(f"{what} {reference!r}: a {type(found).__name__} can't be called; name a function")
    return found  # type: ignore[no-any-return] # callable, no more is known


def _made_by(reference: str) -> Callable[[], Arguments]:
    make = _resolve("arguments", reference)

    def checked() -> Arguments:
        made = make()
        if not isinstance(made, tuple):
            raise ConfigError(f"arguments {reference!r}: returned a {type(made).__name__}; return a tuple of arguments")
        return made

    return checked


def _shaped(text: str) -> Callable[[], Arguments]:
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for word in text.split():
        if not (match := _SHAPE.fullmatch(word)):
            raise ConfigError(
                f"arguments {text!r}: {word!r} is no shape; give element type and static sizes, such as f32[8,128] "
                f"or s32[] (types: {', '.join(_ELEMENTS)}), separated by spaces"
            )
        element, sizes = match.groups()
        shapes.append((_ELEMENTS[element], tuple(int(size) for size in sizes.split(",") if size)))

    def make() -> Arguments:
        rng = np.random.default_rng(0)
        return tuple(
            (_SCALE * rng.standard_normal(shape) if "float" in element else np.zeros(shape)).astype(element)
            for element, shape in shapes
        )

    return make
