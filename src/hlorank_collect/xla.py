"""XLA's compiler, called through jaxlib: modules are captured, compiled and run.

This module and xla_texts.py are the only ones that call private parts of jaxlib; `TESTED` is the version that they were
tested with.
"""

import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from hlorank.hlo.entry_layouts import Order, demand, entry_layouts
from hlorank.hlo.hlo_pb2 import HloModuleProto, HloProto
from hlorank.hlo.source_lines import keep_origins
from hlorank_collect.xla_texts import as_stablehlo, with_entry_layouts

TESTED = "0.10.2"
Platform = Literal["cpu", "gpu", "tpu", "tpu-v2", "tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e"]
TPUS: Mapping[str, str] = MappingProxyType(
    {
        "tpu-v2": "v2:2x2",
        "tpu-v3": "v3:2x2",
        "tpu-v4": "v4:2x2x1",
        "tpu-v5e": "v5e:2x2",
        "tpu-v5p": "v5p:2x2x1",
        "tpu-v6e": "v6e:2x2",
    }
)
"""Generation of TPUs -> topology of a host. libtpu compiles for them without one; `tpu` is that of this machine."""
Function = Callable[..., Any]
Finish = Callable[[Callable[[], object], Path], object]
Overrides = Mapping[str, str | int | bool]
"""Fields of xla.DebugOptions, and options of a backend."""
NO_OVERRIDES: Overrides = MappingProxyType({})

_log = logging.getLogger(__name__)
# On a GPU conv-rewriter, a few passes earlier, turns convolutions into calls of cuDNN. These lose their window on the
# way into the compiler, and then end the process.
_NEXT_PASS = re.compile(r"\.after_[\w-]*(layout-assignment|conv-rewriter)\.")
# Nothing is run: LLVM optimizes nothing, and no pass before layout assignment reads these.
_UNOPTIMIZED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_NEEDED = re.compile(r"\(([\d.]+)([KMGT])\) exceeds available HBM")
_MEBIBYTES = {"K": 2**-10, "M": 1, "G": 2**10, "T": 2**20}


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
    return str((_tpu if platform in TPUS else _device)(platform).device_kind)


def put(
    arguments: Sequence[Any], platform: Platform = "cpu", *, wide: bool = False, layouts: Sequence[Order] = ()
) -> list[Any]:
    """Return the leaves of pytrees as arrays on the device, in the order of the module's parameters.

    `wide` keeps types of 64 bits, which jax by default replaces by types of 32 bits. `layouts` are those of the first
    parameters, as in `EntryLayouts`; the others are row-major.
    """
    import jax
    from jax.experimental.layout import Format, Layout
    from jax.sharding import SingleDeviceSharding

    def as_array(leaf: Any) -> Any:
        key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if key else leaf

    leaves = [as_array(leaf) for leaf in jax.tree.leaves(tuple(arguments))]
    place = SingleDeviceSharding(_device(platform))
    orders = chain(layouts, repeat(()))
    with jax.enable_x64(True) if wide else nullcontext():
        return [
            jax.device_put(leaf, Format(Layout(order[::-1]), place) if order else place)
            for leaf, order in zip(leaves, orders, strict=False)
        ]


def unoptimized_module(function: Function, arguments: Sequence[Any], platform: Platform = "cpu") -> bytes:
    """Trace a function, and return its module before any pass as a serialized HloModuleProto."""
    import jax

    with jax.default_device(_device("gpu" if platform == "gpu" else "cpu")):
        traced = jax.jit(function, keep_unused=True).trace(*arguments)
        lowered = traced.lower(lowering_platforms=("tpu",) if platform.startswith("tpu") else None)
        # The layouts that a jitted function asks for are lost where another function calls it.
        asks = function.trace(*arguments).lower() if hasattr(function, "trace") else lowered
    data: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return with_entry_layouts(data, asks.compiler_ir("stablehlo"))


def compile_module(module: bytes, platform: Platform = "cpu", overrides: Overrides = NO_OVERRIDES) -> Executable:
    """Compile a serialized HloModuleProto for one device; RuntimeError is raised if the compiler rejects it."""
    from jaxlib import _jax

    device = _device(platform)
    devices = _jax.DeviceList((device,))
    return Executable(device.client.compile_and_load(as_stablehlo(module), devices, _options(overrides)))


def _options(overrides: Overrides) -> Any:
    from jaxlib import _jax

    options = _jax.CompileOptions()
    options.env_option_overrides = [*overrides.items()]
    return options


def attached_tpu() -> str | None:
    """Return the generation of the TPU of this machine, such as tpu-v3, by its number on the bus; None without one."""
    from jax._src import hardware_utils

    _, generation = hardware_utils.num_available_tpu_chips_and_device_id()
    return None if generation is None else f"tpu-{generation.name}"


@cache
def _tpu(platform: Platform) -> Any:
    from jax.experimental import topologies

    return topologies.get_topology_desc(TPUS[platform], platform="tpu").devices[0]


def compile_for_tpu(
    module: bytes, platform: Platform, proposals: bytes = b"", overrides: Overrides = NO_OVERRIDES
) -> bytes:
    """Compile a serialized HloModuleProto for a TPU that this machine need not have; the result has estimated cycles.

    `proposals` are serialized LayoutProposals, whose ids are those of the module before layout assignment.
    """
    from jax._src.interpreters import mlir
    from jaxlib import _jax
    from jaxlib.mlir import ir

    device = _tpu(platform)
    with proposed(proposals) as options, mlir.make_ir_context():
        stablehlo = ir.Module.parse(as_stablehlo(module))
        compiled = device.client.compile(
            stablehlo, executable_devices=_jax.DeviceList((device,)), compile_options=_options({**overrides, **options})
        )
    return Executable(compiled).module()


@contextmanager
def proposed(proposals: bytes) -> Iterator[dict[str, str]]:
    """Yield the options with which the compiler for TPUs takes serialized LayoutProposals."""
    with tempfile.NamedTemporaryFile(prefix="hlorank-layouts-") as file:
        file.write(proposals)
        file.flush()
        yield proposal_options(file.name) if proposals else {}


def capture_for_tpu(module: bytes, platform: Platform) -> tuple[HloModuleProto, HloModuleProto]:
    """Return a module right before and right after layout assignment, which keeps the names of instructions."""
    with tempfile.TemporaryDirectory(prefix="hlorank-dump-") as folder:
        compile_for_tpu(module, platform, b"", {**dump_options(folder), "xla_early_exit_with_layouts": True})
        before, after = around_layout_assignment(Path(folder))
    demand(before, entry_layouts(HloModuleProto.FromString(module)))
    return before, after


def optimize_for_tpu(
    module: bytes, platform: Platform, proposals: bytes = b"", mebibytes: int = 1
) -> tuple[HloModuleProto, int]:
    """Return the module for which code would be generated, and the memory in MiB that it needs, 0 if that is unknown.

    The compiler is told that the TPU has less memory than the program needs, and ends before it generates code. A limit
    below half of the needed memory makes it fuse less.
    """
    with tempfile.TemporaryDirectory(prefix="hlorank-dump-") as folder:
        needed, options = None, {**dump_options(folder), "xla_tpu_max_hbm_size_mib": mebibytes}
        try:
            compile_for_tpu(module, platform, proposals, options)
        except RuntimeError as error:
            needed = _NEEDED.search(str(error))
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
        optimized = _dumped(Path(folder), "*.after_optimizations_before_buffer_assignment")
        return optimized, int(float(needed[1]) * _MEBIBYTES[needed[2]]) if needed else 0


def around_layout_assignment(folder: Path) -> tuple[HloModuleProto, HloModuleProto]:
    """Return the module right before and right after layout assignment from a folder of dumps for a TPU."""
    return _dumped(folder, "*.before_layout-assignment"), _dumped(folder, "*.after_layout-assignment.*")


def _dumped(folder: Path, name: str) -> HloModuleProto:
    dumps = sorted(folder.glob(f"{name}.hlo.pb"))
    if not dumps:
        raise NotCapturedError(f"no dump {name} of the compiler for TPUs")
    return _captured(dumps[0])


def dump_options(folder: str | Path, passes: str = "layout-assignment") -> dict[str, Any]:
    """Return the options with which the compiler dumps the modules around passes that change them into a folder."""
    return {"xla_dump_to": str(folder), "xla_dump_hlo_pass_re": passes, "xla_dump_hlo_as_proto": True}


def proposal_options(path: str | Path) -> dict[str, str]:
    """Return the options with which the compiler for TPUs takes a file of layouts."""
    return {"xla_tpu_autofdo_proposed_layout_file": str(path)}


def capture(module: bytes, platform: Platform = "cpu", finish: Finish = lambda compiling, _: compiling()) -> bytes:
    """Return a module right before layout assignment, to which layout configurations refer.

    On a GPU, convolutions are not yet calls of cuDNN in it. It has no number, and of its metadata the origins only, so
    that equal programs give equal modules. `finish` calls the compiler, which dumps into a folder.
    """
    if platform in TPUS:
        return capture_for_tpu(module, platform)[0].SerializeToString(deterministic=True)
    with tempfile.TemporaryDirectory(prefix="hlorank-dump-", ignore_cleanup_errors=True) as folder:
        options = {**dump_options(folder), **_UNOPTIMIZED} if platform == "cpu" else dump_options(folder, ".*")
        finish(lambda: compile_module(module, platform, options), Path(folder))
        dumps = sorted(Path(folder).glob("*.hlo.pb"))
        after = next((i for i, dump in enumerate(dumps) if _NEXT_PASS.search(dump.name)), 0)
        if after == 0:
            raise NotCapturedError(f"no module before layout assignment among {len(dumps)} dumps of jaxlib")
        return _captured(dumps[after - 1]).SerializeToString(deterministic=True)


def _captured(dump: Path) -> HloModuleProto:
    module = HloProto.FromString(dump.read_bytes()).hlo_module
    module.ClearField("id")
    keep_origins(module)
    return module
