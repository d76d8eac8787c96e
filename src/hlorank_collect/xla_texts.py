"""Texts of XLA's modules, HLO and MLIR, through jaxlib; beside xla.py the only module that calls its private parts."""

import re
from typing import Any

from hlorank.hlo.entry_layouts import EntryLayouts, Order, demand, entry_layouts
from hlorank.hlo.hlo_pb2 import HloModuleProto

_MODE = "mhlo.layout_mode"
_MODES = re.compile(r"default|auto|\{[\d, ]*(?::[^{}]*)?\}")
_UNWRITTEN = re.compile("bytecode interface|invalid Attribute index")
_LAYOUTS = re.compile(rb"mhlo\.(?:layout_mode|xla_entry_computation_parameter_layouts)")


def parse(program: bytes, *, stablehlo: bool) -> bytes:
    """Return the serialized HloModuleProto of HLO text or of MLIR; some damaged texts end the process.

    The parser does not verify HLO: ValueError is raised where MLIR does not accept it as StableHLO.
    """
    from jaxlib import _hlo, _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import mhlo
    from jaxlib.mlir.dialects import stablehlo as dialect

    if found := re.match(rb"ML\xefR.?StableHLO_v([\d.]+)", program, re.DOTALL):
        written, known = found[1].decode(), dialect.get_current_version()
        if [*map(int, written.split("."))] > [*map(int, known.split("."))]:
            raise ValueError(f"StableHLO {written}, which is newer than {known}; write it for that version")

    if not stablehlo:
        data: bytes = _hlo.hlo_module_from_text(program.decode()).as_serialized_hlo_module_proto()
        try:
            with ir.Context() as context:
                dialect.register_dialect(context)
                mhlo.register_mhlo_dialect(context)
                context.allow_unregistered_dialects = True
                ir.Module.parse(_jax.mlir.hlo_to_stablehlo(data))
        except (ir.MLIRError, RuntimeError) as error:
            reason = str(getattr(error, "error_diagnostics", [error])[0])
            # Neither what StableHLO lacks, nor shardings that MLIR cannot write.
            if (isinstance(error, ir.MLIRError) or "INVALID_ARGUMENT" in reason) and not _UNWRITTEN.search(reason):
                raise ValueError(reason) from None
        return data
    data = _jax.mlir.mlir_module_to_xla_computation(program).as_serialized_hlo_module_proto()
    if not _LAYOUTS.search(program):
        return data
    from jax._src.interpreters import mlir

    with mlir.make_ir_context():
        return with_entry_layouts(data, _jax.mlir.deserialize_portable_artifact(program))  # other forms, too


def with_entry_layouts(module: bytes, stablehlo: Any) -> bytes:
    """Return a serialized module with the entry layouts in the attributes of the MLIR module that it was made of."""
    from jaxlib.mlir import ir

    def orders(attributes: Any, name: str) -> list[Order]:
        modes = [part[_MODE].value if _MODE in part else "auto" for part in attributes.get(name, ())]
        if wrong := [mode for mode in modes if not _MODES.fullmatch(mode)]:
            raise ValueError(f"{_MODE} {wrong[0]!r}: neither default, auto nor dimensions, such as {{1,0}}")
        # Layouts with tiles are the compiler's choice, as in `entry_layouts`.
        return [() if ":" in mode else tuple(map(int, re.findall(r"\d+", mode))) for mode in modes]

    main, attributes = _main(stablehlo).attributes, stablehlo.operation.attributes
    found = EntryLayouts(orders(main, "arg_attrs"), orders(main, "res_attrs"))
    if (name := "mhlo.xla_entry_computation_parameter_layouts") in attributes:
        found = EntryLayouts([tuple(ir.DenseIntElementsAttr(part)) for part in attributes[name]], found.results)
    if not found:
        return module
    result = HloModuleProto.FromString(module)
    demand(result, found)
    return result.SerializeToString(deterministic=True)


def _main(module: Any) -> Any:
    return next(operation for operation in module.body.operations if str(operation.attributes["sym_name"]) == '"main"')


def as_stablehlo(module: bytes) -> bytes:
    """Return a serialized module as MLIR in bytecode, with the entry layouts as attributes that the compiler obeys."""
    from jax._src.interpreters import mlir
    from jaxlib import _jax
    from jaxlib.mlir import ir

    data: bytes = _jax.mlir.hlo_to_stablehlo(module)
    if not (layouts := entry_layouts(HloModuleProto.FromString(module))):
        return data
    with mlir.make_ir_context():
        parsed = ir.Module.parse(data)
        main = _main(parsed)
        for name, orders in (("arg_attrs", layouts.parameters), ("res_attrs", layouts.results)):
            texts = [f"{{{','.join(map(str, order))}}}" if order else "default" for order in orders]
            modes = [ir.DictAttr.get({_MODE: ir.StringAttr.get(text)}) for text in texts]
            main.attributes[name] = ir.ArrayAttr.get(modes)
        encoded: bytes = mlir.module_to_bytecode(parsed)
        return encoded


def text(module: bytes, *, canonical: bool = False) -> str:
    """Return HLO text with all values; canonical text is equal where programs differ in names and numbers only."""
    from jaxlib import _hlo

    options = _hlo.HloPrintOptions.canonical() if canonical else _hlo.HloPrintOptions()
    options.print_backend_config = True
    options.print_large_constants = True
    return str(_hlo.HloModule.from_serialized_hlo_module_proto(module).to_string(options))
