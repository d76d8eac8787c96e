"""Task of measuring the layouts of one program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hlorank_collect import record
from hlorank_collect.task import Task


@dataclass(frozen=True)
class LayoutTask(Task):
    """One program whose layouts are measured; its collection is layout:<platform>:<search>."""

    child = "hlorank_collect.layouts.measure_layouts"

    def is_complete(self, name: str) -> bool:
        """Return True if the layouts of the program of this name have been measured with the same settings."""
        return record.is_complete(self.npz(name), self.fingerprint)

    def summarize(self, about: Mapping[str, Any]) -> str:
        """Return one line about a measured program."""
        runtime = about["runtime_ns"]
        spread, gain = runtime["worst"] / runtime["best"], runtime["default"] / runtime["best"]
        return (
            f"{about['measured']} configurations, {about['rounds']} rounds, "
            f"split-half tau {_rounded(about['split_half_tau'])} (ceiling {_rounded(about['noise_ceiling'])}), "
            f"max / min {spread:.2f}, default / best {gain:.2f}, "
            f"{len(about['left_out'])} left out, {sum(about['seconds'].values()):.0f} s"
        )


def _rounded(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
