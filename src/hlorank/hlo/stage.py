"""Stage of a module: between which of XLA's passes a compiler dumped it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from hlorank.hlo.hlo_pb2 import HloComputationProto, HloModuleProto
from hlorank.hlo.layout_space import is_constrained

Stage = Literal["before_optimizations", "before_layout_assignment", "after_layout_assignment"]

TRAINED: Stage = "before_layout_assignment"
"""Stage of the modules that models of layouts are trained on: those of `hlorank collect`, and of TpuGraphs' records.

Layout configurations set the layouts of the instructions that XLA's pass layout-assignment finds.
"""

# Ends of the names of dumps, such as ...0003.pipeline.after_dce.before_layout-assignment.hlo.pb.
_NAMES: dict[Stage, re.Pattern[str]] = {
    "before_optimizations": re.compile(r"\.before_optimizations\b"),
    "before_layout_assignment": re.compile(r"\.before_[\w-]*layout-assignment\b"),
    "after_layout_assignment": re.compile(r"after_(?:\w*optimizations|[\w-]*layout[_-]assignment|scheduling)\b"),
}
_LAYOUT_OPCODES = {"copy", "bitcast"}


def named_stage(path: Path) -> Stage | None:
    """Return the stage of a module by the name of its file, None if the name has none."""
    return next((stage for stage, pattern in _NAMES.items() if pattern.search(path.name)), None)


def stage_of(path: Path, module: HloModuleProto) -> Stage:
    """Return the stage of a module, by the name of its file, or else by its content.

    A schedule, copies and bitcasts are made after layout assignment. Calls and equal constants are removed before it.
    Layouts other than the default and metadata are in modules of all stages, and in TpuGraphs' modules fusions, too. A
    module without such a sign counts as one right before layout assignment.

    The name of a module that hlorank wrote with the layouts of a configuration does not count: it is that of the file
    that was ranked, whose module may have been compiled.
    """
    if (named := named_stage(path)) is not None and not is_constrained(module):
        return named
    opcodes = {instruction.opcode for computation in module.computations for instruction in computation.instructions}
    if module.HasField("schedule") or opcodes & _LAYOUT_OPCODES:
        return "after_layout_assignment"
    if "call" in opcodes or _has_equal_constants(module.computations):
        return "before_optimizations"
    return "before_layout_assignment"


def _has_equal_constants(computations: Iterable[HloComputationProto]) -> bool:
    for computation in computations:
        constants = [
            (one.shape.SerializeToString(deterministic=True), one.literal.SerializeToString(deterministic=True))
            for one in computation.instructions
            if one.opcode == "constant" and one.HasField("literal")
        ]
        if len({*constants}) < len(constants):
            return True
    return False
