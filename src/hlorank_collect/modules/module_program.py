"""Programs in files: HLO protobufs, HLO text and StableHLO."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hlorank.files import DataError
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.program import flatten
from hlorank.hlo.reader import graph_name, read_records
from hlorank_collect import xla
from hlorank_collect.machine import memory_limit
from hlorank_collect.modules.draw_inputs import draw_inputs
from hlorank_collect.modules.module_checks import check_measurable, check_memory
from hlorank_collect.modules.scale_batch import scale_batch
from hlorank_collect.program import Program, SkippedError, Traced

_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")


def prepare(module: HloModuleProto) -> None:
    """Remove what a module says about donated inputs: an input that is donated can be run once only.

    Raises:
        DataError: the module has no entry computation.
    """
    if all(one.id != module.entry_computation_id for one in module.computations):
        raise DataError("entry_computation_id", "the id of a computation", module.entry_computation_id)
    module.ClearField("input_output_alias")
    module.ClearField("buffer_donor")


@dataclass(frozen=True)
class ModuleProgram(Program):
    """A module in a file, whose inputs are drawn."""

    path: Path
    """File in any form that `hlorank.hlo.reader.read_records` reads, with one module."""
    seed: int
    """Seed of the inputs."""
    scale_batch: int | None
    """New batch; None keeps that of the module."""

    def trace(self, platform: xla.Platform) -> Traced:
        """Read the module.

        Raises:
            SkippedError: the module needs several devices or too much memory, has dynamic dimensions, has a parameter
                of which no array can be made, or cannot have another batch.
            DataError: the file cannot be read, or does not have one module.
        """
        module = self._read()
        check_measurable(module)
        if self.scale_batch is not None:
            scale_batch(module, self.scale_batch)
        try:
            check_memory(module, memory_limit())
        except SkippedError as error:
            hint = "; --scale-batch gives it a smaller batch" if self.scale_batch is None else ""
            raise SkippedError(f"{error}{hint}") from None

        def inputs() -> list[Any]:
            return [array for drawn in draw_inputs(module, self.seed) for array in self.put([drawn], platform)]

        return Traced(module.SerializeToString(deterministic=True), inputs)

    def _read(self) -> HloModuleProto:
        records = [*islice(read_records(self.path), 2)]
        if len(records) > 1:
            raise DataError("modules", "one module, to be measured", "several", file=self.path)
        (record,) = records
        try:
            flatten(record.module)
        except DataError as error:
            raise DataError(record.place + error.key, error.expected, error.found, file=self.path) from None
        prepare(record.module)
        return record.module

    def put(self, arguments: Sequence[Any], platform: xla.Platform) -> list[Any]:
        """Return arrays of the types of the module's parameters, 64 bits included."""
        return xla.put(arguments, platform, wide=True)

    def result(self) -> Callable[[Sequence[Any]], Any]:
        """Return `tuple`: the outputs are flat."""
        return tuple


def module_program(path: Path, seed: int = 0, scale_batch: int | None = None) -> ModuleProgram:
    """Return the program in a file, which is not read yet.

    Its name is that of the file, with the new batch if there is one; its family is the name up to the first dot.
    """
    name = _UNSAFE.sub("-", graph_name(path)).strip("-.") or "module"
    scaled = name if scale_batch is None else f"{name}.b{scale_batch}"
    return ModuleProgram(scaled, name.split(".")[0], path, seed, scale_batch)
