"""Section `compute`."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field

from hlorank.config.section import Section


class ComputeConfig(Section):
    """Place where the work on each graph runs; results do not depend on it."""

    form: Literal["serial", "processes"]
    """serial (this process) or processes (of this machine)."""
    workers: Literal["auto"] | Annotated[int, Field(ge=1)]
    """Graphs in progress at the same time; auto is one for each core. Each takes its own memory: use fewer if it
    runs out. serial ignores it."""
    retries: int = Field(ge=0)
    """Times that the work on a graph is repeated after its process died."""

    @property
    def process_count(self) -> int:
        """The number of worker processes on this machine."""
        if self.workers != "auto":
            return self.workers
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
