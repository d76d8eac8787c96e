"""Layouts that callers of a program demand of its arguments and results: the boundary of layout assignment."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto

Order = tuple[int, ...]
"""Dimensions, minor first; empty for a row-major layout, and for one that the compiler chooses."""


class EntryLayouts(NamedTuple):
    """Layouts of the parameters of the entry computation, and of its result or the elements of its result."""

    parameters: list[Order]
    results: list[Order]

    def __bool__(self) -> bool:
        """Return True if any layout is not row-major."""
        return any(self.parameters) or any(self.results)


def entry_layouts(module: HloModuleProto) -> EntryLayouts:
    """Return the layouts that a module demands; on TPUs, layouts with tiles are the compiler's choice."""

    def order(shape: ShapeProto) -> Order:
        dims = tuple(shape.layout.minor_to_major)
        if dims and sorted(dims) != [*range(len(shape.dimensions))]:
            expected = f"a permutation of {len(shape.dimensions)} dimensions"
            raise DataError("host_program_shape: minor_to_major", expected, [*dims])
        return () if shape.layout.tiles or dims == (*range(len(dims)),)[::-1] else dims

    shapes = module.host_program_shape
    return EntryLayouts([*map(order, shapes.parameters)], [*map(order, _parts(shapes.result))])


def _parts(shape: ShapeProto) -> list[ShapeProto]:
    return [*shape.tuple_shapes] or [shape]


def demand(module: HloModuleProto, layouts: EntryLayouts) -> None:
    """Give a module entry layouts, except empty ones; ValueError if the parameters, results or ranks differ."""
    shapes = module.host_program_shape
    for parts, orders in (
        ([*shapes.parameters], layouts.parameters),
        (_parts(shapes.result), layouts.results),
    ):
        fit = [len(order) in (0, len(part.dimensions)) for order, part in zip(orders, parts, strict=False)]
        if orders and (len(orders) != len(parts) or not all(fit)):
            raise ValueError(f"entry layouts {orders} of shapes {[[*part.dimensions] for part in parts]}")
        _set(zip(parts, orders, strict=False))


def assign(module: HloModuleProto) -> None:
    """Give the parameters of a module, and what it returns, the layouts that are demanded of them."""
    if not (layouts := entry_layouts(module)):
        return
    for entry in module.computations:
        if entry.id == module.entry_computation_id:
            parameters = {node.parameter_number: node for node in entry.instructions if node.opcode == "parameter"}
            numbered = enumerate(layouts.parameters)
            _set((parameters[number].shape, order) for number, order in numbered if number in parameters)
            _set((node.shape, order) for node, order in zip(_returned(entry), layouts.results, strict=False))


def _returned(entry: HloComputationProto) -> Iterator[HloInstructionProto]:
    nodes = {node.id: node for node in entry.instructions}
    root = nodes[entry.root_id]
    for identifier in root.operand_ids if root.opcode == "tuple" else [root.id]:
        node = nodes[identifier]
        yield node if node.opcode != "parameter" else HloInstructionProto()  # has the layout that its caller gives


def _set(pairs: Iterable[tuple[ShapeProto, Order]]) -> None:
    for shape, order in pairs:
        if order and len(order) == len(shape.dimensions):
            shape.layout.minor_to_major[:] = order
