"""Stage of a module, between which of XLA's passes a compiler dumped it, and its compilation to layout assignment."""

import re
from pathlib import Path
from typing import Literal

from hlorank.files import DataError
from hlorank.hlo.forms import language_of
from hlorank.hlo.hlo_pb2 import HloComputationProto, HloModuleProto
from hlorank.hlo.layout_space import is_constrained
from hlorank.hlo.xla_process import XlaError, in_process

Stage = Literal["before_optimizations", "before_layout_assignment", "after_layout_assignment"]

TRAINED: Stage = "before_layout_assignment"
"""Stage of the modules that models of layouts are trained on, from `hlorank collect` and from TpuGraphs' records.

Layout configurations set the layouts of the instructions that XLA's pass layout-assignment finds.
"""

# Ends of the names of dumps, such as ...0003.pipeline.after_dce.before_layout-assignment.hlo.pb.
_NAMES: dict[Stage, re.Pattern[str]] = {
    "before_optimizations": re.compile(r"\.before_optimizations\b"),
    "before_layout_assignment": re.compile(r"\.before_[\w-]*layout-assignment\b"),
    "after_layout_assignment": re.compile(r"after_(?:\w*optimizations|[\w-]*layout[_-]assignment|scheduling)\b"),
}
# Pipelines and last dumps of XLA's backends.
_BACKENDS = {
    "cpu": re.compile(r"\.HLO_passes_(?:through|after)_layout_assignment\.|\.cpu_after_"),
    "gpu": re.compile(r"\.layout_assignment\.|gpu_after_"),
    "tpu": re.compile(r"\.Layout_assignment\."),
}


def named_stage(path: Path) -> Stage | None:
    """Return the stage of a module by the name of its file, None if the name has none."""
    return next((stage for stage, pattern in _NAMES.items() if pattern.search(path.name)), None)


def stage_of(path: Path, module: HloModuleProto) -> Stage:
    """Return the stage of a module, by the name of its file, or else by its content.

    A schedule, copies and bitcasts are made after layout assignment; calls and equal constants are removed before it. A
    module without such a sign counts as right before it. A module that hlorank wrote has the name of another file.
    """
    if (named := named_stage(path)) is not None and not is_constrained(module):
        return named
    if language_of(path) == "stablehlo":
        return "before_optimizations"
    opcodes = {instruction.opcode for computation in module.computations for instruction in computation.instructions}
    if module.HasField("schedule") or opcodes & {"copy", "bitcast"}:
        return "after_layout_assignment"
    if "call" in opcodes or any(map(_has_equal_constants, module.computations)):
        return "before_optimizations"
    return "before_layout_assignment"


def _has_equal_constants(computation: HloComputationProto) -> bool:
    constants = [
        tuple(part.SerializeToString(deterministic=True) for part in (constant.shape, constant.literal))
        for constant in computation.instructions
        if constant.opcode == "constant" and constant.HasField("literal")
    ]
    return len({*constants}) < len(constants)


def needs_compilation(path: Path, module: HloModuleProto, backend: str) -> bool:
    """Return True if a model of layouts ranks a module only after compilation, as it was trained on.

    A module whose file name has no stage may be before any pass without a sign of it: it is compiled, too, and remains
    what it is where it is right before layout assignment.
    """
    if named_stage(path) == "before_layout_assignment" or is_constrained(module):
        return False
    return backend.startswith(("cpu", "tpu-")) and stage_of(path, module) != "after_layout_assignment"


def other_backend(path: Path, module: HloModuleProto, backend: str) -> str | None:
    """Return the backend whose compiler dumped a module, if it is another than that of a model, else None."""
    own, found = backend.partition("-")[0], dumped_by(path, module)
    return found if own in _BACKENDS and found != own else None


def dumped_by(path: Path, module: HloModuleProto) -> str | None:
    """Return the backend that dumped a module, by the file's name or tiles, which only TPUs have; None if unknown."""
    named = [name for name, pattern in _BACKENDS.items() if pattern.search(path.name)]
    tiled = any(shape.layout.tiles for shape in module.host_program_shape.parameters)
    return next(iter(["tpu"] if tiled else named), None)


def before_layout_assignment(module: HloModuleProto, backend: str) -> HloModuleProto:
    """Compile a module up to layout assignment for a backend; a DataError's `found` says why not."""
    try:
        return HloModuleProto.FromString(in_process("capture", module.SerializeToString(), backend))
    except XlaError as error:
        raise DataError("file", f"a module that compiles for {backend}", error) from None
