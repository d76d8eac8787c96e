"""Generated modules with every attribute that the features read, and the features of a node by their rules.

The reference implementation follows the rules one node at a time; hlorank's has to be equal to it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from hlorank.data.graph import Graph
from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto, HloProto, ModuleTuningData, TuningData
from hlorank.hlo.node_features import OPCODES, node_features, opcode_ids
from hlorank.hlo.program import flatten

UNREAD = {"metadata", "literal", "id", "operand_ids", "called_computation_ids", "constrain_layout"}
UNREAD |= {"operand_shapes_with_layout", "is_dynamic_dimension"}
"""Fields of instructions that are set apart, or that no feature reads."""
NAMES = ("region", "while_body", "fused", "my_cond", "xclusters")
ELEMENT_TYPES = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 15, 18, 13, 14, 17]


def generated_module(nodes: int, seed: int) -> HloModuleProto:
    """A module with every attribute that the features read: convolutions, slices, pads, dots, sorts, tuples, calls."""
    random = np.random.default_rng(seed)
    module = HloModuleProto(name="generated")
    opcodes = ["convolution", "slice", "dynamic-slice", "pad", "reduce-window", "sort", "tuple", "call", "add", "dot"]
    added = 0
    while added < nodes:
        computation = module.computations.add(name=f"{random.choice(NAMES)}.{added}")
        computation.id = len(module.computations)
        for _ in range(min(nodes - added, int(random.integers(1, 60)))):
            _fill(computation.instructions.add(id=added, opcode=random.choice(opcodes)), random)
            added += 1
            last, before = computation.instructions[-1], len(computation.instructions) - 1
            if before:
                count = min(before, int(random.integers(0, 3)))
                last.operand_ids.extend(computation.instructions[i].id for i in random.integers(before, size=count))
            if last.opcode == "call" and computation.id > 1:
                last.called_computation_ids.append(int(random.integers(1, computation.id)))
        computation.root_id = computation.instructions[int(random.integers(len(computation.instructions)))].id
    return module


def protobufs() -> list[Message]:
    """Return messages of each kind, with modules of 15 to 120 nodes."""
    messages: list[Message] = []
    for nodes, seed in ((15, 1), (40, 2), (120, 3)):
        module = generated_module(nodes, seed)
        instructions = [one for computation in module.computations for one in computation.instructions]
        chosen = [node for node, one in enumerate(instructions) if one.opcode == "dot"][:3]
        for one in instructions:
            del one.shape.dimensions[6:]
        layout = ModuleTuningData(module=module, fingerprint=seed, config_index_to_node=chosen)
        tile = ModuleTuningData(module=module, fingerprint=seed + 9)
        for nanoseconds in range(1_000, 1_020):
            run = layout.runs.add()
            run.profile.compute_time_ns = nanoseconds
            for _ in chosen:
                run.module_config.layout_config.nodes.add().tensors.add(dims=[1, 0])
            run = tile.runs.add(is_default=nanoseconds == 1_000)
            run.profile.compute_time_ns = nanoseconds
            run.op_config.tile_size_config.output_bounds.extend([4, 8])
        messages += [module, HloProto(hlo_module=module), layout, tile]
        messages.append(TuningData(modules=[layout.SerializeToString(), tile.SerializeToString()]))
    return messages


def _fill(message: Message, random: np.random.Generator, depth: int = 0) -> None:
    """Give most fields of a message, and of those inside it, random values; each repeated one has up to seven."""
    for field in message.DESCRIPTOR.fields:
        if field.name in UNREAD or random.integers(4) == 0:
            continue
        value: Any = getattr(message, field.name)
        if field.message_type is not None:
            for part in [value.add() for _ in range(random.integers(8))] if field.is_repeated else [value]:
                if depth < 2:
                    _fill(part, random, depth + 1)
        elif field.cpp_type != field.CPPTYPE_STRING:
            low, high = (0, 2**16) if field.name == "dimensions" else (-2, 25)  # products beyond 64 bits occur
            values = random.integers(low, high, 8).tolist()
            if field.cpp_type == field.CPPTYPE_BOOL:
                values = [one > 9 for one in values]
            if field.is_repeated:
                value.extend(values[: random.integers(8)])
            else:
                setattr(message, field.name, values[0])


def _first(values: list[int], width: int) -> list[int]:
    return (values + [0] * width)[:width]


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _with_totals(values: list[int], width: int) -> list[int]:
    return [*_first(values, width), _wrapped(sum(values)), _wrapped(math.prod(values))]


def plain_row(one: HloInstructionProto, is_root: bool) -> list[float]:
    """The 140 features of one node, in the order in which docs/reference/hlo-features.md lists them."""
    window, numbers = list(one.window.dimensions), one.convolution_dimension_numbers
    slices, padding = list(one.slice_dimensions), list(one.padding_config.dimensions)
    reversals = [w.window_reversal for w in window]
    return [
        is_root, 0, *(one.shape.element_type == number for number in ELEMENT_TYPES),
        *_with_totals(list(one.shape.dimensions), 6), len(one.shape.tuple_shapes), one.parameter_number,
        *_first(list(one.dimensions), 6),
        *_with_totals([w.size for w in window], 6), *_with_totals([w.stride for w in window], 6),
        *_with_totals([w.padding_low for w in window], 6), *_with_totals([w.padding_high for w in window], 6),
        *_with_totals([w.window_dilation for w in window], 6), *_with_totals([w.base_dilation for w in window], 6),
        *_first([int(flag) for flag in reversals], 6), sum(reversals), len(reversals) - sum(reversals),
        numbers.input_batch_dimension, numbers.input_feature_dimension,
        *_first(list(numbers.input_spatial_dimensions), 4),
        numbers.kernel_input_feature_dimension, numbers.kernel_output_feature_dimension,
        *_first(list(numbers.kernel_spatial_dimensions), 4),
        numbers.output_batch_dimension, numbers.output_feature_dimension,
        one.feature_group_count, one.batch_group_count,
        *_with_totals([s.start for s in slices], 2), *_with_totals([s.stride for s in slices], 2),
        *_with_totals([s.limit for s in slices], 2), *_with_totals(list(one.dynamic_slice_sizes), 2),
        *_with_totals([p.edge_padding_low for p in padding], 2),
        *_with_totals([p.edge_padding_high for p in padding], 2),
        one.is_stable, *_first(list(one.shape.layout.minor_to_major), 6),
    ]  # fmt: skip


def plain_graph(data: bytes) -> Graph:
    """A serialized module as a graph, one node at a time; for modules stored in topological order."""
    module = HloModuleProto.FromString(data)
    node_of, root_of, count = {}, {}, 0
    for computation in module.computations:
        for one in computation.instructions:
            node_of[computation.id, one.id] = count
            count += 1
        root_of[computation.id] = node_of[computation.id, computation.root_id]
    rows: list[NDArray[np.float32]] = []
    opcodes, edges, splits = [], set(), [0]
    for computation in module.computations:
        for one in computation.instructions:
            node = node_of[computation.id, one.id]
            opcodes.append(OPCODES.get(one.opcode, 0))
            values = plain_row(one, node == root_of[computation.id])
            rows.append(np.array(values, dtype=np.int64).astype(np.float32))
            edges |= {(node, node_of[computation.id, operand]) for operand in one.operand_ids}
            edges |= {(node, root_of[called]) for called in one.called_computation_ids}
        if any(word in computation.name for word in ("cluster", "while", "cond")) or len(opcodes) == count:
            splits.append(len(opcodes))
    edge_index = np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)
    return Graph(np.stack(rows), np.array(opcodes, dtype=np.uint8), edge_index, np.array(splits, dtype=np.int64))


def fast_graph(data: bytes) -> Graph:
    """The same graph, as the package makes it."""
    program = flatten(HloModuleProto.FromString(data))
    features = node_features(program.instructions, program.is_root)
    return Graph(features, opcode_ids(program.instructions), program.edge_index, program.node_splits)
