"""Compilation of a module, by jax in a process of its own, up to where layout configurations refer to it."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from hlorank.files import DataError
from hlorank.hlo.forms import INSTALL
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import is_constrained
from hlorank.hlo.stage import named_stage, stage_of

MAX_SECONDS = 600
_COMMAND = [sys.executable, "-P", "-m", "hlorank_collect.capture"]
_EXPECTED = "a module that compiles for a CPU"


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
