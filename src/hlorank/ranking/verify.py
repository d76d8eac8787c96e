"""Compilation of the first configurations of a ranking: which change the program, and what they copy."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hlorank.data.graph import Int64
from hlorank.featurize.columns import ELEMENT_BYTES
from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloModuleProto, TuningData
from hlorank.hlo.layout_json import module_fingerprint
from hlorank.hlo.layout_space import constrained, layout_space
from hlorank.hlo.node_features import shape_text
from hlorank.hlo.program import flatten
from hlorank.hlo.source_lines import origin_text
from hlorank.hlo.xla_process import XlaError, in_process
from hlorank.ranking.inputs import InputGraph

_MOVING = ("copy", "transpose")
_TRIES = 3  # configurations that are compiled for each that is wanted, at most

Move = tuple[str, str, str]
"""Opcode, shape, and origin of an instruction that moves a tensor."""


@dataclass(frozen=True)
class Verified:
    """Result of compiling the first configurations of a ranking.

    Attributes:
        moves: by configuration that compiles to another program than the default, and the default: `bytes`, those of
            its copies and transposes beyond the default's, and the `added` and `removed` ones, each with its `opcode`,
            `shape`, `origin` (operation and line of the source) and `count`.
        same: configurations that compile to the default's program.
        failed: configurations that do not compile.
    """

    moves: dict[int, dict[str, Any]]
    same: list[int]
    failed: list[int]


def verify(given: InputGraph, order: Int64, count: int) -> Verified:
    """Compile the first configurations of an order, and further ones in the place of any that change nothing."""
    module, configurations, backend = given.candidates("--verify")
    backend, space = backend or "cpu", layout_space(module)
    found = Verified({}, [], [])
    default: HloModuleProto | None = None
    left = [0, *(index for index in order.tolist()[: _TRIES * count] if index)]
    while left and len(found.moves) < count:
        batch = [left.pop(0) for _ in range(min(len(left), count - len(found.moves) + (default is None)))]
        layouts = configurations.values(np.array(batch))
        texts = [constrained(module, space, row).SerializeToString() for row in layouts]
        for index, compiled in zip(batch, _optimized(texts, backend, given), strict=True):
            if default is None:
                if not compiled.computations:
                    raise DataError("--verify", f"a module that compiles for {backend}", "another", file=given.file)
                default = compiled
                known, before = module_fingerprint(default, compiled=True), _moves(default)
                found.moves[0] = _difference(before, before)
            elif not compiled.computations:
                found.failed.append(index)
            elif module_fingerprint(compiled, compiled=True) == known:
                found.same.append(index)
            else:
                found.moves[index] = _difference(before, _moves(compiled))
    return found


def _optimized(modules: list[bytes], backend: str, given: InputGraph) -> Iterator[HloModuleProto]:
    try:
        done = in_process("optimize", TuningData(modules=modules).SerializeToString(), backend)
    except XlaError as error:
        raise DataError("--verify", f"modules that compile for {backend}", error, file=given.file) from None
    return map(HloModuleProto.FromString, TuningData.FromString(done).modules)


def _moves(module: HloModuleProto) -> Counter[tuple[Move, int]]:
    """Count the copies and transposes that move something, with their bytes."""
    moves = Counter[tuple[Move, int]]()
    for node, operands in zip((program := flatten(module)).instructions, program.operands, strict=True):
        if node.opcode in _MOVING and not node.shape.tuple_shapes:
            layout = ",".join(map(str, node.shape.layout.minor_to_major))
            if node.opcode == "copy" and program.instructions[operands[0]].shape.layout == node.shape.layout:
                continue
            element = node.shape.element_type
            size = math.prod(node.shape.dimensions) * int(ELEMENT_BYTES[element] if element < len(ELEMENT_BYTES) else 1)
            moves[(node.opcode, f"{shape_text(node.shape)}{{{layout}}}", origin_text(module, node)), size] += 1
    return moves


def _difference(before: Counter[tuple[Move, int]], after: Counter[tuple[Move, int]]) -> dict[str, Any]:
    def shown(moves: Counter[tuple[Move, int]]) -> list[dict[str, Any]]:
        rows = sorted(moves.items(), key=lambda row: (-row[0][1] * row[1], row[0]))
        return [
            {"opcode": opcode, "shape": shape, "origin": origin, "bytes": size, "count": count}
            for ((opcode, shape, origin), size), count in rows
        ]

    total = sum(size * count for (_, size), count in after.items()) - sum(s * c for (_, s), c in before.items())
    return {"bytes": total, "added": shown(after - before), "removed": shown(before - after)}
