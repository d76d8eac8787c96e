"""Jobs of the entry point group `hlorank.xla`, each for an interpreter of its own (hlorank.hlo.xla_process)."""

import atexit
import math
import os
import resource
import time
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from pathlib import Path

from hlorank.hlo.hlo_pb2 import HloModuleProto, TuningData
from hlorank_collect.xla import Platform

_PARSER_MEMORY = 8 * 2**30
_PATIENCE = 10.0


def _limit_parser() -> None:
    """Limit the memory: XLA's parser allocates every constant that a text declares."""
    resource.setrlimit(resource.RLIMIT_AS, (_PARSER_MEMORY, _PARSER_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it ends the process on some damaged texts


def parse(data: bytes, language: str) -> bytes:
    """Return the serialized HloModuleProto of a text in `hlo` or `stablehlo`, MLIR bytecode or a portable artifact."""
    _limit_parser()
    from hlorank_collect import xla_texts

    return xla_texts.parse(data, stablehlo=language == "stablehlo")


def print_text(data: bytes) -> bytes:
    """Return the HLO text of a serialized HloModuleProto."""
    _limit_parser()
    from hlorank_collect import xla_texts

    return xla_texts.text(data).encode()


def _compile_for(platform: Platform) -> None:
    """Give this process the environment of the processes that measure."""
    from hlorank_collect.child_process import environment
    from hlorank_collect.machine import limit_memory
    from hlorank_collect.program import require_device

    limit_memory()
    require_device(platform)
    os.environ.update(environment(platform))


def _impatient(compiling: Callable[[], object], folder: Path) -> None:
    """Compile, but wait a few seconds only for what comes after layout assignment, of which only errors are of use."""
    with ThreadPool(1) as pool:  # whose end waits for no thread
        compiled, deadline = pool.apply_async(compiling), math.inf
        while not compiled.ready() and time.monotonic() < deadline:
            compiled.wait(0.05)
            if math.isinf(deadline) and any(folder.glob("*.after_layout-assignment.*")):
                deadline = time.monotonic() + _PATIENCE
        if compiled.ready():
            compiled.get()
        else:
            atexit.register(os._exit, 0)  # the process ends while the compiler works


def capture(data: bytes, platform: Platform) -> bytes:
    """Return the module of a serialized HloModuleProto right before layout assignment for a backend, serialized."""
    from hlorank_collect import compiled_layouts, xla
    from hlorank_collect.modules.module_program import check_compilable, prepare

    _compile_for(platform)
    module = HloModuleProto.FromString(data)
    prepare(module)
    check_compilable(module)
    with compiled_layouts.named_failures(module, platform):
        return xla.capture(module.SerializeToString(), platform, _impatient)


def optimize(data: bytes, platform: Platform) -> bytes:
    """Return modules after all passes, serialized TuningData as `data`; an empty module where the compiler fails."""
    from hlorank_collect import xla

    _compile_for(platform)
    results = TuningData()
    for module in TuningData.FromString(data).modules:
        try:
            if platform in xla.TPUS:
                results.modules.append(xla.optimize_for_tpu(module, platform)[0].SerializeToString())
            else:
                results.modules.append(xla.compile_module(module, platform).module())
        except Exception:  # the compiler raises many classes
            results.modules.append(b"")
    return results.SerializeToString()


def trace(_: bytes, function: str, stage: str, platform: Platform, arguments: str | None = None) -> bytes:
    """Return the module of a function or a JaxProgram at a stage of `DUMPS` for a backend, as protobuf."""
    from hlorank.config import ConfigError
    from hlorank.files import DataError
    from hlorank.hlo.reader import DUMPS
    from hlorank_collect import xla
    from hlorank_collect.program import SkippedError, error_line, user_program

    _compile_for(platform)  # as `capture` does: XLA's flags decide, for one, which transposes are a part of a dot
    try:
        module = user_program(function, arguments).trace(platform).module
        return xla.capture(module, platform, _impatient) if stage == DUMPS[0] else module
    except (ConfigError, DataError, SkippedError):
        raise
    except Exception as error:  # the compiler raises many classes
        raise ConfigError(f"it does not compile: {error_line(error)}") from error
