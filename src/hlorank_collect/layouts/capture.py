"""From a program to what is configured and measured: its module, its inputs, its layouts."""

from __future__ import annotations

from typing import Any

from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import LayoutSpace, layout_space
from hlorank_collect import xla
from hlorank_collect.layouts.compiled_layouts import SkippedError, reason
from hlorank_collect.program import Program

_IMPURE_OPCODES = {"infeed", "outfeed", "send", "recv"}


def _check_pure(module: HloModuleProto) -> None:
    for computation in module.computations:
        for one in computation.instructions:
            called = one.custom_call_has_side_effect or "callback" in one.custom_call_target
            if called or one.opcode in _IMPURE_OPCODES:
                raise SkippedError(f"it has side effects ({one.custom_call_target or one.opcode})")


def captured(program: Program, platform: xla.Platform) -> tuple[HloModuleProto, list[Any]]:
    """The module of a program before layout assignment, and its example inputs on the device.

    Raises:
        SkippedError: it does not trace or compile, or has side effects.
    """
    try:
        function, arguments = program.build()
        unoptimized = xla.unoptimized_module(function, arguments, platform)
    except Exception as error:  # whatever the user's code raises
        raise SkippedError(f"it does not trace: {reason(error)}") from error
    _check_pure(HloModuleProto.FromString(unoptimized))
    try:
        module = HloModuleProto.FromString(xla.capture_module(unoptimized, platform))
        return module, xla.put(arguments, platform)
    except Exception as error:
        raise SkippedError(f"it does not compile: {reason(error)}") from error


def configurable(module: HloModuleProto) -> LayoutSpace:
    """What can be configured in a module, at least one layout.

    Raises:
        SkippedError: there is nothing to configure, or a configurable node has more than six dimensions.
    """
    try:
        space = layout_space(module)
    except DataError as error:
        raise SkippedError(str(error)) from error
    if space.size == 1:
        raise SkippedError("its convolutions, dots and reshapes have no dimensions to order")
    return space
