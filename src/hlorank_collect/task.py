"""Tasks of child processes: one program to measure, with the settings of the measurement."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from hlorank.data.collection import Collection, sidecar_path
from hlorank.files import DataError, fingerprint, read_json, sha256_file
from hlorank_collect.modules.module_program import module_program
from hlorank_collect.program import Program, user_program
from hlorank_collect.xla import TPUS, Platform


def load_program(program: str, arguments: str | None, seed: int = 0) -> Program:
    """Return a program in a file, or `module:name` as for `user_program`, which takes no seed."""
    if Path(program).is_file():
        return module_program(Path(program), seed)
    return user_program(program, arguments)


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
    """One program to measure, with the settings of the measurement; sent to a child process."""

    work: ClassVar[str]
    """Function that measures the program in a child process, as `module:function`; it gets the task and a `Report`."""
    code_seconds: ClassVar[float] = 1.0
    """CPU time of code generation for a TPU, above which the program is estimated by its bytes."""

    program: str
    """Path of a file, or `module:name`."""
    arguments: str | None
    """As for `user_program`; None for a file."""
    collection: str
    """Address of the collection; its source is the backend."""
    output: str
    """Folder of the written files."""
    configurations: int
    seed: int
    rounds: int
    time_limit: float
    """Seconds for the whole program."""
    core: int | None
    """CPU core to measure on; None for any."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Names of configurations that crashed or hung an earlier process -> reason."""
    attached: bool = False
    """True if runtimes for a TPU are measured on that of this machine."""

    def is_complete(self, name: str) -> bool:  # noqa: ARG002 (subclasses use it)
        """Return True if the program of this name needs no further run; by default every program is run."""
        return False

    @abstractmethod
    def summarize(self, about: Mapping[str, Any]) -> str:
        """Return one line about the result of the child process."""

    def load(self) -> Program:
        """Return the program; raise ConfigError if it is neither a file nor importable."""
        return load_program(self.program, self.arguments, self.seed)

    @property
    def attempts(self) -> int:
        """Number of child processes: a program that hangs or crashes in more configurations is not worth the time."""
        return self.configurations if self.platform in TPUS else 4  # what was estimated is not lost by a crash

    @property
    def platform(self) -> Platform:
        """The backend; a generation of TPUs stands for estimates."""
        return "tpu" if self.attached else self.source

    @property
    def source(self) -> Platform:
        """The backend in the collection's address."""
        return cast("Platform", Collection.parse(self.collection).source)

    @property
    def folder(self) -> Path:
        """The folder of the collection's files."""
        return Path(self.output) / Collection.parse(self.collection).path

    def rng(self, name: str) -> np.random.Generator:
        """Return the random numbers of the program of this name."""
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def npz(self, name: str) -> Path:
        """Return the npz file of the program or kernel of this name."""
        return self.folder / f"{name}.npz"

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the settings that decide the result; date, place and time limit are not among them."""
        names = ("program", "arguments", "collection", "configurations", "seed", "rounds")
        settings = {**{name: getattr(self, name) for name in names}, "fast_compile": False}  # an option of 0.2
        if (file := Path(self.program)).is_file():
            settings["program"] = sha256_file(file)
        if self.attached:
            settings["attached"] = True
        compiler = "libtpu" if self.source in TPUS else "jaxlib"
        return fingerprint({**settings, compiler: version(compiler)})


@dataclass(frozen=True)
class LayoutTask(Task):
    """One program whose layouts are measured; its collection is layout:<platform>:<search>."""

    work = "hlorank_collect.measure_layouts:measure_layouts"

    def memory(self, name: str) -> Path:
        """Return the file of the estimates of a program that is not complete."""
        return self.folder / f"{name}.{self.fingerprint}.partial"

    def is_complete(self, name: str) -> bool:
        """Return True if the program of this name has been measured with the same settings."""
        npz = self.npz(name)
        with suppress(DataError):
            return npz.exists() and bool(read_json(sidecar_path(npz)).get("fingerprint") == self.fingerprint)
        return False

    def summarize(self, about: Mapping[str, Any]) -> str:
        """Return one line about a measured program."""
        runtime = about["runtime_ns"]
        ratio, gain = runtime["worst"] / runtime["best"], runtime["default"] / runtime["best"]
        noise = "estimated"
        if self.platform not in TPUS:
            taus = [about[key] for key in ("split_half_tau", "noise_ceiling")]
            halves, ceiling = ("unknown" if tau is None else f"{tau:.2f}" for tau in taus)
            noise = f"{about['rounds']} rounds, split-half tau {halves} (ceiling {ceiling})"
        return (
            f"{about['measured']} configurations, {noise}, max / min {ratio:.2f}, default / best {gain:.2f}, "
            f"{len(about['left_out'])} left out, {sum(about['seconds'].values()):.0f} s"
        )
