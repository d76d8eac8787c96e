"""Compiler of a module up to layout assignment, for a CPU: a script for a process of its own.

Reads a serialized HloModuleProto from the standard input and writes that right before layout assignment. If the module
does not compile, it writes the reason, with status 1.
"""

from __future__ import annotations

import os
import sys

from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank_collect.child_process import environment
from hlorank_collect.layouts.compiled_layouts import capture
from hlorank_collect.machine import limit_memory
from hlorank_collect.modules.module_checks import check_compilable
from hlorank_collect.modules.module_program import prepare
from hlorank_collect.program import SkippedError


def _main() -> int:
    limit_memory()
    os.environ.update(environment("cpu"))  # of the processes that measure
    try:
        module = HloModuleProto.FromString(sys.stdin.buffer.read())
        prepare(module)
        check_compilable(module)
        captured = capture(module, "cpu")
    except (SkippedError, DataError) as error:
        sys.stdout.buffer.write(str(error).encode())
        return 1
    sys.stdout.buffer.write(captured.SerializeToString())
    return 0


if __name__ == "__main__":
    sys.exit(_main())
