"""What a child process that measures tiles is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hlorank import files as io
from hlorank.data.collection import Collection
from hlorank_collect.task import Task


@dataclass(frozen=True)
class TileTask(Task):
    """One program whose kernels are measured, each with `configurations` tiles; its collection is tile:<platform>."""

    kernels: int = 3
    """Of the program, at most."""

    @property
    def folder(self) -> Path:
        """Where the kernels' files go."""
        return Path(self.output) / Collection.parse(self.collection).path

    def summary(self, name: str) -> Path:
        """The JSON file that says what became of the kernels of the program of this name."""
        return self.folder / "programs" / f"{name}.json"

    @property
    def settings(self) -> str:
        """A fingerprint of what decides how a kernel is measured, whatever program it comes from."""
        return io.fingerprint([self.collection, self.configurations, self.seed, self.rounds])

    @property
    def fingerprint(self) -> str:
        """Of all that decides what is measured; not of when, where, or for how long at most."""
        return io.fingerprint([super().fingerprint, self.kernels])
