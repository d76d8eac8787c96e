"""Programs to measure, whatever they are written in: a traced module, and example inputs for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hlorank_collect.xla import Platform


class SkippedError(Exception):
    """A program that cannot be measured; the message is the reason."""


def one_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:300]


@dataclass(frozen=True, eq=False)
class Traced:
    """A program as a module.

    Attributes:
        module: the module before any pass, a serialized HloModuleProto.
        inputs: function that makes the example inputs and returns them on the device, one array per parameter.
    """

    module: bytes
    inputs: Callable[[], list[Any]]


@dataclass(frozen=True)
class Program(ABC):
    """A program that XLA compiles, and its name."""

    name: str
    """Unique and safe in file names: letters, digits, dot, minus, underscore."""
    family: str
    """Group of the program in a split by model family."""

    @abstractmethod
    def trace(self, platform: Platform) -> Traced:
        """Return the module of the program for a backend, equal at every call.

        Raises:
            SkippedError: the program cannot be traced or measured.
        """

    @abstractmethod
    def put(self, arguments: Sequence[Any], platform: Platform) -> list[Any]:
        """Return arguments of the program as arrays on the device, one per parameter of the module."""

    @abstractmethod
    def result(self) -> Callable[[Sequence[Any]], Any]:
        """Return the function that gives the flat outputs of the module the structure of the program's result."""
