"""XLA's compiler, called through jaxlib: modules are captured, compiled and run.

This is the only module that calls private parts of jaxlib; `TESTED` is the version that they were tested with.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hlorank.hlo.hlo_pb2 import HloProto

TESTED = "0.10.2"
Platform = Literal["cpu", "gpu"]
Function = Callable[..., Any]

_log = logging.getLogger(__name__)
# On a GPU conv-rewriter, a few passes earlier, turns convolutions into calls of cuDNN. These lose their window on the
# way into the compiler, and then end the process.
_NEXT_PASS = re.compile(r"\.after_[\w-]*(layout-assignment|conv-rewriter)\.")


class NotCapturedError(RuntimeError):
    """Failure of the compiler to dump a module before layout assignment."""


class Executable:
    """A compiled module, on one device."""

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run to the end on arrays of `put`, and return the outputs, flat, as arrays on the device."""
        outputs = [array for (array,) in self._loaded.execute_sharded(inputs).disassemble_into_single_device_arrays()]
        for output in outputs:
            output.block_until_ready()
        return outputs

    def module(self) -> bytes:
        """Return the module after all passes, as a serialized HloModuleProto."""
        (module,) = self._loaded.hlo_modules()
        data: bytes = module.as_serialized_hlo_module_proto()
        return data


@cache
def _device(platform: Platform) -> Any:
    import jax
    import jaxlib

    if jaxlib.__version__ != TESTED:
        _log.warning("jaxlib %s: hlorank collect was tested with %s only", jaxlib.__version__, TESTED)
    # Run in the calling thread: another thread costs 6 us and a context switch per run. jax ignores the setting where
    # the process has a client already.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    return jax.devices(platform)[0]


def device_name(platform: Platform) -> str:
    """Return the backend's name of its device."""
    return str(_device(platform).device_kind)


def put(arguments: Sequence[Any], platform: Platform = "cpu", *, wide: bool = False) -> list[Any]:
    """Return the leaves of pytrees as arrays on the device, in the order of the module's parameters.

    `wide` keeps types of 64 bits, which jax by default replaces by types of 32 bits.
    """
    import jax

    def as_array(leaf: Any) -> Any:
        key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if key else leaf

    leaves = [as_array(leaf) for leaf in jax.tree.leaves(tuple(arguments))]
    with jax.enable_x64(True) if wide else nullcontext():
        return [jax.device_put(leaf, _device(platform)) for leaf in leaves]


def parse(program: bytes, *, stablehlo: bool) -> bytes:
    """Return the serialized HloModuleProto of HLO text or of MLIR; some damaged texts end the process."""
    from jaxlib import _hlo, _jax

    parsed: Any = (
        _jax.mlir.mlir_module_to_xla_computation(program) if stablehlo else _hlo.hlo_module_from_text(program.decode())
    )
    data: bytes = parsed.as_serialized_hlo_module_proto()
    return data


def text(module: bytes, *, canonical: bool = False) -> str:
    """Return the HLO text of a serialized HloModuleProto, with all values of its constants.

    The canonical text is equal for programs that differ in names and numbers only.
    """
    from jaxlib import _hlo

    options = _hlo.HloPrintOptions.canonical() if canonical else _hlo.HloPrintOptions()
    options.print_backend_config = True
    options.print_large_constants = True
    return str(_hlo.HloModule.from_serialized_hlo_module_proto(module).to_string(options))


def unoptimized_module(function: Function, arguments: Sequence[Any], platform: Platform = "cpu") -> bytes:
    """Trace a function, and return its module before any pass as a serialized HloModuleProto."""
    import jax

    with jax.default_device(_device(platform)):
        lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    data: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return data


def compile_module(
    module: bytes,
    platform: Platform = "cpu",
    *,
    fusion_emitters: bool = True,
    overrides: Mapping[str, str | int | bool] | None = None,
    dump: Path | None = None,
) -> Executable:
    """Compile a serialized HloModuleProto for one device; RuntimeError is raised if the compiler rejects it.

    Without `fusion_emitters` the code of fusions on a CPU is that of the older emitters: much faster to compile, and
    known to be wrong for rare layouts, so compare outputs. `overrides` are fields of xla.DebugOptions; `dump` is a
    folder for the modules after each pass that changed the module.
    """
    from jaxlib import _jax

    options = _jax.CompileOptions()
    options.env_option_overrides = [*(overrides or {}).items()]
    if platform == "cpu" and not fusion_emitters:
        options.env_option_overrides += [("xla_cpu_use_fusion_emitters", False)]
    if dump is not None:
        debug = options.executable_build_options.debug_options
        debug.xla_dump_to = str(dump)
        debug.xla_dump_hlo_pass_re = ".*"  # noqa: S105 (a regular expression)
        debug.xla_dump_hlo_as_proto = True
    device = _device(platform)
    stablehlo = _jax.mlir.hlo_to_stablehlo(module)
    return Executable(device.client.compile_and_load(stablehlo, _jax.DeviceList((device,)), options))


def capture(module: bytes, platform: Platform = "cpu") -> bytes:
    """Return a module right before layout assignment, to which layout configurations refer.

    On a GPU, convolutions are not yet calls of cuDNN in it. It has no metadata and no number, so that equal programs
    give equal modules.
    """
    with tempfile.TemporaryDirectory(prefix="hlorank-dump-") as folder:
        compile_module(module, platform, dump=Path(folder))
        dumps = sorted(Path(folder).glob("*.hlo.pb"))
        after = next((i for i, dump in enumerate(dumps) if _NEXT_PASS.search(dump.name)), 0)
        if after == 0:
            raise NotCapturedError(f"no module before layout assignment among {len(dumps)} dumps of jaxlib")
        captured = HloProto.FromString(dumps[after - 1].read_bytes()).hlo_module
    captured.ClearField("id")
    captured.ClearField("stack_frame_index")
    for computation in captured.computations:
        for instruction in computation.instructions:
            instruction.ClearField("metadata")
    return captured.SerializeToString(deterministic=True)
