"""Task of measuring the tiles of the kernels of one program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hlorank.files import DataError, counted, fingerprint, read_json
from hlorank_collect.task import Task


@dataclass(frozen=True)
class TileTask(Task):
    """One program whose kernels are measured, each with `configurations` tiles; its collection is tile:<platform>.

    Each kernel is written as soon as it is measured. A kernel with the structure of an earlier one, measured with the
    same settings, is not measured again.
    """

    child = "hlorank_collect.tiles.measure_kernels"

    kernels: int = 3
    """Maximum number of kernels of the program."""

    def is_complete(self, name: str) -> bool:
        """Return True if the kernels of the program of this name have been measured with the same settings."""
        try:
            about = read_json(self.summary(name))
        except DataError:
            return False
        return about.get("fingerprint") == self.fingerprint and all(
            self.npz(kernel).exists() for kernel in about["kernels"]
        )

    def summarize(self, about: Mapping[str, Any]) -> str:
        """Return one line about a measured program."""
        kernels = about["kernels"].values()
        kinds, left_out = Counter(kernel["kind"] for kernel in kernels), Counter(about["left_out"])
        taus = [kernel["split_half_tau"] for kernel in kernels if kernel["split_half_tau"] is not None]
        parts = [
            counted(sum(about["harvested"].values()), "kernel"),
            "measured " + (", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"),
        ]
        if taus:
            parts.append(f"split-half tau {min(taus):.2f} to {max(taus):.2f}")
        if left_out:
            parts.append("left out " + ", ".join(f"{count} ({why})" for why, count in left_out.most_common()))
        return "; ".join(parts)

    def summary(self, name: str) -> Path:
        """Return the JSON file with the results of all kernels of the program of this name."""
        return self.folder / "programs" / f"{name}.json"

    @property
    def settings(self) -> str:
        """Fingerprint of the settings on which the measurement of a kernel depends, for any program."""
        return fingerprint([self.collection, self.configurations, self.seed, self.rounds])

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the settings that decide the result; date, place and time limit are not among them."""
        return fingerprint([super().fingerprint, self.kernels])
