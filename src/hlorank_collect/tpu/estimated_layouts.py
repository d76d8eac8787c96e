"""Layout configurations of one program for a TPU: proposed to the compiler, and estimated by it."""

import json
import math
import operator
from collections import Counter
from contextlib import suppress
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np

from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import Float64, Layouts, configuration_name
from hlorank_collect import machine, xla, xla_texts
from hlorank_collect.compiled_layouts import Attempts, Tried, check_pure, named_failures
from hlorank_collect.program import Program
from hlorank_collect.task import Task
from hlorank_collect.tpu.estimate import BYTES_PARTS, CORES, PARTS, Cost, OptimizedModule
from hlorank_collect.tpu.proposals import Assignment

CODE = "code generation"
"""Name of the first compilation of the default, among those of configurations."""


class TpuProgram(Assignment):
    """A program that the compiler for a TPU takes, else SkippedError; if `attached`, it runs on this machine's TPU."""

    def __init__(self, program: Program, platform: xla.Platform, *, attached: bool = False) -> None:
        traced = program.trace("tpu" if attached else platform)
        source = HloModuleProto.FromString(traced.module)
        check_pure(source)
        self._source, self.platform, self.inputs = source.SerializeToString(), platform, traced.inputs
        with named_failures(source, platform):
            around = xla.capture_for_tpu(self._source, platform)
        super().__init__(*around)

    def compiled(self, configuration: Layouts) -> xla.Executable:
        """Compile a configuration for the TPU of this machine; whatever the compiler raises says why it fails."""
        with xla.proposed(self.proposals(configuration)) as options:
            return xla.compile_module(self._source, "tpu", options)

    @cached_property
    def _little(self) -> int:
        """Memory in MiB that is too little for any configuration: half of what the default needs."""
        return max(1, xla.optimize_for_tpu(self._source, self.platform)[1] // 2)

    def optimized(self, configuration: Layouts) -> HloModuleProto:
        """Return the module of a configuration before code generation; whatever is raised says why there is none."""
        return xla.optimize_for_tpu(self._source, self.platform, self.proposals(configuration), self._little)[0]

    def cost(self, configuration: Layouts, *, by_bytes: bool) -> Cost:
        """Return the cost of a configuration; whatever the compiler raises says why there is none."""
        if by_bytes:
            return OptimizedModule(self.optimized(configuration)).cost
        with named_failures(self.module, self.platform):
            generated = xla.compile_for_tpu(self._source, self.platform, self.proposals(configuration))
        return OptimizedModule(HloModuleProto.FromString(generated)).cost


class EstimatedLayouts(Tried[Cost]):
    """Costs of configurations of one program, each compiled once, in the place of `CompiledLayouts`.

    The file `memory` keeps costs, as the compiler ends the process on some layouts. All are by bytes where code
    generation for the default takes more than `code_seconds` of CPU time, or ends the process, which then forbids it.
    """

    def __init__(
        self, program: TpuProgram, memory: Path | None, attempts: Attempts, code_seconds: float = Task.code_seconds
    ) -> None:
        self._program, self._core, self._memory = program, CORES[program.platform], memory
        self._code_seconds = code_seconds
        super().__init__(program.space.default, attempts, self._known())
        self.left_out.pop(CODE, None)

    def _known(self) -> dict[str, Cost]:
        costs = dict[str, Cost]()
        if self._memory is not None and self._memory.exists():
            for line in self._memory.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # a line that a kill left half-written
                    name, fields = json.loads(line)
                    costs[name] = Cost(**fields | {"unknown": Counter(fields["unknown"])})
        return costs

    def _compile(self, configuration: Layouts) -> Cost:
        first = not self._results
        by_bytes = CODE in self._attempts.forbidden if first else self._default.model == "bytes"
        if first and not by_bytes:
            self._attempts.before(CODE)
            machine.limit_cpu(self._code_seconds)
        cost = self._program.cost(configuration, by_bytes=by_bytes)
        machine.limit_cpu(math.inf)
        if self._memory is not None:
            self._memory.parent.mkdir(parents=True, exist_ok=True)
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
        """Return True if configurations compile to one program."""
        modules = (self._program.optimized(configuration).SerializeToString() for configuration in configurations)
        return len({xla_texts.text(module, canonical=True) for module in modules}) == 1

    def about(self, configurations: Layouts) -> dict[str, Any]:
        """Return what the JSON file says about the costs of configurations that compile."""
        costs = [self._results[configuration_name(configuration)] for configuration in configurations]
        unknown = reduce(operator.or_, (cost.unknown for cost in costs if cost.model == "cycles"), Counter[str]())
        names = PARTS if self._default.model == "cycles" else BYTES_PARTS
        parts = {name: [round(getattr(cost, name)) for cost in costs] for name in names}
        return {"estimated_by": self._default.model, "unknown": dict(sorted(unknown.items())), "parts": parts}
