"""Tasks of child processes: one program to measure, with the settings of the measurement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, cast

from hlorank.data.collection import Collection
from hlorank.files import DataError, counted, fingerprint, read_json, sha256_file
from hlorank_collect.jax_program import user_program
from hlorank_collect.modules.module_program import module_program
from hlorank_collect.program import Program
from hlorank_collect.xla import Platform
from hlorank_collect.zoo import program_named, programs


def is_file(program: str) -> bool:
    """Return True if the program is in a file: the zoo has none of its name."""
    return program not in programs() and Path(program).is_file()


def load_program(program: str, arguments: str | None, seed: int = 0, scale_batch: int | None = None) -> Program:
    """Return a program of the zoo, one in a file or, with arguments, a function.

    Args:
        program: name in the zoo, path or `module:function`.
        arguments: as for `user_program`; None for the others.
        seed: seed of the inputs of a program in a file.
        scale_batch: new batch of a program in a file; None keeps its own.

    Raises:
        ConfigError: `program` is neither in the zoo, nor a file, nor importable.
    """
    if arguments is not None:
        return user_program(program, arguments)
    return module_program(Path(program), seed, scale_batch) if is_file(program) else program_named(program)


@dataclass(frozen=True)
class Progress:
    """Start of a step of a child process; the parent kills a child that reports none for too long."""

    stage: str
    configuration: str | None = None
    """Name of the configuration that is compiled and run for the first time."""
    share: float = 0.0
    """Part of the program's work that is finished, 0..1."""


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Task(ABC):
    """One program to measure, with the settings of the measurement; passed to a child process as JSON."""

    child: ClassVar[str]
    """Module that the child process runs."""

    program: str
    """Name in the zoo, path of a file or, with `arguments`, `module:function`."""
    arguments: str | None
    """As for `user_program`; None for the others."""
    collection: str
    """Address of the collection; its source is the backend."""
    output: str
    """Folder of the written files."""
    configurations: int
    """Number of configurations to measure."""
    seed: int
    rounds: int
    """Maximum number of rounds."""
    fast_compile: bool
    """Compile without fusion emitters where that gives the right outputs."""
    time_limit: float
    """Seconds for the whole program."""
    core: int | None
    """CPU core to measure on; None for any."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Names of configurations that crashed or hung an earlier process -> reason."""
    scale_batch: int | None = None
    """New batch of a program in a file; None keeps its own."""

    def is_complete(self, name: str) -> bool:  # noqa: ARG002 (subclasses use it)
        """Return True if the program of this name needs no further run; by default every program is run."""
        return False

    @abstractmethod
    def summarize(self, about: Mapping[str, Any]) -> str:
        """Return one line about a measured program.

        Args:
            about: the result of the child process.
        """

    def load(self) -> Program:
        """Return the program.

        Raises:
            ConfigError: the program is neither in the zoo, nor a file, nor importable.
        """
        return load_program(self.program, self.arguments, self.seed, self.scale_batch)

    @property
    def platform(self) -> Platform:
        """The backend."""
        return cast("Platform", Collection.parse(self.collection).source)

    @property
    def folder(self) -> Path:
        """The folder of the collection's files."""
        return Path(self.output) / Collection.parse(self.collection).path

    def npz(self, name: str) -> Path:
        """Return the npz file of the program or kernel of this name."""
        return self.folder / f"{name}.npz"

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the settings that decide the result; date, place and time limit are not among them."""
        names = ("program", "arguments", "collection", "configurations", "seed", "rounds", "fast_compile")
        settings = {name: getattr(self, name) for name in names}
        if self.arguments is None and is_file(self.program):
            settings["program"] = sha256_file(Path(self.program))
        if self.scale_batch is not None:
            settings["scale_batch"] = self.scale_batch
        return fingerprint({**settings, "jaxlib": version("jaxlib")})


@dataclass(frozen=True)
class TileTask(Task):
    """One program whose matrix products are measured; its collection is tile:<platform>.

    Each product is written as soon as it is measured. A product that equals an earlier one, measured with the same
    settings, is not measured again.
    """

    child = "hlorank_collect.tiles.measure_gemms"

    kernels: int = 3
    """Maximum number of products of the program."""

    def is_complete(self, name: str) -> bool:
        """Return True if the products of the program of this name have been measured with the same settings."""
        try:
            about = read_json(self.summary(name))
        except DataError:
            return False
        return about.get("fingerprint") == self.fingerprint and all(
            self.npz(kernel).exists() for kernel in about["kernels"]
        )

    def summarize(self, about: Mapping[str, Any]) -> str:
        """Return one line about a measured program."""
        kernels, left_out = about["kernels"].values(), Counter(about["left_out"])
        taus = [kernel["split_half_tau"] for kernel in kernels if kernel["split_half_tau"] is not None]
        parts = [counted(sum(about["harvested"].values()), "kernel"), f"measured {len(kernels)}"]
        if taus:
            parts.append(f"split-half tau {min(taus):.2f} to {max(taus):.2f}")
        if left_out:
            parts.append("left out " + ", ".join(f"{count} ({why})" for why, count in left_out.most_common()))
        return "; ".join(parts)

    def summary(self, name: str) -> Path:
        """Return the JSON file with the results of all products of the program of this name."""
        return self.folder / "programs" / f"{name}.json"

    @property
    def settings(self) -> str:
        """Fingerprint of the settings on which the measurement of a product depends, for any program."""
        return fingerprint([self.collection, self.configurations, self.seed, self.rounds])

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the settings that decide the result; date, place and time limit are not among them."""
        return fingerprint([super().fingerprint, self.kernels])
