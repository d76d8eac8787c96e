"""Tuned programs: tasks of the child processes, the file of a chosen configuration, and the program as a function."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict

from hlorank.config import Section, read_section
from hlorank.files import SPEC, DataError, fingerprint, read_json, sha256_file
from hlorank.hlo.entry_layouts import entry_layouts
from hlorank.hlo.hlo_pb2 import HloModuleProto
from hlorank.hlo.layout_json import (
    EXPECTED,
    ModuleConfiguration,
    NamedNodes,
    module_fingerprint,
    module_layouts,
    to_configuration,
)
from hlorank.hlo.layout_space import Layouts, configuration_name, layout_space
from hlorank.version import __version__
from hlorank_collect import record, xla
from hlorank_collect.compiled_layouts import Attempts, CompiledLayouts, captured, compile_constrained, configurable
from hlorank_collect.program import SkippedError
from hlorank_collect.task import Task, load_program

_OPTIONS = "hlorank_collect.tpu.proposals.compiler_options"
_AGAIN = "give a file that hlorank autotune wrote; tune the program again if an earlier version wrote the file"


class Saved(Section):
    """The part of a tuned file about the program; the rest is about the search."""

    model_config = ConfigDict(extra="ignore")

    program: str
    arguments: str | None
    platform: xla.Platform
    seed: int
    configuration: ModuleConfiguration


def read_saved(path: Path) -> Saved:
    """Read the JSON file that tuning wrote; raise DataError for a damaged one, or one of an earlier version."""
    return read_section(Saved, path, _AGAIN)


def read_chosen(path: Path) -> ModuleConfiguration:
    """Read a configuration that `hlorank rank --export` or tuning wrote; raise DataError for another file."""
    if "configuration" in read_json(path):
        return read_saved(path).configuration
    return read_section(ModuleConfiguration, path, EXPECTED)


def _times(about: Mapping[str, Any]) -> str:
    estimate, low, high = (about["speedup"][key] for key in ("estimate", "low", "high"))
    sure = f"95 % interval {low:.3f} to {high:.3f}" if about["runtimes"] == "measured" else "the compiler's estimate"
    return f"{estimate:.3f} times as fast as the default ({sure})"


@dataclass(frozen=True)
class TuneTask(Task):
    """One program to tune; `configurations` is the number of candidates, `rounds` that of measuring the finalists."""

    work = "hlorank_collect.autotune.tune_program:tune"
    code_seconds = 60.0

    model: str | None = None
    """Folder of a trained model; None measures random candidates."""
    reference: str | None = None
    """The user's name of the model, which the saved file records: `model` may be a temporary download."""
    budget: int = 10
    """Maximum number of candidates measured."""

    def summarize(self, about: Mapping[str, Any]) -> str:
        """Return one line about the result."""
        effort = (
            f"{len(about['measured'])} of {about['candidates']} candidates {about['runtimes']}, "
            f"{len(about['left_out'])} left out, {about['seconds']['all']:.0f} s"
        )
        done = "tuned already: " if about.get("finished") else ""
        if about["speedup"] is None:
            return f"{done}keeps the default: no candidate works; {effort}"
        kept = "keeps the default: the best candidate is " if about["winner"] == "default" else ""
        return f"{done}{kept}{_times(about)}; {effort}"

    def saved(self, name: str) -> Path:
        """Return the JSON file of the program of this name."""
        return Path(self.output) / f"{name}.json"

    def identity(self, module: HloModuleProto) -> str:
        """Return the fingerprint of the module, the model, and the settings that decide the result."""
        model = None if self.model is None else sha256_file(Path(self.model) / SPEC)  # which has that of the weights
        return fingerprint([self.fingerprint, module_fingerprint(module), model, self.budget])

    def memory(self, name: str, module: HloModuleProto) -> Path:
        """Return the file of the estimates of a search that is not complete."""
        return Path(self.output) / f"{name}.{self.identity(module)}.partial"

    def finished(self, name: str, module: HloModuleProto) -> dict[str, Any] | None:
        """Return the content of the JSON file if the module was tuned with the same settings, else None."""
        with suppress(DataError):
            about = read_json(self.saved(name))
            if about.get("fingerprint") == self.identity(module):
                return {**about, "finished": True}
        return None

    def result(
        self, name: str, module: HloModuleProto, layouts: Layouts, outcome: Mapping[str, Any], score: float | None
    ) -> dict[str, Any]:
        """Return the content of the JSON file, of the layouts that won and of what the search says about them."""
        changed, nodes = bool((layouts != -1).any()), NamedNodes(module, layout_space(module).node_ids)
        ranked: dict[str, Any] = {"collection": self.collection, "rank": 1, "score": score or 0.0}
        about = {"hlorank": __version__, "model": self.reference or "random", "backend": self.source, **ranked}
        return {
            "name": name,
            "fingerprint": self.identity(module),
            "program": self.program,
            "arguments": self.arguments,
            "platform": self.platform,
            "collection": self.collection,
            "model": self.reference,
            "seed": self.seed,
            **outcome,
            "winner": configuration_name(layouts) if changed else "default",
            "configuration": to_configuration(module, layouts, about).model_dump(mode="json"),
            "changes": [asdict(change) for change in nodes.changes(layouts)],
            **record.conditions(self.platform),
        }


@dataclass(frozen=True)
class ApplyTask(TuneTask):
    """One program to measure with one configuration next to the compiler's default."""

    work = "hlorank_collect.autotune.tune_program:apply"

    applied: str = ""
    """JSON file of the configuration, which `hlorank rank --export` or tuning wrote."""

    def saved(self, name: str) -> Path:
        """Return the JSON file of the program of this name, which is not that of a search."""
        return super().saved(f"{name}.applied")

    def summarize(self, about: Mapping[str, Any]) -> str:
        """Return one line about the result."""
        if about["speedup"] is None:
            return f"{self.applied} compiles to the same program as the default: there is nothing to measure"
        kept = "keeps the default: the configuration is " if about["winner"] == "default" else ""
        return f"{kept}{_times(about)}; {about['rounds']} rounds, {about['seconds']['all']:.0f} s"


class Tuned:
    """A tuned program, called like the function that was tuned.

    It is compiled again, with the configuration in the JSON file that tuning wrote, and compared with the default.

    Raises:
        ConfigError: the saved program is neither a file nor importable.
        SkippedError: the program does not compile, or the outputs of the configuration differ from the default's.
        DataError: the file is damaged, or the module of the program is not the one that was tuned.
    """

    def __init__(self, path: Path) -> None:
        saved = read_saved(path)
        if saved.platform in xla.TPUS:
            raise SkippedError(f"{path}: tuned for a {saved.platform}: compile it there, with {_OPTIONS}")
        self._platform = saved.platform
        self._program = load_program(saved.program, saved.arguments, saved.seed)
        module, inputs = captured(self._program, self._platform, saved.configuration.fingerprint)
        try:
            self.configuration = module_layouts(module, saved.configuration)
        except DataError as error:
            expected = f"{error.expected}, the module of {saved.program} that was tuned"
            found = f"{error.found}; if the program, its arguments or jax have changed, tune it again"
            raise DataError(error.key, expected, found, file=path) from None
        space = configurable(module)
        compile_one = partial(compile_constrained, module, space, self._platform)
        compiled = CompiledLayouts(compile_one, space, inputs, Attempts())
        executable = compiled.result(self.configuration)
        if executable is None:
            why = compiled.left_out[configuration_name(self.configuration)]
            raise SkippedError(f"the configuration of {path} no longer works: {why}")
        self._executable = executable
        self._layouts = entry_layouts(module).parameters
        self._expected = [(array.shape, array.dtype) for array in inputs]
        self._result = self._program.result()

    def __call__(self, *arguments: Any) -> Any:
        """Run the program on pytrees with leaves of the shapes and types that it was tuned for.

        Returns:
            The result of the function, or a tuple of the outputs of a module: arrays on the device.

        Raises:
            ValueError: `arguments` have other shapes or types, or jax traces the call.
        """
        import jax

        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)):
            raise ValueError("arguments: a tuned program is compiled already; call it outside jit, grad and vmap")
        inputs = self._program.put(arguments, self._platform, self._layouts)
        found = [(array.shape, array.dtype) for array in inputs]
        if found != self._expected:
            raise ValueError(f"arguments: expected {_shown(self._expected)}, as tuned, found {_shown(found)}")
        return self._result(self._executable.run(inputs))


def _shown(leaves: list[tuple[tuple[int, ...], np.dtype[Any]]]) -> str:
    return " ".join(f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in leaves)
