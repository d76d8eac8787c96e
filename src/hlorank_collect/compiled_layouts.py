"""Configurations of one program as executables: compiled, run once, and compared with the default."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_json import module_fingerprint
from hlorank.hlo.layout_space import Layouts, LayoutSpace, configuration_name, constrained, layout_space
from hlorank_collect import machine, timing, xla
from hlorank_collect.program import Program, SkippedError, error_line
from hlorank_collect.task import Progress, Report
from hlorank_collect.timing import Float64, Rounds, Timer, WrongOutputError, difference, has_nan

Configuration = TypeVar("Configuration")
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
    module = capture(unoptimized, platform)
    if fingerprint is not None and module_fingerprint(module) != fingerprint == module_fingerprint(unoptimized):
        module = unoptimized
    try:
        return module, traced.inputs()
    except Exception as error:  # the backend raises many classes
        raise SkippedError(f"its inputs cannot be made: {error_line(error)}") from error


def capture(module: HloModuleProto, platform: xla.Platform) -> HloModuleProto:
    """Return a module right before layout assignment; raise SkippedError if it does not compile."""
    try:
        return HloModuleProto.FromString(xla.capture(module.SerializeToString(), platform))
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


class Compiled(Generic[Configuration]):
    """Configurations of one module, each compiled once; kept if its outputs equal the default's.

    SkippedError is raised where the default fails, or one of its outputs holds NaN. `before` is called with the name of
    each configuration before it is compiled, None for the default. Those in `forbidden` are left out untried, and after
    the deadline, a `time.monotonic()`, all but the default; `left_out` has them with their reasons.
    """

    def __init__(
        self,
        compile_one: Callable[[Configuration], xla.Executable],
        name_of: Callable[[Configuration], str],
        default: Configuration,
        inputs: Sequence[Any],
        before: Callable[[str | None], None],
        forbidden: Mapping[str, str] | None = None,
        deadline: float = math.inf,
    ) -> None:
        self._compile, self._name, self._inputs = compile_one, name_of, inputs
        self._before, self._deadline = before, deadline
        self._executables: dict[str, xla.Executable] = {}
        self.left_out: dict[str, str] = dict(forbidden or {})
        before(None)
        try:
            executable = self._executables[self._name(default)] = self._compile(default)
            self._reference = self._outputs(executable)
        except Exception as error:
            raise SkippedError(f"the default configuration fails: {error_line(error)}") from error
        if nan := [number for number, output in enumerate(self._reference) if has_nan([output])]:
            raise SkippedError(f"output {nan[0]} of the default configuration holds NaN: no other can be checked")

    def _outputs(self, executable: xla.Executable) -> list[Any]:
        return [np.asarray(output) for output in executable.run(self._inputs)]

    def executable(self, configuration: Configuration) -> xla.Executable | None:
        """Return the executable of a configuration; None where it is left out, with the reason in `left_out`."""
        name = self._name(configuration)
        if name not in self._executables and name not in self.left_out:
            if time.monotonic() > self._deadline:
                self.left_out[name] = "the time limit"
                return None
            if machine.used_mappings() > _MAX_MAPPINGS:
                self.left_out[name] = "the limit of memory mappings; raise it: sysctl -w vm.max_map_count=1048576"
                return None
            self._before(name)
            try:
                self._executables[name] = self._checked(configuration)
            except Exception as error:  # the compiler and the backend raise many classes, also if memory runs out
                self.left_out[name] = error_line(error)
        return self._executables.get(name)

    def _checked(self, configuration: Configuration) -> xla.Executable:
        executable = self._compile(configuration)
        if (wrong := difference(self._reference, self._outputs(executable))) is not None:
            raise WrongOutputError(wrong)
        return executable

    def timer(self, configurations: Iterable[Configuration]) -> Timer:
        """Return a timer of configurations that have an executable, by their position."""
        executables = [self._executables[self._name(configuration)] for configuration in configurations]
        return timing.timer_of(lambda index: executables[index].run(self._inputs))


class CompiledLayouts(Compiled[Layouts]):
    """Layout configurations of one captured module."""

    def __init__(
        self,
        module: HloModuleProto,
        space: LayoutSpace,
        inputs: Sequence[Any],
        platform: xla.Platform,
        before: Callable[[str | None], None] = lambda _: None,
        forbidden: Mapping[str, str] | None = None,
        deadline: float = math.inf,
    ) -> None:
        def compile_one(configuration: Layouts) -> xla.Executable:
            return xla.compile_module(constrained(module, space, configuration).SerializeToString(), platform)

        self._space = space
        super().__init__(compile_one, configuration_name, space.default, inputs, before, forbidden, deadline)

    def works(self, configuration: Layouts) -> bool:
        """Return True if a configuration has an executable."""
        return self.executable(configuration) is not None

    def same(self, configurations: Layouts) -> bool:
        """Return True if configurations that have an executable compile to one program."""
        executables = [self._executables[configuration_name(configuration)] for configuration in configurations]
        return len({xla.text(executable.module(), canonical=True) for executable in executables}) == 1

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
        kept = [self.executable(configuration) is not None for configuration in stacked]
        relative = np.full(len(stacked), np.inf)
        times = timing.runtimes(timing.measure(self.timer(stacked[kept]), sum(kept), rng, _QUICK))
        relative[kept] = times / times[0]
        return relative[1:]
