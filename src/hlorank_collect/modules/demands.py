"""Demands of a module on the values of its parameters: indices that are in range, and numbers that are positive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hlorank.hlo.hlo_pb2 import HloInstructionProto
from hlorank_collect.modules.dataflow import Dataflow, Value


@dataclass(frozen=True)
class Demand:
    """Demand on the elements of an array.

    Attributes:
        bound: smallest size of a dimension that they index; None where they index nothing.
        positive: True where a root or a logarithm of them is taken.
    """

    bound: int | None = None
    positive: bool = False

    def both(self, other: Demand) -> Demand:
        """Return the demand that meets both."""
        bounds = [bound for bound in (self.bound, other.bound) if bound is not None]
        return Demand(min(bounds, default=None), self.positive or other.positive)


_INDEX_ALL = ("add", "subtract", "concatenate", "maximum", "minimum")
_POSITIVE_ALL = ("add", "concatenate", "maximum", "minimum", "multiply", "divide")
# Operands whose elements reach the output, or are added to something that does.
_INDEX_OPERANDS = {
    **dict.fromkeys(("convert", "reshape", "bitcast", "broadcast", "transpose", "slice", "reverse"), (0,)),
    **dict.fromkeys(("pad", "reduce", "gather", "dynamic-slice", "reduce-window", "sort"), (0,)),
    **dict.fromkeys(("select", "dynamic-update-slice"), (0, 1, 2)),
    "clamp": (1,),
}
_POSITIVE_OPERANDS = {
    **dict.fromkeys(("convert", "reshape", "bitcast", "broadcast", "transpose", "slice", "reverse", "sqrt"), (0,)),
    **dict.fromkeys(("pad", "reduce", "dynamic-slice", "power"), (0,)),
    "select": (1, 2),
    "clamp": (1,),
}
_COPIES = ("convert", "reshape", "bitcast", "broadcast", "transpose", "copy")


def _smallest(sizes: list[int]) -> Demand:
    return Demand(max(1, min(sizes, default=1)))


class _Demands:
    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self.found: dict[Value, Demand] = {}
        self._waiting: list[Value] = []

    def solve(self) -> None:
        for node, one in enumerate(self._flow.nodes):
            for operand, demand in self._own(node, one):
                self._add(operand, demand)
        while self._waiting:
            value = self._waiting.pop()
            for source in self._flow.sources(value):
                self._add(source, self.found[value])
            if not value.path:
                self._pass_on(value.node, self.found[value])

    def _add(self, value: Value | int, demand: Demand) -> None:
        value = value if isinstance(value, Value) else Value(value)
        before = self.found.get(value, Demand())
        if (after := before.both(demand)) != before:
            self.found[value] = after
            self._waiting.append(value)

    def _own(self, node: int, one: HloInstructionProto) -> Iterator[tuple[int, Demand]]:
        """Yield the operands of a node on which it has a demand by itself."""
        operands = self._flow.operands[node]
        if one.opcode in ("sqrt", "rsqrt", "log", "power"):
            yield operands[0], Demand(positive=True)
        elif one.opcode == "gather":
            numbers, sizes = one.gather_dimension_numbers, self._dimensions(operands[0])
            bounds = [sizes[dim] - one.gather_slice_sizes[dim] + 1 for dim in numbers.start_index_map]
            yield from self._components(operands[1], numbers.index_vector_dim, bounds)
        elif one.opcode == "scatter":
            number = len(operands) // 2
            dims, sizes = one.scatter_dimension_numbers, self._dimensions(operands[0])
            window = self._update_window(one, operands)
            bounds = [sizes[dim] - window.get(dim, 1) + 1 for dim in dims.scatter_dims_to_operand_dims]
            yield from self._components(operands[number], dims.index_vector_dim, bounds)
        elif one.opcode in ("dynamic-slice", "dynamic-update-slice"):
            update = one.opcode == "dynamic-update-slice"
            part = self._dimensions(operands[1]) if update else list(one.dynamic_slice_sizes)
            whole = self._dimensions(operands[0])
            for start, size, length in zip(operands[1 + update :], whole, part, strict=False):
                yield start, _smallest([size - length + 1])
        elif one.opcode == "compare":
            for position, other in ((0, 1), (1, 0)):
                if (counted := self._counted(operands[other])) is not None:
                    yield operands[position], _smallest([counted])

    def _dimensions(self, node: int) -> list[int]:
        return list(self._flow.nodes[node].shape.dimensions)

    def _update_window(self, one: HloInstructionProto, operands: list[int]) -> dict[int, int]:
        """Return the size of the updated part for each dimension of a scatter's operand that has a window."""
        numbers = one.scatter_dimension_numbers
        update = self._dimensions(operands[len(operands) // 2 + 1])
        without = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
        dims = [dim for dim in range(len(self._dimensions(operands[0]))) if dim not in without]
        return {dim: update[place] for dim, place in zip(dims, numbers.update_window_dims, strict=False)}

    def _components(self, indices: int, dim: int, bounds: list[int]) -> Iterator[tuple[int, Demand]]:
        """Yield the arrays that a tensor of index vectors is concatenated from; each has its own bound."""
        while self._flow.nodes[indices].opcode == "convert":
            (indices,) = self._flow.operands[indices]
        one, parts = self._flow.nodes[indices], self._flow.operands[indices]
        if one.opcode == "concatenate" and list(one.dimensions) == [dim] and len(parts) == len(bounds):
            yield from ((part, _smallest([bound])) for part, bound in zip(parts, bounds, strict=True))
        else:
            yield indices, _smallest(bounds)

    def _counted(self, node: int) -> int | None:
        """Return the size of the iota that a node repeats; None for other values."""
        while self._flow.nodes[node].opcode in _COPIES:
            node = self._flow.operands[node][0]
        one = self._flow.nodes[node]
        if one.opcode != "iota":
            return None
        return one.shape.dimensions[one.dimensions[0] if one.dimensions else 0]

    def _pass_on(self, node: int, demand: Demand) -> None:
        one, operands = self._flow.nodes[node], self._flow.operands[node]
        everything = tuple(range(len(operands)))
        if demand.bound is not None:
            passed = everything if one.opcode in _INDEX_ALL else _INDEX_OPERANDS.get(one.opcode, ())
            for position in passed:
                self._add(operands[position], Demand(demand.bound))
        square = one.opcode == "multiply" and operands[0] == operands[1]
        if demand.positive and not square:
            passed = everything if one.opcode in _POSITIVE_ALL else _POSITIVE_OPERANDS.get(one.opcode, ())
            for position in passed:
                self._add(operands[position], Demand(positive=True))


def demands(flow: Dataflow) -> dict[Value, Demand]:
    """Return the demands on the parameters of the entry computation, and on the elements of those that are tuples.

    Args:
        flow: the module. Demands go back from the operands of gathers, scatters, dynamic slices, comparisons with an
            iota, roots and logarithms, through everything that copies, moves or adds elements.
    """
    search = _Demands(flow)
    search.solve()
    entry = {*flow.entry}
    return {value: demand for value, demand in search.found.items() if value.node in entry}
