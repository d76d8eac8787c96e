"""Configurations of one program as executables: compiled, run once, and compared with the default one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import LayoutSpace, Rows, constrained, name_of
from hlorank_collect import xla
from hlorank_collect.timing import Float64, Rounds, Timer, measure, runtimes, timer_of
from hlorank_collect.verify import difference, has_nan

_QUICK = Rounds(least=3, most=3)


class SkippedError(Exception):
    """A program that can't be measured; the message is the reason."""


class WrongOutputError(RuntimeError):
    """A configuration that computes something else than the default one."""


def reason(error: Exception) -> str:
    """An error in one line."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:300]


class Candidates:
    """Compiles configurations, each once, and keeps those that compute the same as the default one.

    Args:
        module: captured before layout assignment.
        space: of this module.
        inputs: on the device.
        platform: the backend.
        fast_compile: compile without fusion emitters on a CPU; where that computes something else, again with them.
        forbidden: configurations to leave out untried, by name, with the reason.
        before: called with the name of each configuration before it is compiled, None for the default one.
        deadline: `time.monotonic()` after which nothing but the default is compiled.

    Raises:
        SkippedError: the default configuration fails, or an output of it is NaN.
    """

    def __init__(
        self,
        module: HloModuleProto,
        space: LayoutSpace,
        inputs: Sequence[Any],
        platform: xla.Platform,
        *,
        fast_compile: bool = False,
        forbidden: Mapping[str, str] | None = None,
        before: Callable[[str | None], None] = lambda _: None,
        deadline: float = math.inf,
    ) -> None:
        self._module, self._space, self._inputs, self._platform = module, space, inputs, platform
        self._fast_compile, self._before, self._deadline = fast_compile, before, deadline
        self._executables: dict[str, xla.Executable] = {}
        self.left_out: dict[str, str] = dict(forbidden or {})
        """Why configurations, by name, were left out."""
        self.recompiled: list[str] = []
        """Names of configurations that were right only with fusion emitters."""
        before(None)
        name = name_of(space.default)
        try:
            executable = self._compile(space.default, fusion_emitters=True)
            self._reference = self._outputs(executable)
            self._executables[name] = self._checked(name, space.default) if fast_compile else executable
        except Exception as error:
            raise SkippedError(f"the default configuration fails: {reason(error)}") from error
        if has_nan(self._reference):
            raise SkippedError("an output of the default configuration holds NaN, so that none can be checked")

    def _compile(self, configuration: Rows, *, fusion_emitters: bool) -> xla.Executable:
        module = constrained(self._module, self._space, configuration).SerializeToString()
        return xla.compile_module(module, self._platform, fusion_emitters=fusion_emitters)

    def _outputs(self, executable: xla.Executable) -> list[Any]:
        return [np.asarray(output) for output in executable.run(self._inputs)]

    def executable(self, configuration: Rows) -> xla.Executable | None:
        """The executable of a configuration; None where it is left out, with its reason in `left_out`."""
        name = name_of(configuration)
        if name not in self._executables and name not in self.left_out:
            if time.monotonic() > self._deadline:
                self.left_out[name] = "the time limit"
                return None
            self._before(name)
            try:
                self._executables[name] = self._checked(name, configuration)
            except Exception as error:  # whatever the compiler or the backend raises, memory that ran out included
                self.left_out[name] = reason(error)
        return self._executables.get(name)

    def _checked(self, name: str, configuration: Rows) -> xla.Executable:
        for fusion_emitters in (False, True) if self._fast_compile else (True,):
            executable = self._compile(configuration, fusion_emitters=fusion_emitters)
            wrong = difference(self._reference, self._outputs(executable))
            if wrong is None:
                if self._fast_compile and fusion_emitters:
                    self.recompiled.append(name)
                return executable
        raise WrongOutputError(wrong)

    def timer(self, configurations: Rows) -> Timer:
        """Times configurations, by their row, that have an executable."""
        executables = [self._executables[name_of(row)] for row in configurations]
        return timer_of(lambda index: executables[index].run(self._inputs))

    def quick(self, configurations: Rows, rng: np.random.Generator) -> Float64:
        """Measures configurations in few rounds, relative to the default one, so that batches compare.

        Returns:
            (configurations,) float64: runtimes over the default's; inf where a configuration is left out.
        """
        rows = np.stack([self._space.default, *configurations])
        kept = [self.executable(row) is not None for row in rows]
        relative = np.full(len(rows), np.inf)
        times = runtimes(measure(self.timer(rows[kept]), sum(kept), rng, _QUICK))
        relative[kept] = times / times[0]
        return relative[1:]
