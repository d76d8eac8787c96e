"""Configurations of one program as executables: compiled, run once, and compared with the default."""

from __future__ import annotations

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_json import module_fingerprint
from hlorank.hlo.layout_space import Layouts, LayoutSpace, configuration_name, constrained, layout_space
from hlorank_collect import machine, timing, xla, xla_texts
from hlorank_collect.program import Program, SkippedError, error_line
from hlorank_collect.task import Progress, Report
from hlorank_collect.timing import Float64, Rounds, Timer, WrongOutputError, difference, has_nan

Result = TypeVar("Result")
_QUICK = Rounds(min=3, max=3)
_MAX_MAPPINGS = 0.95  # share of the limit; an executable of a thousand kernels takes a share of about 0.02
_IMPURE_OPCODES = {"infeed", "outfeed", "send", "recv"}


def check_pure(module: HloModuleProto) -> None:
    """Raise SkippedError for a module with side effects, such as calls of the host."""
    for computation in module.computations:
        for instruction in computation.instructions:
            target = instruction.custom_call_target
            called = instruction.custom_call_has_side_effect or "callback" in target
            if called or instruction.opcode in _IMPURE_OPCODES:
                what = target or instruction.opcode
                raise SkippedError(f"instruction {instruction.name}: it has side effects ({what})")


def captured(
    program: Program, platform: xla.Platform, fingerprint: str | None = None
) -> tuple[HloModuleProto, list[Any]]:
    """Return the module of a program before layout assignment, and its example inputs on the device.

    The module before any pass is returned if it alone has this `module_fingerprint`: a file may hold a module right
    before layout assignment, which the passes may change again. SkippedError says why there is none.
    """
    traced = program.trace(platform)
    unoptimized = HloModuleProto.FromString(traced.module)
    check_pure(unoptimized)
    with named_failures(unoptimized, platform):
        module = HloModuleProto.FromString(xla.capture(traced.module, platform))
    if fingerprint is not None and module_fingerprint(module) != fingerprint == module_fingerprint(unoptimized):
        module = unoptimized
    try:
        return module, traced.inputs()
    except Exception as error:  # the backend raises many classes
        raise SkippedError(f"its inputs cannot be made: {error_line(error)}") from error


@contextmanager
def named_failures(module: HloModuleProto, platform: xla.Platform) -> Iterator[None]:
    """Raise SkippedError where a module does not compile, with the instruction if it is a custom call."""
    try:
        yield
    except Exception as error:  # the compiler raises many classes
        for computation in module.computations:
            for instruction in computation.instructions:
                if (target := instruction.custom_call_target) and target in str(error):
                    why = f"the target {target!r} has no form for the {platform}"
                    raise SkippedError(f"instruction {instruction.name}: {why}") from error
        raise SkippedError(f"it does not compile: {error_line(error)}") from error


def configurable(
    module: HloModuleProto, space_of: Callable[[HloModuleProto], LayoutSpace] = layout_space
) -> LayoutSpace:
    """Return the configurable layouts of a module; raise SkippedError if none can be configured."""
    try:
        space = space_of(module)
    except DataError as error:
        raise SkippedError(str(error)) from error
    if space.size == 1:
        raise SkippedError("its convolutions, dots and reshapes have no dimensions to order")
    return space


@dataclass(frozen=True)
class Attempts:
    """Limits of what is tried."""

    before: Callable[[str | None], object] = lambda _: None
    """Called with the name of each configuration before it is compiled, None for the default."""
    forbidden: Mapping[str, str] = field(default_factory=dict)
    """Names of configurations that are left out untried -> reason."""
    deadline: float = math.inf
    """A `time.monotonic()` after which no configuration but the default is compiled."""

    @classmethod
    def reported(
        cls, report: Report, share: float, count: int, forbidden: Mapping[str, str], deadline: float = math.inf
    ) -> Attempts:
        """Return limits of compilations that are reported; `count` of them are this share of all work."""
        done = itertools.count(step=share / count)
        return cls(lambda name: report(Progress("compile", name, min(next(done), share))), forbidden, deadline)


class Tried(ABC, Generic[Result]):
    """Configurations of a program, each compiled once; failures are in `left_out`, the default's is a SkippedError."""

    def __init__(self, default: Layouts, attempts: Attempts, known: Mapping[str, Result] | None = None) -> None:
        self._attempts = attempts
        self.left_out: dict[str, str] = dict(attempts.forbidden)
        self._results = dict(known or {})  # results that need no compilation
        if (name := configuration_name(default)) not in self._results:
            attempts.before(None)
            try:
                self._results[name] = self._compile(default)
            except Exception as error:  # the compiler and the backend raise many classes
                raise SkippedError(f"the default configuration fails: {error_line(error)}") from error
        self._default = self._results[name]

    @abstractmethod
    def _compile(self, configuration: Layouts) -> Result:
        """Return the result of a configuration, the default first; any exception says why there is none."""

    def result(self, configuration: Layouts) -> Result | None:
        """Return the result of a configuration; None where it is left out, with the reason in `left_out`."""
        name = configuration_name(configuration)
        if name not in self._results and name not in self.left_out:
            if time.monotonic() > self._attempts.deadline:
                self.left_out[name] = "the time limit"
                return None
            self._attempts.before(name)
            try:
                self._results[name] = self._compile(configuration)
            except Exception as error:  # the compiler and the backend raise many classes, also if memory runs out
                self.left_out[name] = error_line(error)
        return self._results.get(name)


def compile_constrained(
    module: HloModuleProto, space: LayoutSpace, platform: xla.Platform, configuration: Layouts
) -> xla.Executable:
    """Compile a captured module with calls that demand the layouts of a configuration."""
    return xla.compile_module(constrained(module, space, configuration).SerializeToString(), platform)


class CompiledLayouts(Tried[xla.Executable]):
    """Executables of configurations whose outputs equal the default's; SkippedError if the default fails or has NaN."""

    def __init__(
        self,
        compile_one: Callable[[Layouts], xla.Executable],
        space: LayoutSpace,
        inputs: Sequence[Any],
        attempts: Attempts,
    ) -> None:
        self._compile_one, self._space, self._inputs = compile_one, space, inputs
        self._reference: list[Any] | None = None
        super().__init__(space.default, attempts)

    def _compile(self, configuration: Layouts) -> xla.Executable:
        if machine.used_mappings() > _MAX_MAPPINGS and self._reference is not None:
            raise SkippedError("the limit of memory mappings; raise it: sysctl -w vm.max_map_count=1048576")
        executable = self._compile_one(configuration)
        outputs = [np.asarray(output) for output in executable.run(self._inputs)]
        if self._reference is None:
            if nan := [number for number, output in enumerate(outputs) if has_nan(output)]:
                raise SkippedError(f"output {nan[0]} of the default configuration holds NaN: no other can be checked")
            self._reference = outputs
        elif (wrong := difference(self._reference, outputs)) is not None:
            raise WrongOutputError(wrong)
        return executable

    def timer(self, configurations: Iterable[Layouts]) -> Timer:
        """Return a timer of configurations that have an executable, by position: after a run, the faster of two."""
        executables = [self._results[configuration_name(configuration)] for configuration in configurations]

        def timer(index: int) -> float:
            executables[index].run(self._inputs)
            times = []
            for _ in range(2):
                start = time.perf_counter_ns()
                executables[index].run(self._inputs)
                times.append(time.perf_counter_ns() - start)
            return float(min(times))

        return timer

    def same(self, configurations: Layouts) -> bool:
        """Return True if configurations that have an executable compile to one program."""
        executables = [self._results[configuration_name(configuration)] for configuration in configurations]
        return len({xla_texts.text(executable.module(), canonical=True) for executable in executables}) == 1

    def measure(
        self,
        configurations: Layouts,
        rng: np.random.Generator,
        rounds: Rounds,
        deadline: float,
        report: Report,
        started: float,
    ) -> Float64:
        """Return (rounds, configurations) times; `started` is the share of all work that is finished before."""

        def heartbeat(done: int) -> None:
            report(Progress("measure", share=started + (1 - started) * done / rounds.max))

        timer = self.timer(configurations)
        return timing.measure(timer, len(configurations), rng, rounds, deadline=deadline, heartbeat=heartbeat)

    def quick(self, configurations: Layouts, rng: np.random.Generator) -> Float64:
        """Return runtimes in few rounds divided by the default's, inf where a configuration is left out."""
        stacked = np.stack([self._space.default, *configurations])
        kept = [self.result(configuration) is not None for configuration in stacked]
        relative = np.full(len(stacked), np.inf)
        times = timing.runtimes(timing.measure(self.timer(stacked[kept]), sum(kept), rng, _QUICK))
        relative[kept] = times / times[0]
        return relative[1:]
