"""Layout configurations of a module: their space, searches in it, and constraints that demand them."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hlorank.data.configurations import LAYOUT_DIMS, LAYOUT_TENSORS, LAYOUT_VALUES, pack_layouts
from hlorank.data.graph import Int64
from hlorank.files import DataError, fingerprint
from hlorank.hlo.configurations import default_layout
from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto
from hlorank.hlo.program import flatten

Layouts = NDArray[np.int8]
"""(configurations, configurable nodes, 18), or one configuration, as in `LayoutConfigurations`."""

_TARGET = "LayoutConstraint"
_CALL_NAME = "layout-constraint."  # jax writes layout_constraint
_API_VERSION_ORIGINAL = 1  # xla.CustomCallApiVersion
_ORDERS = np.array([math.factorial(rank) for rank in range(LAYOUT_DIMS + 1)])


@dataclass(frozen=True, eq=False)
class LayoutSpace:
    """Configurable layouts of a module.

    Attributes:
        node_ids: (configurable nodes,) int64, increasing: convolutions, dots and reshapes of at most six dimensions.
        ranks: (configurable nodes, 3) int64: number of dimensions of the output and of the first two operands; 0 where
            there is no such tensor, where its layout would not fit in six values, where it is not for us to choose, and
            where fewer than two dimensions have another size than 1, as all orders are then one.
        orders: (node, its position in `node_ids`; tensor) -> the only orders of dimensions that the backend compiles,
            (orders, rank) int64, minor first; any order where there is no entry.
        ones: (node, tensor) -> its dimensions of size 1, whose places in an order make no difference.
    """

    node_ids: Int64
    ranks: Int64
    orders: Mapping[tuple[int, int], Int64] = field(default_factory=dict)
    ones: Mapping[tuple[int, int], frozenset[int]] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        """Number of configurable nodes."""
        return len(self.node_ids)

    @property
    def size(self) -> int:
        """Number of different configurations: each tensor in any order of its dimensions, or the compiler's choice."""
        return math.prod(self.choices[node][tensor] + 1 for node, tensor, _ in self.slots())

    @property
    def default(self) -> Layouts:
        """Configuration that leaves every layout to the compiler."""
        return np.full((self.nodes, LAYOUT_VALUES), -1, dtype=np.int8)

    def slots(self, nodes: NDArray[np.bool_] | slice = slice(None)) -> Iterator[tuple[int, int, int]]:
        """Yield node (its position in `node_ids`), tensor (0 output, 1 and 2 operands) and rank of choices of nodes."""
        found = np.zeros(self.ranks.shape, dtype=np.bool_)
        found[nodes] = self.ranks[nodes] > 1
        places = (*np.nonzero(found), self.ranks[found])
        yield from zip(*(part.tolist() for part in places), strict=True)

    @cached_property
    def choices(self) -> list[list[int]]:
        """Numbers of orders that tensors may have, by node and tensor."""
        free = self.ranks.copy()
        for place, dims in self.ones.items():
            free[place] -= len(dims)
        choices: list[list[int]] = _ORDERS[np.maximum(free, 0)].tolist()
        for (node, tensor), orders in self.orders.items():
            choices[node][tensor] = len(orders)
        return choices

    def draw(self, node: int, tensor: int, rng: np.random.Generator) -> list[int]:
        """Return a random order of the dimensions of a tensor, minor first; each has one form, see `ones`."""
        if (orders := self.orders.get((node, tensor))) is not None:
            return [*map(int, orders[rng.integers(len(orders))])]
        order = [*range(self.ranks[node, tensor])]
        rng.shuffle(order)  # of a list: a fifth of the time of `permutation`, which draws the same
        if (ones := self.ones.get((node, tensor))) is None:
            return order
        others = [dim for dim in order if dim not in ones]
        return [*range(len(order))][::-1] if others == sorted(others)[::-1] else [*others, *sorted(ones)[::-1]]

    def check(self, configuration: Layouts) -> None:
        """Raise DataError if a layout is neither a permutation of its tensor's dimensions nor all -1."""
        if configuration.shape != (self.nodes, LAYOUT_VALUES):
            expected = f"shape ({self.nodes}, {LAYOUT_VALUES})"
            raise DataError("node_config_feat", expected, configuration.shape)
        layouts = configuration.reshape(self.nodes, len(LAYOUT_TENSORS), LAYOUT_DIMS)
        for node, tensor in np.ndindex(self.ranks.shape):
            rank, layout = int(self.ranks[node, tensor]), layouts[node, tensor].tolist()
            ordered = [*sorted(layout[:rank]), *layout[rank:]]
            if {*layout} != {-1} and ordered != [*range(rank), *[-1] * (LAYOUT_DIMS - rank)]:
                expected = f"a permutation of {rank} dimensions padded with -1, or all -1"
                place = f"node_config_feat of node {self.node_ids[node]}, {LAYOUT_TENSORS[tensor]}"
                raise DataError(place, expected, layout)


def layout_space(module: HloModuleProto) -> LayoutSpace:
    """Return the configurable layouts of a module; NothingToConfigureError without any, DataError if it is broken."""
    program = flatten(module)
    node_ids = default_layout(program)[0].node_ids
    ranks = np.zeros((len(node_ids), len(LAYOUT_TENSORS)), dtype=np.int64)
    ones: dict[tuple[int, int], frozenset[int]] = {}
    for row, node in enumerate(node_ids.tolist()):
        for number, tensor in enumerate([node, *program.operands[node]][: len(LAYOUT_TENSORS)]):
            sizes = program.instructions[tensor].shape.dimensions
            single = frozenset(dim for dim, size in enumerate(sizes) if size == 1)
            if len(sizes) <= LAYOUT_DIMS and len(sizes) - len(single) > 1:
                ranks[row, number] = len(sizes)
                if single:
                    ones[row, number] = single
    return LayoutSpace(node_ids, ranks, ones=ones)


def tpu_layout_space(module: HloModuleProto) -> LayoutSpace:
    """Return the layouts of a module that the compiler for TPUs accepts, as TpuGraphs' configurations have them.

    The output of a convolution has batch and features as minor dimensions, in either order, and then its spatial ones.
    Reshapes follow their operands, and parameters of the program have the layouts of its callers. The rest is as in
    `layout_space`.
    """
    space, program = layout_space(module), flatten(module)
    (entry,) = (part for part in module.computations if part.id == module.entry_computation_id)
    given = {instruction.id for instruction in entry.instructions if instruction.opcode == "parameter"}
    ranks, orders = space.ranks.copy(), {}
    for row, node in enumerate(space.node_ids.tolist()):
        instruction = program.instructions[node]
        if instruction.opcode == "reshape":
            ranks[row] = 0
            continue
        ranks[row, 1:] *= [operand not in given for operand in [*instruction.operand_ids, 0][:2]]
        if instruction.opcode == "convolution" and ranks[row, 0]:
            numbers = instruction.convolution_dimension_numbers
            pair = [numbers.output_feature_dimension, numbers.output_batch_dimension]
            spatial = numbers.output_spatial_dimensions[::-1]
            orders[row, 0] = np.array([[*pair, *spatial], [*pair[::-1], *spatial]])
    return LayoutSpace(space.node_ids, ranks, orders, space.ones)


def configuration_name(configuration: Layouts) -> str:
    """Return a short name that is equal for equal configurations only."""
    return fingerprint(pack_layouts(configuration).tolist())


def constrained(module: HloModuleProto, space: LayoutSpace, configuration: Layouts) -> HloModuleProto:
    """Return a captured module with LayoutConstraint calls for a configuration; a layout of -1 adds no call."""
    space.check(configuration)
    result = HloModuleProto()
    result.CopyFrom(module)
    position_of = np.argsort(flatten(module).node_of)  # node -> position in the file
    layouts = {int(position_of[node]): row for node, row in zip(space.node_ids, configuration, strict=True)}
    start = 0
    for computation in result.computations:
        size = len(computation.instructions)
        rows = {place - start: layouts[place] for place in range(start, start + size) if place in layouts}
        if any((row != -1).any() for row in rows.values()):
            _constrain_computation(computation, rows)
        start += size
    return result


def is_constrained(module: HloModuleProto) -> bool:
    """Return True if a module has constraints that `constrained` added; the program's own constraints do not count."""
    calls = (call for computation in module.computations for call in computation.instructions)
    return any(call.custom_call_target == _TARGET and call.name.startswith(_CALL_NAME) for call in calls)


def _constrain_computation(computation: HloComputationProto, layouts: dict[int, Layouts]) -> None:
    """Add the calls; `layouts` has the rows of the configurable instructions, by position in the computation."""
    instructions = list(computation.instructions)
    shapes = {instruction.id: instruction.shape for instruction in instructions}
    next_id = max(shapes) + 1
    result: list[HloInstructionProto] = []
    replaced: dict[int, int] = {}  # constrained output -> call that its users read instead

    def constrain(operand: int, layout: list[int]) -> int:
        nonlocal next_id
        shape = ShapeProto()
        shape.CopyFrom(shapes[operand])
        shape.layout.minor_to_major[:] = [dim for dim in layout if dim >= 0]
        call = HloInstructionProto(
            name=f"{_CALL_NAME}{next_id}",
            opcode="custom-call",
            shape=shape,
            custom_call_target=_TARGET,
            id=next_id,
            operand_ids=[operand],
            constrain_layout=True,
            operand_shapes_with_layout=[shape],
            custom_call_api_version=_API_VERSION_ORIGINAL,
        )
        result.append(call)
        shapes[next_id] = shape
        next_id += 1
        return call.id

    for place, instruction in enumerate(instructions):
        instruction.operand_ids[:] = [replaced.get(operand, operand) for operand in instruction.operand_ids]
        if place not in layouts:
            result.append(instruction)
            continue
        output, *inputs = layouts[place].reshape(len(LAYOUT_TENSORS), LAYOUT_DIMS).tolist()
        for number, layout in enumerate(inputs):
            if layout[0] >= 0:
                instruction.operand_ids[number] = constrain(instruction.operand_ids[number], layout)
        result.append(instruction)
        if output[0] >= 0:
            replaced[instruction.id] = constrain(instruction.id, output)
    computation.root_id = replaced.get(computation.root_id, computation.root_id)
    del computation.instructions[:]
    computation.instructions.extend(result)


Float64 = NDArray[np.float64]
Quick = Callable[[Layouts], Float64]
"""Function of configurations to (batch,) runtimes of few rounds, in an arbitrary unit, inf for a failure."""

GENERATION = 8
"""Size of a generation of the search `default`, and number of the fastest configurations that may be its parents."""
_TRIES = 50  # draws for each new configuration before a space counts as exhausted


Search = Callable[[LayoutSpace, int, np.random.Generator, Quick], Layouts]
"""Function of a space and a number to at most that many different configurations, the compiler's default first."""


def _changed(space: LayoutSpace, configuration: Layouts, nodes: NDArray[np.bool_], rng: np.random.Generator) -> Layouts:
    """Return a copy in which chosen nodes have random layouts: any permutation, or the compiler's choice."""
    result = configuration.copy()
    result[nodes] = -1
    for node, tensor, rank in space.slots(nodes):
        # The compiler's choice is as likely as each permutation.
        if rng.integers(space.choices[node][tensor] + 1):
            start = tensor * LAYOUT_DIMS
            result[node, start : start + rank] = space.draw(node, tensor, rng)
    return result


def _fill(known: dict[bytes, Layouts], count: int, draw: Callable[[], Layouts]) -> None:
    """Draw until `count` different configurations are known, or many draws in a row find no more."""
    for _ in range(_TRIES * (count - len(known))):
        if len(known) >= count:
            break
        drawn = draw()
        known.setdefault(drawn.tobytes(), drawn)


def random(space: LayoutSpace, count: int, rng: np.random.Generator, quick: Quick) -> Layouts:  # noqa: ARG001 (a Search)
    """Change each node of the default with a probability that is log-uniform in 1 / nodes to 1 per configuration."""
    known = {space.default.tobytes(): space.default}

    def draw() -> Layouts:
        probability = math.exp(rng.uniform(-math.log(space.nodes), 0))
        return _changed(space, space.default, rng.random(space.nodes) < probability, rng)

    _fill(known, count, draw)
    return np.stack([*known.values()])


def outputs(space: LayoutSpace, count: int, rng: np.random.Generator, quick: Quick) -> Layouts:
    """Draw as `random` does, but leave the layouts of operands to the compiler."""
    return random(replace(space, ranks=space.ranks * np.eye(1, len(LAYOUT_TENSORS), dtype=np.int64)), count, rng, quick)


def default(space: LayoutSpace, count: int, rng: np.random.Generator, quick: Quick) -> Layouts:
    """Mutate and select, starting from the default: each child changes few nodes of a parent among the fastest."""
    return _evolve(space, {space.default.tobytes(): space.default}, count, rng, quick, lambda: int(rng.geometric(0.5)))


def models(space: LayoutSpace, count: int, rng: np.random.Generator, quick: Quick) -> Layouts:
    """Draw half of the configurations as `random` does, then mutate and select, starting from these.

    The number of nodes that a child changes is log-uniform: of a thousand nodes, few would change no runtime visibly.
    """
    known = {drawn.tobytes(): drawn for drawn in random(space, max(count // 2, 1), rng, quick)}
    return _evolve(space, known, count, rng, quick, lambda: int(space.nodes ** rng.random()))


def _evolve(
    space: LayoutSpace,
    known: dict[bytes, Layouts],
    count: int,
    rng: np.random.Generator,
    quick: Quick,
    mutations: Callable[[], int],
) -> Layouts:
    """Mutate and select until `count` configurations are known; `mutations` draws the nodes that a child changes."""
    runtimes: Float64 = np.zeros(0)
    while len(runtimes) < len(known) < count:
        members = np.stack([*known.values()])
        runtimes = np.concatenate([runtimes, quick(members[len(runtimes) :])])
        parents = members[np.argsort(runtimes, kind="stable")[:GENERATION]]

        def draw(parents: Layouts = parents) -> Layouts:
            # Faster parents have more children: the index is the smaller of two draws.
            parent = parents[rng.integers(len(parents), size=2).min()]
            chosen = np.zeros(space.nodes, dtype=np.bool_)
            chosen[rng.choice(space.nodes, size=min(mutations(), space.nodes), replace=False)] = True
            return _changed(space, parent, chosen, rng)

        _fill(known, min(count, len(known) + GENERATION), draw)
    return np.stack([*known.values()])


SEARCHES: dict[str, Search] = {"random": random, "outputs": outputs, "default": default, "models": models}
"""Last part of a collection's address -> search."""
DRAWN = (random, outputs)
"""Searches that measure nothing."""
