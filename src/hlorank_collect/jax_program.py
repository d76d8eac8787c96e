"""JAX programs to measure: a function and its example arguments."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from hlorank.config import ConfigError
from hlorank_collect import xla
from hlorank_collect.program import Program, SkippedError, Traced, one_line

INSTALL = "pip install 'hlorank[collect]'"
"""Installs jax, which measuring needs."""

Function = Callable[..., Any]
Arguments = tuple[Any, ...]

_ELEMENTS = {
    "pred": "bool", "s8": "int8", "s16": "int16", "s32": "int32", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32",
}  # fmt: skip
_SHAPE = re.compile(rf"({'|'.join(_ELEMENTS)})\[((?:\d+(?:,\d+)*)?)\]")
_SCALE = 0.1  # small enough for deep programs to stay finite


@dataclass(frozen=True)
class JaxProgram(Program):
    """A JAX function and its example arguments."""

    build: Callable[[], tuple[Function, Arguments]]
    """Function that returns the program and its example arguments, pytrees of arrays, equal at every call."""

    def trace(self, platform: xla.Platform) -> Traced:
        """Trace the function."""
        try:
            function, arguments = self.build()
            module = xla.unoptimized_module(function, arguments, platform)
        except Exception as error:  # the user's code may raise any exception
            raise SkippedError(f"it does not trace: {one_line(error)}") from error
        return Traced(module, partial(self.put, arguments, platform))

    def put(self, arguments: Sequence[Any], platform: xla.Platform) -> list[Any]:
        """Return the leaves of the arguments, which are pytrees."""
        return xla.put(arguments, platform)

    def result(self) -> Callable[[Sequence[Any]], Any]:
        """Return the function that makes the pytree that the function returns."""
        import jax

        function, arguments = self.build()
        return partial(jax.tree.unflatten, jax.tree.structure(jax.eval_shape(function, *arguments)))


def has_jax() -> bool:
    """Return True if jax is installed; imports nothing."""
    try:
        return find_spec("jax") is not None
    except ImportError:
        return False


def require_jax() -> None:
    """Check that jax can be imported.

    Raises:
        ConfigError: jax cannot be imported; the message has the command that installs it.
    """
    try:
        import jax  # noqa: F401 (only tried)
    except ImportError as error:
        raise ConfigError(f"measuring programs needs jax ({error}): {INSTALL}") from None


def require_device(platform: str) -> None:
    """Check that jax finds a device of a platform.

    A separate process searches for a GPU: the search reserves most of the GPU's memory, which the measurements need.

    Raises:
        ConfigError: jax finds no device of `platform`; the message has the remedy.
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


def user_program(reference: str, arguments: str) -> JaxProgram:
    """Return a program of the user, from modules that can be imported from the current folder.

    Args:
        reference: `module:function`.
        arguments: `module:name` of the tuple of example arguments, or of a function without parameters that returns it;
            or their shapes as in HLO, such as `f32[8,128] s32[8]`. Floats are then normal with standard deviation 0.1
            (seed 0), integers and booleans are zeros.

    Raises:
        ConfigError: jax is missing, a reference names no function, or the shapes cannot be read.
    """
    require_jax()
    function = _resolve("function", reference)
    if not callable(function):
        raise ConfigError(f"function {reference!r}: a {type(function).__name__} is not callable; name a function")
    make = _shaped(arguments) if "[" in arguments else _made_by(arguments)
    unsafe = re.compile(r"[^A-Za-z0-9._]+")
    family = unsafe.sub("-", reference)
    return JaxProgram(
        name=f"{family}-{unsafe.sub('-', arguments).strip('-')}",
        family=family,
        build=lambda: (function, make()),
    )


def _resolve(role: str, reference: str) -> Any:
    """Return the object that `module:name` names."""
    if str(Path.cwd()) not in sys.path:  # a console script's path starts with its own folder
        sys.path.insert(0, str(Path.cwd()))
    try:
        if ":" not in reference:
            raise ValueError("no colon between the module and the function")
        return resolve_name(reference)
    except (ValueError, ImportError, AttributeError) as error:
        form = f"give module:function, such as mymod:step, importable from {Path.cwd()}"
        raise ConfigError(f"{role} {reference!r}: {error}; {form}") from error


def _made_by(reference: str) -> Callable[[], Arguments]:
    make = _resolve("arguments", reference)
    if isinstance(make, tuple):
        return lambda: make
    if not callable(make):
        found = f"a {type(make).__name__} is not callable"
        raise ConfigError(
            f"arguments {reference!r}: {found}; name a tuple of arguments, or a function that returns one"
        )

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
                f"arguments {text!r}: {word!r} is not a shape; give element type and static sizes, such as f32[8,128] "
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
