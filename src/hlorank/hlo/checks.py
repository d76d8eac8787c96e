"""Checks of a compiler's dump: what XLA's verifier would refuse, programs of several devices, and of GPUs only."""

import math
import re
from collections.abc import Sequence
from itertools import zip_longest

from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloComputationProto, HloInstructionProto, HloModuleProto, OpSharding, ShapeProto
from hlorank.hlo.node_features import element_type, shape_text
from hlorank.hlo.program import check_size

# Targets of custom calls, and kinds of fusions, that only XLA's compiler for GPUs makes.
_GPU = re.compile(r"__(?:cu[a-z]+|gpu|triton|hip|miopen|roc[a-z]+)(?![a-z])[\w$.]*")
_COLLECTIVE = re.compile(r"all-|collective-|reduce-scatter|partition-id|ragged-all")
_SHARDS = ("SPMD", "xla.sdy.GlobalToLocal", "xla.sdy.LocalToGlobal")
# Opcodes by their number of operands, from 0; the parser knows the others.
_BY_OPERANDS = (
    "parameter constant iota",
    "broadcast convert copy exponential get-tuple-element log negate reshape reverse slice tanh transpose",
    "add compare convolution divide dot maximum minimum multiply pad subtract",
    "clamp select",
)
_OPERANDS = {opcode: number for number, opcodes in enumerate(_BY_OPERANDS) for opcode in opcodes.split()}
_ARITHMETIC = ("add", "divide", "exponential", "log", "maximum", "minimum", "multiply", "negate", "subtract", "tanh")


def _leaves(shape: ShapeProto) -> list[ShapeProto]:
    return [leaf for part in shape.tuple_shapes for leaf in _leaves(part)] or [shape]


def _fits(node: HloInstructionProto, shapes: Sequence[ShapeProto]) -> bool:
    """Return whether the sizes of a result follow from those of its operands; the parser checks other opcodes."""
    sizes, used = [*node.shape.dimensions], [[*shape.dimensions] for shape in shapes]
    if _OPERANDS.get(node.opcode, len(used)) != len(used):
        return False
    # A letter each for floats, integers, complex numbers, and booleans.
    kind, *kinds = (element_type(one)[0].replace("b", "f").replace("u", "s") for one in (node.shape, *shapes))
    # A dot of integers may have floats as its result.
    if node.opcode in (*_ARITHMETIC, "dot") and kind not in kinds and (node.opcode, kind) != ("dot", "f"):
        return False
    match node.opcode, used:
        case "tuple", _:
            return [[*part.dimensions] for part in node.shape.tuple_shapes] == used
        case "get-tuple-element", _:
            return [*shapes[0].tuple_shapes[node.tuple_index].dimensions] == sizes
        case "reshape", [one]:
            return math.prod(one) == math.prod(sizes)
        case "transpose", [one] if node.dimensions:
            return sizes == [one[d] for d in node.dimensions]
        case "dot", [left, right]:
            n = node.dot_dimension_numbers
            ours = [*n.lhs_batch_dimensions, *n.lhs_contracting_dimensions]
            theirs = [*n.rhs_batch_dimensions, *n.rhs_contracting_dimensions]
            free = [
                one for side, dims in ((left, ours), (right, theirs)) for d, one in enumerate(side) if d not in dims
            ]
            batch = [left[d] for d in n.lhs_batch_dimensions]
            return [left[d] for d in ours] == [right[d] for d in theirs] and sizes == batch + free
    return node.opcode not in (*_ARITHMETIC, "compare", "convert") or all(one == sizes for one in used)


def _fault(node: HloInstructionProto, operands: Sequence[ShapeProto]) -> str | None:
    """Return what XLA would refuse in an instruction, None if nothing is found."""
    for leaf in _leaves(node.shape):
        order, sizes = leaf.layout.minor_to_major, [*leaf.dimensions]
        if (name := element_type(leaf)).startswith("type") or (name == "tuple" and sizes):
            return f"elements of {name}, which XLA does not have, or only a newer one"
        if math.prod(sizes) >= 2**59:  # of at most 16 bytes
            return f"{sizes}, whose bytes overflow an int64"
        if order and sorted(order) != [*range(len(sizes))]:
            return f"a layout {[*order]} of {len(sizes)} dimensions"
    for sharding in (node.sharding, *node.sharding.tuple_shardings) if node.HasField("sharding") else ():
        tiles, devices = math.prod(sharding.tile_assignment_dimensions), sharding.tile_assignment_devices
        count = len({*devices}) or math.prod(sharding.iota_reshape_dims)
        if sharding.tile_assignment_dimensions and (count != tiles or len(devices) not in (0, count)):
            return f"a sharding of {tiles} tiles for {[*devices] or count} devices"
    try:
        fits = any(any(one.is_dynamic_dimension) for one in (node.shape, *operands)) or _fits(node, operands)
    except IndexError:  # a dimension or part that an operand has not
        fits = False
    if fits:
        return None
    given = " and ".join(map(shape_text, operands[:3])) or "nothing"
    return f"{node.opcode} of {given} with the result {shape_text(node.shape)}"


def _is_tiled(sharding: OpSharding) -> bool:
    tiles = sharding.tile_assignment_dimensions[: -1 if sharding.replicate_on_last_tile_dim else None]
    return math.prod(tiles) > 1 or any(map(_is_tiled, sharding.tuple_shardings))


def _is_whole(module: HloModuleProto) -> bool:
    """Return whether a module is not yet partitioned: after that, only its parameters have shardings."""
    nodes = [node for computation in module.computations for node in computation.instructions]
    tiled = {node.opcode for node in nodes if node.HasField("sharding") and _is_tiled(node.sharding)}
    if tiled - {"parameter"} or any(node.custom_call_target.startswith(_SHARDS) for node in nodes):
        return True
    divided = module.spmd_parameters_shardings or any(_COLLECTIVE.match(node.opcode) for node in nodes)
    return bool(tiled) and not divided


def _check_interface(module: HloModuleProto, computation: HloComputationProto, place: str) -> None:
    """Refuse parameters that are not numbered from 0, and an entry layout of other shapes than the computation has."""
    own = {node.parameter_number: node.shape for node in computation.instructions if node.opcode == "parameter"}
    parameters = [node.parameter_number for node in computation.instructions if node.opcode == "parameter"]
    if sorted(parameters) != [*range(len(parameters))]:
        raise DataError(f"{place}: parameter_number", f"each of {len(parameters)} from 0", parameters[:10])
    declared = module.host_program_shape
    if computation.id == module.entry_computation_id and declared.HasField("result"):
        shapes = [own[number] for number in range(len(own))]
        shapes += [node.shape for node in computation.instructions if node.id == computation.root_id]
        for one, other in zip_longest(shapes, [*declared.parameters, declared.result], fillvalue=ShapeProto()):
            if (ours := shape_text(one)) != (theirs := shape_text(other)):
                raise DataError("entry_computation_layout", f"the shapes of {place}, such as {ours}", theirs)


def check_module(module: HloModuleProto) -> None:
    """Raise DataError for a module that XLA's verifier refuses, that several devices run, or that is for GPUs only."""
    check_size(module.computations)
    if (entry := module.entry_computation_id) and all(entry != one.id for one in module.computations):
        raise DataError("entry_computation_id", "the id of a computation", entry)
    for c, computation in enumerate(module.computations):
        _check_interface(module, computation, f"computations[{c}] ({computation.name})")
        shapes = {node.id: node.shape for node in computation.instructions}
        for i, node in enumerate(computation.instructions):
            place = f"computations[{c}].instructions[{i}] ({node.name})"
            text = f"{node.custom_call_target} {node.backend_config!r}"
            if node.opcode in ("custom-call", "fusion") and (made := _GPU.search(text)):
                expected = "a program for any device, such as XLA's dump before_optimizations"
                raise DataError(place, expected, f"{made[0]}, which XLA's compiler for GPUs made")
            operands = [shapes[one] for one in node.operand_ids if one in shapes]
            if len(operands) == len(node.operand_ids) and (fault := _fault(node, operands)):
                raise DataError(place, "an instruction that XLA's verifier accepts", fault)
    # Text and dumps say how many partitions there are; what JAX writes does not.
    if module.device_assignment.computation_count != 1 and _is_whole(module):
        expected = "what one device runs, such as XLA's dump before_layout-assignment, after the partitioner"
        raise DataError("sharding", expected, "a program of several devices (SPMD)")
    module.ClearField("device_assignment")  # devices that compiled it once
