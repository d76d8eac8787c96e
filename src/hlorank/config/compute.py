"""Section `compute`."""

from __future__ import annotations

import os
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hlorank.config.section import Section


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ComputeConfig(Section):
    """Place where the work on each graph runs; results do not depend on it."""

    form: Literal["serial", "processes", "ray"]
    """serial (this process), processes (of this machine) or ray (a Ray cluster, which needs the extra `ray`)."""
    workers: Literal["auto"] | Annotated[int, Field(ge=1)]
    """Graphs in progress at the same time; auto is one for each core of this machine, or as many as the cluster has
    room for. Each takes its own memory: use fewer if it runs out. serial ignores it."""
    retries: int = Field(ge=0)
    """Times that the work on a graph is repeated after its process died or its node was lost; on this machine at least
    once, as that tells which graph the process died of."""
    address: str | None
    """Ray cluster: auto (the one that runs on this machine), `host:port`, or `ray://host:port` of its client server;
    only for ray."""
    cpus: float = Field(gt=0)
    """CPUs that a graph's task takes of its node, and its threads of BLAS; only for ray."""
    gpus: float = Field(ge=0)
    """GPUs that a graph's task takes of its node: above 0, evaluate scores on them; only for ray."""
    memory_bytes: int | None = Field(ge=1)
    """Memory that a graph's task takes of its node, so that fewer run there at the same time; null counts CPUs only;
    only for ray."""

    @model_validator(mode="after")
    def _check_address(self) -> Self:
        return self.require(
            self.form != "ray" or self.address is not None, "address", "auto, host:port or ray://host:port"
        )

    @classmethod
    def of_cluster(cls, address: str, gpus: float = 0) -> Self:
        """Return the section of a command that is given the address of a Ray cluster; it has no configuration file."""
        resources = {"cpus": 1, "gpus": float(gpus), "memory_bytes": None}
        return cls.model_validate({"form": "ray", "workers": "auto", "retries": 2, "address": address, **resources})

    @property
    def process_count(self) -> int:
        """The number of worker processes on this machine."""
        if self.workers != "auto":
            return self.workers
        return available_cores()
