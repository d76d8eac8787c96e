"""Estimates of a program for a TPU, summed over its optimized module: by the compiler's cycles, or by a model of bytes.

Code generation, which writes the cycles, takes minutes for some programs. By the model of bytes, of the module before
it, each kernel takes a fixed time and that of its padded bytes at half the bandwidth: constants that fit the cycles of
11 programs of `examples.zoo --tpu` for TPU v3, each in up to 24 random layouts (mean Kendall tau within programs 0.85,
least 0.78, correlation of logarithms of the defaults 0.92). With the operations of matrix products, tau was 0.84.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto

_CYCLES = re.compile(rb'"estimated_cycles":"?(\d+)')
_UNKNOWN = 2**63 - 1  # what the compiler writes where it has no estimate
_FREE = frozenset(
    {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "opt-barrier", "partition-id"}
)
_CALLS = "custom-call"  # of an optimized module: allocations, and code that layouts do not change
# xla.PrimitiveType -> bytes of an element; others have four.
_BYTES = {1: 1, 2: 1, 3: 2, 5: 8, 6: 1, 7: 2, 9: 8, 10: 2, 12: 8, 15: 8, 16: 2, 18: 16, 21: 0.5, 22: 0.5}
_BYTES |= dict.fromkeys((19, 20, 23, 24, 25, 28, 29), 1)
_SHARE = 0.5  # of the bandwidth, in the model of bytes
_KERNEL = 1000  # cycles of a kernel, in the model of bytes


@dataclass(frozen=True)
class Core:
    """TensorCore: its clock in GHz, and the bandwidth of its share of the memory in bytes per nanosecond."""

    clock: float
    bandwidth: float


CORES: Mapping[str, Core] = {
    "tpu-v2": Core(0.7, 350),
    "tpu-v3": Core(0.94, 450),
    "tpu-v4": Core(1.05, 1200),
    "tpu-v5e": Core(1.5, 819),
    "tpu-v5p": Core(1.75, 2765),
    "tpu-v6e": Core(1.75, 1640),
}
"""Backend -> what a program runs on (Wikipedia, "Tensor Processing Unit", and Google Cloud's pages of each chip)."""


BYTES_PARTS = ("padded", "copies", "kernels")
"""Sums of a `Cost` that tell something before code generation."""
PARTS = ("cycles", "moved", "prefetched", *BYTES_PARTS)
"""Sums of a `Cost`."""


@dataclass
class Cost:
    """Sums over the instructions that run, those of loops once for each trip.

    Attributes:
        cycles: the compiler's estimates.
        moved: bytes that instructions without an estimate read and write; all bytes are of arrays that are padded to
            the tiles of their layouts.
        prefetched: bytes of asynchronous copies, which have no estimate.
        padded: bytes that all kernels read and write.
        copies: number of copies.
        kernels: number of kernels.
        unknown: opcodes of the instructions without an estimate, and `while` for loops whose trips are not known.
    """

    cycles: float = 0
    moved: float = 0
    prefetched: float = 0
    padded: float = 0
    copies: float = 0
    kernels: float = 0
    unknown: Counter[str] = field(default_factory=Counter)

    def add(self, other: Cost, times: float = 1) -> None:
        """Add another cost, so many times."""
        for name in PARTS:
            setattr(self, name, getattr(self, name) + times * getattr(other, name))
        self.unknown += other.unknown

    @property
    def model(self) -> str:
        """Model of `nanoseconds`: cycles, or bytes of a module before code generation, which has no cycles."""
        return "cycles" if self.cycles else "bytes"

    def nanoseconds(self, core: Core) -> float:
        """Return the estimated runtime.

        What has no cycles takes the time of its bytes at the bandwidth, asynchronous copies beside all else.
        """
        if self.model == "bytes":
            return self.kernels * _KERNEL / core.clock + self.padded / (_SHARE * core.bandwidth)
        return max(self.cycles / core.clock + self.moved / core.bandwidth, self.prefetched / core.bandwidth)


def padded_bytes(shape: ShapeProto) -> float:
    """Return the bytes of a shape in memory: its minor dimensions are padded to the first tile of its layout."""
    if shape.tuple_shapes:
        return sum(map(padded_bytes, shape.tuple_shapes))
    sizes = [shape.dimensions[dim] for dim in shape.layout.minor_to_major]
    tile = [*shape.layout.tiles[0].dimensions][::-1] if shape.layout.tiles else []
    sizes += [1] * (len(tile) - len(sizes))
    padded = [-(-size // width) * width for size, width in zip(sizes, tile, strict=False)]
    return math.prod([*padded, *sizes[len(tile) :]]) * _BYTES.get(shape.element_type, 4)


class OptimizedModule:
    """A module after optimization, whose kernels have cycles after code generation."""

    def __init__(self, module: HloModuleProto) -> None:
        self._module = module
        self._computations = {computation.id: computation for computation in module.computations}
        self._nodes = {node.id: node for computation in module.computations for node in computation.instructions}
        self._costs: dict[int, Cost] = {}

    @cached_property
    def cost(self) -> Cost:
        """Cost of a run of the program."""
        return self._cost(self._module.entry_computation_id)

    def _cost(self, computation: int) -> Cost:
        if computation not in self._costs:
            cost = Cost()
            for node in self._computations[computation].instructions:
                self._add(cost, node)
            self._costs[computation] = cost
        return self._costs[computation]

    def _add(self, cost: Cost, node: HloInstructionProto) -> None:
        """Add an instruction: a loop as often as it runs, of a conditional the most expensive branch."""
        if node.opcode == "while":
            trips = self._trips(node)
            if trips is None:
                cost.unknown["while"] += 1
            for called in node.called_computation_ids:
                cost.add(self._cost(called), 1 if trips is None else trips)
            return
        if node.opcode in {"conditional", "call"}:
            cost.add(
                max(map(self._cost, node.called_computation_ids), key=lambda branch: (branch.cycles, branch.padded))
            )
            return
        if node.opcode in _FREE or node.opcode.endswith("-done"):
            return
        found = _CYCLES.search(node.backend_config)
        if found is None and not node.shape.dimensions and not node.shape.tuple_shapes:
            return  # the arithmetic of scalars, such as that of counters
        cycles = int(found[1]) if found else _UNKNOWN
        size = padded_bytes(node.shape) + sum(padded_bytes(self._nodes[operand].shape) for operand in node.operand_ids)
        cost.padded += size
        cost.copies += node.opcode.startswith("copy")
        cost.kernels += 1
        if cycles != _UNKNOWN:
            cost.cycles += cycles
        else:
            cost.unknown[node.opcode] += 1
            if node.opcode.endswith("-start"):
                cost.prefetched += size
            elif node.opcode != _CALLS:
                cost.moved += size

    def _trips(self, loop: HloInstructionProto) -> float | None:
        """Return how often a loop runs that counts up to a constant; None if it does not count so."""
        called = [self._computations[called] for called in loop.called_computation_ids]
        (body, condition) = sorted(called, key=lambda part: self._nodes[part.root_id].shape.element_type == 1)
        root, sides = self._root(condition)
        if root.opcode != "compare" or root.comparison_direction not in {"LT", "LE", "NE", "GT", "GE"}:
            return None
        bounds = [_integer(side) for side in sides if side.opcode == "constant"]
        counters = [side.tuple_index for side in sides if side.opcode == "get-tuple-element"]
        if len(bounds) != 1 or len(counters) != 1 or bounds[0] is None:
            return None
        start, added = (self._element(node, counters[0]) for node in (loop.operand_ids[0], body.root_id))
        terms = added.operand_ids if added is not None and added.opcode == "add" else []
        steps = [step for term in terms if (step := _integer(self._origin(term))) is not None]
        first = None if start is None else _integer(start)
        if first is None or len(steps) != 1 or not steps[0]:
            return None
        return max(0, math.ceil((bounds[0] + (root.comparison_direction in {"LE", "GE"}) - first) / steps[0]))

    def _root(self, computation: HloComputationProto) -> tuple[HloInstructionProto, list[HloInstructionProto]]:
        """Return the root of a computation, of a fusion that of its body, and the origins of its operands."""
        root, given = self._nodes[computation.root_id], list[int]()
        if root.opcode == "fusion":
            root, given = self._nodes[self._computations[root.called_computation_ids[0]].root_id], [*root.operand_ids]
        found = map(self._origin, root.operand_ids)
        return root, [
            self._origin(given[node.parameter_number]) if given and node.opcode == "parameter" else node
            for node in found
        ]

    def _origin(self, node: int) -> HloInstructionProto:
        found = self._nodes[node]
        while found.opcode in {"copy", "bitcast", "convert"}:
            found = self._nodes[found.operand_ids[0]]
        return found

    def _element(self, node: int, index: int) -> HloInstructionProto | None:
        """Return an element of a tuple, None if its elements are not known."""
        found = self._origin(node)
        return self._origin(found.operand_ids[index]) if found.opcode == "tuple" else None


def _integer(node: HloInstructionProto) -> int | None:
    """Return the value of a constant, None for other instructions."""
    literal = node.literal
    values = (*literal.s32s, *literal.s64s, *literal.u32s, *literal.u64s)
    return int(values[0]) if len(values) == 1 else None
