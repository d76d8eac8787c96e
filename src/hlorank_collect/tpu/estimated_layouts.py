"""Layout configurations of one program for a TPU: proposed to the compiler, and estimated by it."""

import json
import math
import operator
from collections import Counter
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import Float64, Layouts, configuration_name
from hlorank_collect import xla
from hlorank_collect.compiled_layouts import NO_LIMITS, Attempts, Tried, check_pure
from hlorank_collect.program import Program, SkippedError, error_line
from hlorank_collect.tpu.estimate import CORES, PARTS, Cost, OptimizedModule
from hlorank_collect.tpu.proposals import Assignment


class TpuProgram(Assignment):
    """A program that the compiler for a TPU takes with configurations; SkippedError says why there is none."""

    def __init__(self, program: Program, platform: xla.Platform) -> None:
        source = HloModuleProto.FromString(program.trace(platform).module)
        check_pure(source)
        self._source, self.platform = source.SerializeToString(), platform
        try:
            around = xla.capture_for_tpu(self._source, platform)
        except Exception as error:  # the compiler raises many classes
            raise SkippedError(f"it does not compile: {error_line(error)}") from error
        super().__init__(*around)

    def cost(self, configuration: Layouts) -> Cost:
        """Return the cost of a configuration; whatever the compiler raises says why there is none."""
        optimized = xla.compile_for_tpu(self._source, self.platform, self.proposals(configuration))
        return OptimizedModule(HloModuleProto.FromString(optimized)).cost


class EstimatedLayouts(Tried[Layouts, Cost]):
    """Costs of configurations of one program, each compiled once, in the place of `CompiledLayouts`.

    Costs are added to the file `memory`, and those in it are not computed again: the compiler ends the process on some
    layouts.
    """

    def __init__(self, program: TpuProgram, attempts: Attempts = NO_LIMITS, memory: Path | None = None) -> None:
        self._program, self._core, self._memory = program, CORES[program.platform], memory
        super().__init__(configuration_name, program.space.default, attempts)

    def _known(self) -> dict[str, Cost]:
        costs = dict[str, Cost]()
        if self._memory is not None and self._memory.exists():
            for line in self._memory.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # a line that a kill left half-written
                    name, fields = json.loads(line)
                    costs[name] = Cost(**fields | {"unknown": Counter(fields["unknown"])})
        return costs

    def _compile(self, configuration: Layouts) -> Cost:
        cost = self._program.cost(configuration)
        if self._memory is not None:
            with self._memory.open("a", encoding="utf-8") as file:
                file.write(json.dumps([configuration_name(configuration), vars(cost)]) + "\n")
        return cost

    def runtimes(self, configurations: Layouts) -> Float64:
        """Return estimated runtimes in nanoseconds, inf where a configuration is left out."""
        costs = map(self.result, configurations)
        return np.array([math.inf if cost is None else cost.nanoseconds(self._core) for cost in costs])

    def quick(self, configurations: Layouts, _: np.random.Generator) -> Float64:
        """Return estimates divided by the default's, inf where a configuration is left out."""
        return self.runtimes(configurations) / self._default.nanoseconds(self._core)

    def measure(self, configurations: Layouts, *_: object) -> Float64:
        """Return (rounds, configurations) estimates in nanoseconds: two rounds, which are equal."""
        return np.tile(self.runtimes(configurations), (2, 1))

    def same(self, configurations: Layouts) -> bool:
        """Return True if configurations compile to programs of the same cost."""
        return len({repr(self.result(configuration)) for configuration in configurations}) == 1

    def about(self, configurations: Layouts) -> dict[str, Any]:
        """Return what the JSON file says about the costs of configurations that compile."""
        costs = [self._results[configuration_name(configuration)] for configuration in configurations]
        unknown = reduce(operator.or_, (cost.unknown for cost in costs))
        parts = {name: [round(getattr(cost, name)) for cost in costs] for name in PARTS}
        return {"unknown": dict(sorted(unknown.items())), "parts": parts}
