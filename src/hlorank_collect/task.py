"""What a child process is told, and what it tells: one program to measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import cast

from hlorank import files as io
from hlorank.data.collection import Collection
from hlorank_collect.program import Program, user_program
from hlorank_collect.xla import Platform
from hlorank_collect.zoo import program_named


def load_program(program: str, arguments: str | None) -> Program:
    """A program of the zoo or, with arguments, of the user's; raises ConfigError where there is none."""
    return program_named(program) if arguments is None else user_program(program, arguments)


@dataclass(frozen=True)
class Task:
    """One program to measure, and how."""

    program: str
    """A name in the zoo or, with `arguments`, `module:function`."""
    arguments: str | None
    """As for `user_program`; None for a program of the zoo."""
    collection: str
    """Where it goes: layout:<platform>:<search>."""
    output: str
    """The folder of the tree."""
    configurations: int
    seed: int
    rounds: int
    """At most."""
    fast_compile: bool
    time_limit: float
    """Seconds for the whole program."""
    core: int | None
    """The core to measure on; None for any."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Configurations, by name, that killed or hung a process before, with the reason."""

    def load(self) -> Program:
        """The program; raises ConfigError where there is none."""
        return load_program(self.program, self.arguments)

    @property
    def platform(self) -> Platform:
        """The backend."""
        return cast("Platform", Collection.parse(self.collection).source)

    def npz(self, name: str) -> Path:
        """The file of the program of this name."""
        return Path(self.output) / Collection.parse(self.collection).path / f"{name}.npz"

    @property
    def fingerprint(self) -> str:
        """Of all that decides what is measured; not of when, where, or for how long at most."""
        names = ("program", "arguments", "collection", "configurations", "seed", "rounds", "fast_compile")
        settings = {name: getattr(self, name) for name in names}
        return io.fingerprint({**settings, "jaxlib": version("jaxlib")})


@dataclass(frozen=True)
class Progress:
    """What a child process is about to do, so that its parent knows that it is alive."""

    stage: str
    configuration: str | None = None
    """The name of the one that is compiled and run for the first time."""
    share: float = 0.0
    """Of the whole program's work that is done, 0..1."""


Report = Callable[[Progress], None]
