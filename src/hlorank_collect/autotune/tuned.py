"""A tuned configuration, on disk and as a function to call."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, cast

import numpy as np

from hlorank.files import DataError, read_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import configuration_name, from_json
from hlorank_collect import xla
from hlorank_collect.layouts.compiled_layouts import CompiledLayouts, captured, configurable
from hlorank_collect.program import SkippedError
from hlorank_collect.task import load_program

_KEYS = {
    "program": (str,),
    "arguments": (str, type(None)),
    "platform": (str,),
    "seed": (int,),
    "module": (str,),
    "configuration": (dict,),
}


def digest(module: HloModuleProto) -> str:
    """Return a hash that is equal for equal modules only."""
    return hashlib.sha256(module.SerializeToString(deterministic=True)).hexdigest()


def read_saved(path: Path) -> dict[str, Any]:
    """Read the JSON file that tuning wrote.

    Raises:
        DataError: the file cannot be read, or a key is missing or has another type.
    """
    saved = read_json(path)
    for key, kinds in _KEYS.items():
        if key not in saved or not isinstance(saved[key], kinds):
            raise DataError(key, "a value that hlorank autotune writes", saved.get(key, "nothing"), file=path)
    if saved["platform"] not in ("cpu", "gpu"):
        raise DataError("platform", "cpu or gpu", saved["platform"], file=path)
    return saved


class Tuned:
    """A tuned program, called like the function that was tuned.

    It is compiled again, with the saved configuration, and its outputs on the example arguments are compared with
    those of the compiler's default.

    Args:
        path: the JSON file that tuning wrote.

    Attributes:
        space: the configurable layouts.
        configuration: (configurable nodes, 18) int8; all -1 where the default won.
        compiled: executables of the default and of the tuned configuration.

    Raises:
        ConfigError: the saved program is neither a file nor importable.
        SkippedError: the program does not compile, or the outputs of the configuration differ from the default's.
        DataError: the file is damaged, or the module of the program is not the one that was tuned.
    """

    def __init__(self, path: Path) -> None:
        saved = read_saved(path)
        self._platform = cast("xla.Platform", saved["platform"])
        self._program = program = load_program(
            saved["program"], saved["arguments"], saved["seed"], saved.get("scale_batch")
        )
        module, inputs = captured(program, self._platform, wanted=lambda found: digest(found) == saved["module"])
        if digest(module) != saved["module"]:
            found = "another module: the program, its arguments or jax have changed; tune it again"
            raise DataError("module", f"the module of {saved['program']} that was tuned", found, file=path)
        self.space = configurable(module)
        try:
            self.configuration = from_json(self.space, saved["configuration"])
        except DataError as error:
            raise error.in_file(path) from None
        self.compiled = CompiledLayouts(module, self.space, inputs, self._platform)
        executable = self.compiled.executable(self.configuration)
        if executable is None:
            why = self.compiled.left_out[configuration_name(self.configuration)]
            raise SkippedError(f"the configuration of {path} no longer works: {why}")
        self._executable = executable
        self._expected = [(array.shape, array.dtype) for array in inputs]
        self._result = program.result()

    def __call__(self, *arguments: Any) -> Any:
        """Run the program.

        Args:
            arguments: pytrees with leaves of the shapes and types that the program was tuned for.

        Returns:
            The result of the function, or a tuple of the outputs of a module: arrays on the device.

        Raises:
            ValueError: `arguments` have other shapes or types, or jax traces the call.
        """
        import jax

        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)):
            raise ValueError("arguments: a tuned program is compiled already; call it outside jit, grad and vmap")
        inputs = self._program.put(arguments, self._platform)
        found = [(array.shape, array.dtype) for array in inputs]
        if found != self._expected:
            raise ValueError(f"arguments: expected {_shown(self._expected)}, as tuned, found {_shown(found)}")
        return self._result(self._executable.run(inputs))


def _shown(leaves: list[tuple[tuple[int, ...], np.dtype[Any]]]) -> str:
    return " ".join(f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in leaves)
