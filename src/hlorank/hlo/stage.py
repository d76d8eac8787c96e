"""Stage of a module, between which of XLA's passes a compiler dumped it, and its compilation to layout assignment."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from hlorank.files import DataError
from hlorank.hlo.forms import INSTALL
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
MAX_SECONDS = 600
_COMMAND = [sys.executable, "-P", "-m", "hlorank_collect.capture"]
_EXPECTED = "a module that compiles for a CPU"


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


def needs_compilation(path: Path, module: HloModuleProto, collection: str) -> bool:
    """Return True if a model ranks a module only after compilation up to layout assignment, as on its training data.

    A module whose file name has no stage may be one before any pass without a sign of it: it is compiled, too. One that
    is right before layout assignment remains so, and so does one that `hlorank rank --export` wrote.

    Args:
        path: file of the module.
        module: the module.
        collection: address of the model's collection; only one of layouts that were measured on a CPU is compiled for.
    """
    if named_stage(path) == "before_layout_assignment" or is_constrained(module):
        return False
    return collection.startswith("layout:cpu:") and stage_of(path, module) != "after_layout_assignment"


def before_layout_assignment(module: HloModuleProto) -> HloModuleProto:
    """Compile a module for a CPU, and return it right before layout assignment.

    The module is compiled as `hlorank collect` compiles it, in another process: the compiler may crash, and jax must
    not be imported into a process that starts others.

    Raises:
        DataError: jax is not installed, or the module does not compile within MAX_SECONDS; `found` is the reason.
    """
    if find_spec("jax") is None:
        raise DataError("file", _EXPECTED, f"no jax to compile it: {INSTALL}")
    data = module.SerializeToString()
    try:
        done = subprocess.run(  # noqa: S603 (hlorank's own module)
            _COMMAND, input=data, capture_output=True, timeout=MAX_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise DataError("file", _EXPECTED, f"one that takes the compiler more than {MAX_SECONDS} seconds") from None
    if done.returncode == 1:
        raise DataError("file", _EXPECTED, done.stdout.decode(errors="replace") or "one that does not")
    if done.returncode:
        ended = signal.Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        raise DataError("file", _EXPECTED, f"one that ends its compiler ({ended})")
    return HloModuleProto.FromString(done.stdout)
