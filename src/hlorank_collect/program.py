"""Programs to measure: a traced module and example inputs for it, whatever they are written in; JAX functions."""

import math
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlorank.config import ConfigError
from hlorank.config.extension_point import search_working_folder
from hlorank.files import file_name
from hlorank.hlo.checks import check_module
from hlorank.hlo.entry_layouts import Order, entry_layouts
from hlorank.hlo.hlo_pb2 import HloModuleProto, ShapeProto
from hlorank.hlo.node_features import element_type
from hlorank.hlo.xla_process import INSTALL
from hlorank_collect import xla

Function = Callable[..., Any]
Arguments = tuple[Any, ...]

ELEMENT_TYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
    10: "float16", 11: "float32", 12: "float64", 15: "complex64", 16: "bfloat16", 18: "complex128",
    19: "float8_e5m2", 20: "float8_e4m3fn", 21: "int4", 22: "uint4", 23: "float8_e4m3b11fnuz",
    24: "float8_e5m2fnuz", 25: "float8_e4m3fnuz", 26: "int2", 27: "uint2", 28: "float8_e4m3", 29: "float8_e3m4",
    32: "float4_e2m1fn", 33: "float8_e8m0fnu",
}  # fmt: skip
"""Names of the element types that arrays can have, by xla.PrimitiveType; names that NumPy lacks are jax's."""
_ELEMENTS = {element_type(ShapeProto(element_type=number)): name for number, name in ELEMENT_TYPES.items()}
_WIDE = ("int64", "uint64", "float64", "complex128")  # which jax by default replaces by types of 32 bits
_UNSIGNED_FLOATS = ("float8_e8m0fnu",)
_PERIOD = 1_000_003  # floats that are drawn; a large array repeats them, as drawing takes longer than running. A prime
_SHAPE = re.compile(rf"({'|'.join(_ELEMENTS)})\[((?:\d+(?:,\d+)*)?)\]")
SCALE = 0.1
"""Standard deviation of example inputs: small enough for deep programs to stay finite."""
_MEMORY = re.compile(r"Used ([\d.]+\w) of ([\d.]+\w)")


class SkippedError(Exception):
    """A program that cannot be measured; the message is the reason."""


def error_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message; for a TPU, how much memory the program needs."""
    if isinstance(error, SkippedError):
        return str(error)
    if found := _MEMORY.search(str(error)):
        return f"needs {found[1]} of {found[2]} of the device's memory"
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:300].partition(", metadata=")[0].partition(" HLO: ")[0]


def normal(element: str, size: Sequence[int], rng: np.random.Generator, *, positive: bool = False) -> NDArray[Any]:
    """Return normal floats or complex numbers of an element type, or their absolute values."""
    values: NDArray[Any] = SCALE * rng.standard_normal(min(math.prod(size), _PERIOD))
    if positive or element in _UNSIGNED_FLOATS:
        values = np.abs(values)
    if "complex" in element:
        values = values + SCALE * 1j * rng.standard_normal(len(values))
    return np.resize(values.astype(element), size)


def _with_values(arguments: Arguments) -> Arguments:
    """Return pytrees with an array for each leaf that is a jax.ShapeDtypeStruct: normal floats (seed 0), or zeros."""
    import jax

    rng = np.random.default_rng(0)

    def with_values(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        fraction = jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact)
        return normal(leaf.dtype.name, leaf.shape, rng) if fraction else np.zeros(leaf.shape, leaf.dtype)

    made: Arguments = jax.tree.map(with_values, arguments)
    return made


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
    wide: bool = field(default=False, kw_only=True)
    """True for types of 64 bits, which jax by default replaces by types of 32 bits."""

    @abstractmethod
    def trace(self, platform: xla.Platform) -> Traced:
        """Return the module of the program for a backend, equal at every call; raise SkippedError if there is none."""

    def put(self, arguments: Sequence[Any], platform: xla.Platform, layouts: Sequence[Order] = ()) -> list[Any]:
        """Return leaves of arguments, pytrees, as arrays on the device, one per parameter, in its entry layouts."""
        return xla.put(arguments, platform, wide=self.wide, layouts=layouts)

    @abstractmethod
    def result(self) -> Callable[[Sequence[Any]], Any]:
        """Return the function that gives the flat outputs of the module the structure of the program's result."""


@dataclass(frozen=True)
class JaxProgram(Program):
    """A JAX function with its example arguments; `hlorank collect` and `autotune` take a module's as `module:name`."""

    build: Callable[[], tuple[Function, Arguments]]
    """Function that returns the program and its example arguments, equal at every call: pytrees of arrays, or of
    jax.ShapeDtypeStructs, whose values are drawn."""

    def trace(self, platform: xla.Platform) -> Traced:
        """Trace the function; a program of several devices is a DataError."""
        try:
            import jax

            function, arguments = self.build()
            with jax.enable_x64(True) if self.wide else nullcontext():
                module = xla.unoptimized_module(function, arguments, platform)
        except ConfigError:
            raise
        except Exception as error:  # the user's code may raise any exception
            if "lowering platform" in str(error):
                raise SkippedError(f"it has side effects (calls of the host, which {platform} has none of)") from error
            raise SkippedError(f"it does not trace: {error_line(error)}") from error
        check_module(traced := HloModuleProto.FromString(module))
        layouts = entry_layouts(traced).parameters
        return Traced(module, lambda: self.put(_with_values(arguments), platform, layouts))

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
    as `f32[8,128] s64[8]`, which are taken as they are, also of 64 bits.
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
    wide, make = _shaped(arguments) if "[" in arguments or not arguments else (False, _made_by(arguments))
    name, family = file_name(f"{reference}-{arguments}"), file_name(reference)
    return JaxProgram(name, family, lambda: _without_static(function, make()), wide=wide)


def _without_static(function: Function, arguments: Arguments) -> tuple[Function, Arguments]:
    """Return a function whose static arguments have their values, and its other arguments."""
    if not (static := getattr(getattr(function, "_jit_info", None), "static_argnums", ())):  # of jax.jit
        return function, arguments

    def call(called: Function, *given: Any) -> Any:
        rest = iter(given)
        return called(*(value if i in static else next(rest) for i, value in enumerate(arguments)), *rest)

    bound = partial(call, function)
    bound.trace = partial(call, function.trace)  # type: ignore[attr-defined] # which has the layouts that it asks for
    return bound, tuple(value for i, value in enumerate(arguments) if i not in static)


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


def _shaped(text: str) -> tuple[bool, Callable[[], Arguments]]:
    """Return whether a text of shapes has types of 64 bits, and the function that makes the arguments."""
    shapes: list[tuple[tuple[int, ...], str]] = []
    for word in text.split():
        if not (match := _SHAPE.fullmatch(word)):
            raise ConfigError(
                f"arguments {text!r}: {word!r} is not a shape; give element type and static sizes, such as f32[8,128] "
                f"or s32[] (types: {', '.join(_ELEMENTS)}), separated by spaces"
            )
        element, sizes = match.groups()
        shapes.append((tuple(int(size) for size in sizes.split(",") if size), _ELEMENTS[element]))

    def make() -> Arguments:
        import jax

        return tuple(jax.ShapeDtypeStruct(sizes, element) for sizes, element in shapes)

    return any(element in _WIDE for _, element in shapes), make
