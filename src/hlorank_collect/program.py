"""Programs to measure: a traced module and example inputs for it, whatever they are written in; JAX functions."""

import re
import subprocess
import sys
from abc import ABC, abstractmethod
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
from hlorank.config.extension_point import search_working_folder
from hlorank.hlo.entry_layouts import Order, entry_layouts
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.xla_process import INSTALL
from hlorank_collect import xla

Function = Callable[..., Any]
Arguments = tuple[Any, ...]

_ELEMENTS = {
    "pred": "bool", "s8": "int8", "s16": "int16", "s32": "int32", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32",
}  # fmt: skip
_SHAPE = re.compile(rf"({'|'.join(_ELEMENTS)})\[((?:\d+(?:,\d+)*)?)\]")
SCALE = 0.1
"""Standard deviation of example inputs: small enough for deep programs to stay finite."""
_MEMORY = re.compile(r"Used ([\d.]+\w) of ([\d.]+\w)")
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")


class SkippedError(Exception):
    """A program that cannot be measured; the message is the reason."""


def file_name(text: str) -> str:
    """Return a text as a part of the name of a file: letters, digits, dot, minus and underscore."""
    return _UNSAFE.sub("-", text)


def error_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message; for a TPU, how much memory the program needs."""
    if isinstance(error, SkippedError):
        return str(error)
    if found := _MEMORY.search(str(error)):
        return f"needs {found[1]} of {found[2]} of the device's memory"
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:300].partition(", metadata=")[0].partition(" HLO: ")[0]


@dataclass(frozen=True, eq=False)
class Traced:
    """A program as a module."""

    module: bytes
    """Module before any pass, a serialized HloModuleProto."""
    inputs: Callable[[], list[Any]]
    """Function that makes the example inputs and returns them on the device, one array per parameter."""


@dataclass(frozen=True)
class Program(ABC):
    """A program that XLA compiles, and its name."""

    name: str
    """Unique and safe in file names: letters, digits, dot, minus, underscore."""
    family: str
    """Group of the program in a split by model family."""

    @abstractmethod
    def trace(self, platform: xla.Platform) -> Traced:
        """Return the module of the program for a backend, equal at every call; raise SkippedError if there is none."""

    @abstractmethod
    def put(self, arguments: Sequence[Any], platform: xla.Platform, layouts: Sequence[Order] = ()) -> list[Any]:
        """Return arguments of the program as arrays on the device, one per parameter, in the module's entry layouts."""

    @abstractmethod
    def result(self) -> Callable[[Sequence[Any]], Any]:
        """Return the function that gives the flat outputs of the module the structure of the program's result."""


@dataclass(frozen=True)
class JaxProgram(Program):
    """A JAX function with its example arguments; `hlorank collect` and `autotune` take a module's as `module:name`."""

    build: Callable[[], tuple[Function, Arguments]]
    """Function that returns the program and its example arguments, pytrees of arrays, equal at every call."""

    def trace(self, platform: xla.Platform) -> Traced:
        """Trace the function."""
        try:
            function, arguments = self.build()
            module = xla.unoptimized_module(function, arguments, platform)
        except Exception as error:  # the user's code may raise any exception
            if "lowering platform" in str(error):
                raise SkippedError(f"it has side effects (calls of the host, which {platform} has none of)") from error
            raise SkippedError(f"it does not trace: {error_line(error)}") from error
        layouts = entry_layouts(HloModuleProto.FromString(module)).parameters
        return Traced(module, partial(self.put, arguments, platform, layouts))

    def put(self, arguments: Sequence[Any], platform: xla.Platform, layouts: Sequence[Order] = ()) -> list[Any]:
        """Return the leaves of the arguments, which are pytrees."""
        return xla.put(arguments, platform, layouts=layouts)

    def result(self) -> Callable[[Sequence[Any]], Any]:
        """Return the function that makes the pytree that the function returns."""
        import jax

        function, arguments = self.build()
        return partial(jax.tree.unflatten, jax.tree.structure(jax.eval_shape(function, *arguments)))


def require_jax() -> None:
    """Raise ConfigError, with the command that installs it, if jax cannot be imported."""
    try:
        import jax  # noqa: F401 (only tried)
    except ImportError as error:
        raise ConfigError(f"measuring programs needs jax ({error}): {INSTALL}") from None


def require_device(platform: str) -> None:
    """Raise ConfigError, with the remedy, if jax finds no device of a platform."""
    if platform == "cpu":
        return
    if platform in xla.TPUS:
        if find_spec("libtpu") is None:
            raise ConfigError(
                f"{platform}: compiling for TPUs needs libtpu (Google's licence): pip install 'hlorank[tpu]'"
            )
        return
    # In a process of its own: the search reserves most of a GPU's memory, which the measurements need.
    command = [sys.executable, "-P", "-c", f"import jax; jax.devices({platform!r})"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own interpreter)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(
            f"jax finds no {platform} ({said}); on a machine that has one, install the backend of jax for it, such as "
            f"pip install 'jax[{'tpu' if platform == 'tpu' else 'cuda12'}]=={version('jax')}', or measure on the cpu"
        )


def user_program(reference: str, arguments: str | None) -> JaxProgram:
    """Return a program of the user, from modules that can be imported from the current folder; else ConfigError.

    `reference` is `module:name` of a function, or of a JaxProgram, which has its own arguments. `arguments` is
    `module:name` of the tuple of example arguments, or of a function that returns it; or their shapes as in HLO, such
    as `f32[8,128] s32[8]`: then floats are normal (seed 0), integers and booleans are zeros.
    """
    require_jax()
    function = _resolve("function", reference)
    if isinstance(function, JaxProgram):
        if arguments is not None:
            raise ConfigError(f"program {reference!r}: takes no --arguments, it has its own")
        return function
    if not callable(function):
        raise ConfigError(f"function {reference!r}: a {type(function).__name__} is not callable; name a function")
    if arguments is None:
        raise ConfigError(f"program {reference!r}: needs --arguments, such as 'f32[8,128] s32[8]'")
    make = _shaped(arguments) if "[" in arguments else _made_by(arguments)
    family = file_name(reference)
    return JaxProgram(f"{family}-{file_name(arguments).strip('-')}", family, lambda: (function, make()))


def _resolve(role: str, reference: str) -> Any:
    """Return the object that `module:name` names."""
    try:
        if ":" not in reference:
            raise ValueError("no colon between the module and the function")
        search_working_folder(reference.partition(":")[0])
        return resolve_name(reference)
    except (ValueError, ImportError, AttributeError) as error:
        form = f"give module:function, such as mymod:step, importable from {Path.cwd()}"
        raise ConfigError(f"{role} {reference!r}: {error}; {form}") from error


def _made_by(reference: str) -> Callable[[], Arguments]:
    make = _resolve("arguments", reference)
    if isinstance(make, tuple):
        return lambda: make
    if not callable(make):
        remedy = "name a tuple of arguments, or a function that returns one"
        raise ConfigError(f"arguments {reference!r}: a {type(make).__name__} is not callable; {remedy}")

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
            (SCALE * rng.standard_normal(shape) if "float" in element else np.zeros(shape)).astype(element)
            for element, shape in shapes
        )

    return make
