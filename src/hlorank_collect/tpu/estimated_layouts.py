"""Layout configurations of one program for a TPU: proposed to the compiler, and estimated by it."""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import Float64, Layouts, configuration_name
from hlorank_collect import xla
from hlorank_collect.compiled_layouts import check_pure
from hlorank_collect.program import Program, SkippedError, error_line
from hlorank_collect.tpu.estimate import CORES, PARTS, Cost, OptimizedModule
from hlorank_collect.tpu.proposals import Assignment

_MEMORY = re.compile(r"Used ([\d.]+\w) of ([\d.]+\w)")


class TpuProgram(Assignment):
    """A program that the compiler for a TPU takes with configurations; SkippedError says why there is none."""

    def __init__(self, program: Program, platform: xla.Platform) -> None:
        source = HloModuleProto.FromString(program.trace(platform).module)
        check_pure(source)
        self._source, self.platform = source.SerializeToString(), platform
        try:
            around = xla.capture_for_tpu(self._source, platform)
        except Exception as error:  # the compiler raises many classes
            raise SkippedError(f"it does not compile: {_reason(error)}") from error
        super().__init__(*around)

    def cost(self, configuration: Layouts) -> Cost:
        """Return the cost of a configuration; whatever the compiler raises says why there is none."""
        optimized = xla.compile_for_tpu(self._source, self.platform, self.proposals(configuration))
        return OptimizedModule(HloModuleProto.FromString(optimized)).cost


class EstimatedLayouts:
    """Configurations of one program, each compiled once, in the place of `CompiledLayouts`.

    SkippedError is raised where the default does not compile. `before` is called with the name of each configuration
    before it is compiled, None for the default. Those in `forbidden` are left out untried, and after the deadline, a
    `time.monotonic()`, all but the default; `left_out` has them with their reasons. Costs are added to the file
    `memory`, and those in it are not computed again: the compiler ends the process on some layouts.
    """

    def __init__(
        self,
        program: TpuProgram,
        before: Callable[[str | None], None] = lambda _: None,
        forbidden: Mapping[str, str] | None = None,
        deadline: float = math.inf,
        memory: Path | None = None,
    ) -> None:
        self._program, self._core = program, CORES[program.platform]
        self._before, self._deadline = before, deadline
        self.left_out: dict[str, str] = dict(forbidden or {})
        self._memory, self._costs = memory, _remembered(memory)
        default = configuration_name(program.space.default)
        if default not in self._costs:
            before(None)
            try:
                self._remember(default, program.cost(program.space.default))
            except Exception as error:  # the compiler raises many classes
                raise SkippedError(f"the default configuration fails: {_reason(error)}") from error
        self._default = self._costs[default]

    def cost(self, configuration: Layouts) -> Cost | None:
        """Return the cost of a configuration; None where it is left out, with the reason in `left_out`."""
        name = configuration_name(configuration)
        if name not in self._costs and name not in self.left_out:
            if time.monotonic() > self._deadline:
                self.left_out[name] = "the time limit"
                return None
            self._before(name)
            try:
                self._remember(name, self._program.cost(configuration))
            except Exception as error:  # the compiler raises many classes
                self.left_out[name] = _reason(error)
        return self._costs.get(name)

    def _remember(self, name: str, cost: Cost) -> None:
        self._costs[name] = cost
        if self._memory is not None:
            with self._memory.open("a", encoding="utf-8") as file:
                file.write(json.dumps([name, vars(cost)]) + "\n")

    def works(self, configuration: Layouts) -> bool:
        """Return True if a configuration compiles."""
        return self.cost(configuration) is not None

    def runtimes(self, configurations: Layouts) -> Float64:
        """Return estimated runtimes in nanoseconds, inf where a configuration is left out."""
        costs = map(self.cost, configurations)
        return np.array([math.inf if cost is None else cost.nanoseconds(self._core) for cost in costs])

    def quick(self, configurations: Layouts, _: np.random.Generator) -> Float64:
        """Return estimates divided by the default's, inf where a configuration is left out."""
        return self.runtimes(configurations) / self._default.nanoseconds(self._core)

    def measure(self, configurations: Layouts, *_: object) -> Float64:
        """Return (rounds, configurations) estimates in nanoseconds: two rounds, which are equal."""
        return np.tile(self.runtimes(configurations), (2, 1))

    def same(self, configurations: Layouts) -> bool:
        """Return True if configurations compile to programs of the same cost."""
        return len({repr(self.cost(configuration)) for configuration in configurations}) == 1

    def about(self, configurations: Layouts) -> dict[str, Any]:
        """Return what the JSON file says about the costs of configurations that compile."""
        costs = [self._costs[configuration_name(configuration)] for configuration in configurations]
        unknown: Counter[str] = Counter()
        for cost in costs:
            unknown |= cost.unknown
        parts = {name: [round(getattr(cost, name)) for cost in costs] for name in PARTS}
        return {"unknown": dict(sorted(unknown.items())), "parts": parts}


def _remembered(memory: Path | None) -> dict[str, Cost]:
    costs = dict[str, Cost]()
    if memory is not None and memory.exists():
        for line in memory.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # a line that a kill left half-written
                name, fields = json.loads(line)
                costs[name] = Cost(**fields | {"unknown": Counter(fields["unknown"])})
    return costs


def _reason(error: Exception) -> str:
    """Return the line of an error of the compiler; how much memory the program needs."""
    if found := _MEMORY.search(str(error)):
        return f"needs {found[1]} of {found[2]} of the device's memory"
    return error_line(error).partition(", metadata=")[0].partition(" HLO: ")[0]
