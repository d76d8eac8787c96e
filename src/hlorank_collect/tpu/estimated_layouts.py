"""Layout configurations of one program for a TPU: proposed to the compiler, and estimated by it."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS
from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto, LayoutProposals
from hlorank.hlo.layout_space import Float64, Layouts, LayoutSpace, configuration_name
from hlorank_collect import xla
from hlorank_collect.program import SkippedError, error_line
from hlorank_collect.tpu.estimate import CORES, Cost, OptimizedModule

_MEMORY = re.compile(r"Used ([\d.]+\w) of ([\d.]+\w)")


class TpuProgram:
    """A module with its forms around layout assignment for a TPU.

    Attributes:
        module: right before layout assignment, to which configurations refer.
    """

    def __init__(self, source: HloModuleProto, platform: xla.Platform) -> None:
        self._source, self._platform = source.SerializeToString(), platform
        try:
            self.module, assigned = xla.capture_for_tpu(self._source, platform)
        except Exception as error:  # the compiler raises many classes
            raise SkippedError(f"it does not compile: {_reason(error)}") from error
        nodes = [node for computation in assigned.computations for node in computation.instructions]
        found = {node.name: [*node.shape.layout.minor_to_major] for node in nodes}  # the pass changes ids
        before = [node for computation in self.module.computations for node in computation.instructions]
        self._assigned = {
            node.id: found.get(node.name) or [*range(len(node.shape.dimensions))][::-1] for node in before
        }

    def compile(self, space: LayoutSpace, configuration: Layouts) -> Cost:
        """Return the cost of a configuration; whatever the compiler raises says why there is none."""
        proposals = self.proposals(space, configuration).SerializeToString(deterministic=True)
        optimized = xla.compile_for_tpu(self._source, self._platform, proposals)
        return OptimizedModule(HloModuleProto.FromString(optimized)).cost

    def proposals(self, space: LayoutSpace, configuration: Layouts) -> LayoutProposals:
        """Return the layouts of each changed node, in the form that the compiler takes.

        It wants the layout of the output, and of no operand without those before it: a layout of -1 is that which the
        compiler itself assigned.
        """
        space.check(configuration)
        result = LayoutProposals()
        rows = configuration.reshape(space.nodes, len(LAYOUT_TENSORS), LAYOUT_DIMS)
        for node, layouts in zip(self._configured(space), rows, strict=True):
            if (layouts == -1).all():
                continue
            proposal = result.instructions[node.id]
            last = int(np.flatnonzero((layouts != -1).any(axis=1))[-1])
            for number, tensor in enumerate([node.id, *node.operand_ids][: last + 1]):
                given = [dim for dim in layouts[number].tolist() if dim >= 0]
                layout = proposal.output if number == 0 else proposal.inputs.add()
                layout.minor_to_major[:] = given or self._assigned[tensor]
        return result

    def _configured(self, space: LayoutSpace) -> list[HloInstructionProto]:
        from hlorank.hlo.program import flatten

        instructions = flatten(self.module).instructions
        return [instructions[node] for node in space.node_ids.tolist()]


class EstimatedLayouts:
    """Configurations of one program, each compiled once.

    SkippedError is raised where the default does not compile. `before` is called with the name of each configuration
    before it is compiled, None for the default. Those in `forbidden` are left out untried, and after the deadline, a
    `time.monotonic()`, all but the default; `left_out` has them with their reasons.
    """

    def __init__(
        self,
        program: TpuProgram,
        space: LayoutSpace,
        platform: xla.Platform,
        before: Callable[[str | None], None] = lambda _: None,
        forbidden: Mapping[str, str] | None = None,
        deadline: float = math.inf,
    ) -> None:
        self._program, self._space, self._core = program, space, CORES[platform]
        self._before, self._deadline = before, deadline
        self.left_out: dict[str, str] = dict(forbidden or {})
        before(None)
        try:
            default = program.compile(space, space.default)
        except Exception as error:  # the compiler raises many classes
            raise SkippedError(f"the default configuration fails: {_reason(error)}") from error
        self._costs = {configuration_name(space.default): default}

    def cost(self, configuration: Layouts) -> Cost | None:
        """Return the cost of a configuration; None where it is left out, with the reason in `left_out`."""
        name = configuration_name(configuration)
        if name not in self._costs and name not in self.left_out:
            if time.monotonic() > self._deadline:
                self.left_out[name] = "the time limit"
                return None
            self._before(name)
            try:
                self._costs[name] = self._program.compile(self._space, configuration)
            except Exception as error:  # the compiler raises many classes
                self.left_out[name] = _reason(error)
        return self._costs.get(name)

    def quick(self, configurations: Layouts) -> Float64:
        """Return estimated runtimes in nanoseconds, inf for the ones that are left out."""
        costs = map(self.cost, configurations)
        return np.array([math.inf if cost is None else cost.nanoseconds(self._core) for cost in costs])

    def about(self, configurations: Layouts) -> dict[str, Any]:
        """Return what the JSON file says about the costs of configurations that compile."""
        costs = [self._costs[configuration_name(configuration)] for configuration in configurations]
        unknown: Counter[str] = Counter()
        for cost in costs:
            unknown |= cost.unknown
        names = ("cycles", "moved", "prefetched", "padded", "copies")
        parts = {name: [round(getattr(cost, name)) for cost in costs] for name in names}
        return {"unknown": dict(sorted(unknown.items())), "parts": parts}


def _reason(error: Exception) -> str:
    """Return the line of an error of the compiler; how much memory the program needs."""
    if found := _MEMORY.search(str(error)):
        return f"needs {found[1]} of {found[2]} of the device's memory"
    return error_line(error).partition(", metadata=")[0].partition(" HLO: ")[0]
