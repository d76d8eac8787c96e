"""Flattening of the computations of a module into one list of nodes with edges."""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from hlorank.data.graph import MAX_EDGES, MAX_NODES, Int64
from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto

# The official extractor begins a new block after a computation with one of these in its name.
_BOUNDARY_NAMES = ("cluster", "while", "cond")
MAX_DIMENSIONS = 1000


@dataclass(frozen=True, eq=False)
class Program:
    """Instructions of all computations of a module as nodes.

    Attributes:
        instructions: instructions in node order.
        is_root: (nodes,) bool, true for the root of each computation.
        edge_index: (edges, 2) int64, sorted rows [u, v]: u consumes v, or calls the computation whose root is v.
        node_splits: (blocks + 1,) int64, 0, the number of nodes up to the end of each computation named cluster, while
            or cond, and the number of all nodes.
        node_of: (nodes,) int64, the node of each instruction in the order in which the module stores them.
        operands: the nodes of the operands of each node, in their order, repeated ones included.
    """

    instructions: list[HloInstructionProto]
    is_root: NDArray[np.bool_]
    edge_index: Int64
    node_splits: Int64
    node_of: Int64
    operands: list[list[int]]


def _place(computation: int, instruction: int) -> str:
    return f"computations[{computation}].instructions[{instruction}]"


def check_size(computations: Sequence[HloComputationProto]) -> None:
    """Refuse programs beyond the limits of graphs, lists that no instruction has, and unbounded dimensions."""
    nodes = edges = 0
    for c, computation in enumerate(computations):
        nodes += len(computation.instructions)
        for i, node in enumerate(computation.instructions):
            edges += len(node.operand_ids) + len(node.called_computation_ids)
            if (parts := len(node.shape.tuple_shapes)) > MAX_NODES:
                raise DataError(_place(c, i), f"a tuple of at most {MAX_NODES:,} parts", f"{parts:,}")
            lists = node.shape.dimensions, node.window.dimensions, node.slice_dimensions, node.padding_config.dimensions
            if (longest := max(map(len, lists))) > MAX_DIMENSIONS:
                raise DataError(_place(c, i), f"at most {MAX_DIMENSIONS} dimensions", longest)
            if min(node.shape.dimensions, default=0) < 0:
                place, expected = f"{_place(c, i)} ({node.name})", "a shape of known or bounded dimensions"
                raise DataError(place, expected, f"{node.opcode} with an unbounded dimension")
    for key, found, limit in (("instructions", nodes, MAX_NODES), ("operand_ids", edges, MAX_EDGES)):
        if found > limit:
            raise DataError(key, f"at most {limit:,} in a module", f"{found:,}")


def _roots(computations: Sequence[HloComputationProto]) -> dict[int, int]:
    """Return the stored position of the root of each computation, by the id of the computation."""
    roots: dict[int, int] = {}
    start = 0
    for c, computation in enumerate(computations):
        field = f"computations[{c}]"
        if not computation.instructions:
            raise DataError(f"{field}.instructions", "at least one instruction", "none")
        if computation.id in roots:
            raise DataError(f"{field}.id", "another id for each computation", f"{computation.id} again")
        ids = [instruction.id for instruction in computation.instructions]
        if computation.root_id not in ids:
            raise DataError(f"{field}.root_id", "the id of one of its instructions", computation.root_id)
        roots[computation.id] = start + ids.index(computation.root_id)
        start += len(ids)
    return roots


def _uses(computations: Sequence[HloComputationProto], roots: dict[int, int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the stored positions of the operands of each instruction, and of the roots of what it calls."""

    def positions(known: Mapping[int, int], instruction: HloInstructionProto, field: str, expected: str) -> list[int]:
        try:
            return [known[used] for used in getattr(instruction, field)]
        except KeyError as error:
            raise DataError(f"{_place(c, i)}.{field}", expected, error.args[0]) from None

    start = 0
    for c, computation in enumerate(computations):
        # Newer dumps have ids that are unique only within their computation.
        position_of = {instruction.id: start + i for i, instruction in enumerate(computation.instructions)}
        if len(position_of) < len(computation.instructions):
            raise DataError(f"computations[{c}].instructions", "another id for each", "a repeated id")
        for i, instruction in enumerate(computation.instructions):
            if not instruction.opcode:
                raise DataError(f"{_place(c, i)}.opcode", "the name of an opcode", "nothing")
            yield (
                positions(position_of, instruction, "operand_ids", "ids of instructions of the same computation"),
                positions(roots, instruction, "called_computation_ids", "ids of computations of the module"),
            )
        start += len(computation.instructions)


def _edges(used: list[list[int]]) -> Int64:
    """Return the distinct rows [user, used], sorted: (edges, 2) int64."""
    count = len(used)
    users = np.repeat(np.arange(count), [len(nodes) for nodes in used])
    keys = np.unique(users * count + np.fromiter(chain.from_iterable(used), np.int64, len(users)))
    return np.stack([keys // count, keys % count], axis=1)


def _used_first(count: int, edges: Int64, name: Callable[[int], str]) -> Int64:
    """Sort ids 0..count-1, the smallest first, each after those that it uses; refuse a cycle, which `name` names."""
    sorter = TopologicalSorter(dict.fromkeys(range(count), ()))
    for user, used in edges.tolist():
        sorter.add(user, used)
    try:
        sorter.prepare()
    except CycleError as error:
        raise DataError(name(error.args[1][0]), "no cycles of operands and calls", "a cycle through it") from None
    ready: list[int] = []
    order: list[int] = []
    while sorter.is_active():
        for identifier in sorter.get_ready():
            heapq.heappush(ready, identifier)
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    return np.array(order, dtype=np.int64)


def _topological_order(computation_of: Int64, edges: Int64) -> Int64:
    """Sort stored positions such that operands and called computations are first, and computations are contiguous."""
    calls = np.unique(computation_of[edges], axis=0)
    calls = calls[calls[:, 0] != calls[:, 1]]
    order = _used_first(int(computation_of[-1]) + 1, calls, lambda c: f"computations[{c}]")
    # As computations are contiguous, the smallest ready position is always in the first unfinished computation.
    by_computation = np.argsort(np.argsort(order)[computation_of], kind="stable")
    starts = np.searchsorted(computation_of, computation_of)

    def name(renamed: int) -> str:
        position = by_computation[renamed]
        return _place(computation_of[position], position - starts[position])

    return by_computation[_used_first(len(by_computation), np.argsort(by_computation)[edges], name)]


def flatten(module: HloModuleProto) -> Program:
    """Flatten a module; a broken or too large module is refused with DataError.

    Nodes have the order in which the module stores them. Where it is not topological, computations move behind what
    they call and instructions behind their operands, each as little as possible.
    """
    computations = module.computations
    if not computations:
        raise DataError("computations", "at least one computation", "none")
    check_size(computations)
    roots = _roots(computations)
    uses = list(_uses(computations, roots))
    operands, edges = [nodes for nodes, _ in uses], _edges([nodes + called for nodes, called in uses])
    instructions = [instruction for computation in computations for instruction in computation.instructions]
    sizes = [len(computation.instructions) for computation in computations]
    computation_of = np.repeat(np.arange(len(computations)), sizes)
    node_of = np.arange(len(instructions))
    if (edges[:, 0] <= edges[:, 1]).any():
        order = _topological_order(computation_of, edges)
        node_of = np.argsort(order)
        edges = node_of[edges]
        edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
        computation_of = computation_of[order]
        instructions = [instructions[position] for position in order]
        operands = [node_of[operands[position]].tolist() for position in order]
    is_root = np.zeros(len(instructions), dtype=np.bool_)
    is_root[node_of[list(roots.values())]] = True
    ends = np.flatnonzero(np.diff(computation_of, append=-1)) + 1
    cut = [any(name in computations[c].name for name in _BOUNDARY_NAMES) for c in computation_of[ends - 1]]
    cut[-1] = True  # the last block ends with the last node, whatever its name
    return Program(instructions, is_root, edges, np.concatenate([[0], ends[cut]]), node_of, operands)
