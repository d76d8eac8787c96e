"""The configuration that tuning found, on disk and as a function to call."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, cast

import numpy as np

from hlorank.files import DataError, read_json
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_space import from_plain, name_of
from hlorank_collect import xla
from hlorank_collect.layouts.capture import captured, configurable
from hlorank_collect.layouts.compiled_layouts import Candidates, SkippedError
from hlorank_collect.task import load_program

_KEYS = {
    "program": (str,),
    "arguments": (str, type(None)),
    "platform": (str,),
    "module": (str,),
    "configuration": (dict,),
}


def digest(module: HloModuleProto) -> str:
    """Equal for equal modules only."""
    return hashlib.sha256(module.SerializeToString(deterministic=True)).hexdigest()


def read_saved(path: Path) -> dict[str, Any]:
    """The JSON that tuning wrote.

    Raises:
        DataError: a key that running needs is missing or of another type.
    """
    saved = read_json(path)
    for key, kinds in _KEYS.items():
        if key not in saved or not isinstance(saved[key], kinds):
            raise DataError(key, "what hlorank autotune writes", saved.get(key, "nothing"), file=path)
    if saved["platform"] not in ("cpu", "gpu"):
        raise DataError("platform", "cpu or gpu", saved["platform"], file=path)
    return saved


class Tuned:
    """A tuned program: call it like the function that was tuned.

    It is compiled anew, with the saved configuration, and its outputs on the example arguments are compared with
    those of the compiler's default.

    Args:
        path: the JSON file that tuning wrote.

    Attributes:
        space: what can be configured.
        configuration: (configurable nodes, 18) int8; all -1 where the default won.
        candidates: the default configuration and this one, compiled.

    Raises:
        ConfigError: the program is not there.
        SkippedError: it does not compile any more, or the configuration does not compute what the default does.
        DataError: the file is damaged, or the compiler sees another program than the one that was tuned.
    """

    def __init__(self, path: Path) -> None:
        import jax

        saved = read_saved(path)
        self._platform = cast("xla.Platform", saved["platform"])
        program = load_program(saved["program"], saved["arguments"])
        module, inputs = captured(program, self._platform)
        if digest(module) != saved["module"]:
            found = "another one: the program, its arguments or jax have changed; tune it again"
            raise DataError("module", f"the module of {saved['program']} that was tuned", found, file=path)
        self.space = configurable(module)
        try:
            self.configuration = from_plain(self.space, saved["configuration"])
        except DataError as error:
            raise error.in_file(path) from None
        self.candidates = Candidates(module, self.space, inputs, self._platform)
        executable = self.candidates.executable(self.configuration)
        if executable is None:
            why = self.candidates.left_out[name_of(self.configuration)]
            raise SkippedError(f"the configuration of {path} does not work any more: {why}")
        self._executable = executable
        self._expected = [(array.shape, array.dtype) for array in inputs]
        function, arguments = program.build()
        self._outputs = jax.tree.structure(jax.eval_shape(function, *arguments))

    def __call__(self, *arguments: Any) -> Any:
        """Runs the program.

        Args:
            arguments: pytrees with leaves of the shapes and types that the program was tuned for.

        Returns:
            What the function returns, arrays on the device.

        Raises:
            ValueError: arguments of other shapes or types, or a call that jax traces.
        """
        import jax

        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)):
            raise ValueError("arguments: a tuned program is compiled already; call it outside jit, grad and vmap")
        inputs = xla.put(arguments, self._platform)
        found = [(array.shape, array.dtype) for array in inputs]
        if found != self._expected:
            raise ValueError(f"arguments: expected {_shown(self._expected)}, as tuned, found {_shown(found)}")
        return jax.tree.unflatten(self._outputs, self._executable.run(inputs))


def _shown(leaves: list[tuple[tuple[int, ...], np.dtype[Any]]]) -> str:
    return " ".join(f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in leaves)
