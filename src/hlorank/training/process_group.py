"""Ranks of a training: processes that torchrun starts, which train one model together, each on a part of the graphs."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from hlorank.compute import find_device
from hlorank.config import ConfigError, TrainerConfig
from hlorank.files import DataError

# Bound of an exchange of a training. A rank that is killed ends it at once, as its connections are closed; this is for
# machines and networks that fall silent.
_LIMIT = timedelta(minutes=10)
# Bound of `ProcessGroup.wait`, for work that takes a rank hours and the others no time. A rank that falls silent
# meanwhile holds up the others that long.
_PATIENCE = timedelta(days=7)
_PROBE_SECONDS = 2.0  # in which the end of another rank is seen
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # which torchrun sets

Value = TypeVar("Value")


class RankLostError(ConnectionError):
    """End of a training because one of its ranks has ended."""


def connection_lost(reason: str = "the connection to another rank is lost") -> RankLostError:
    """Return the error of a training that a rank has left, with the remedy."""
    return RankLostError(f"{reason}: the training ends; the same command continues after the last complete epoch")


@contextmanager
def _exchange() -> Iterator[None]:
    """Name what gloo raises where a rank has ended or is silent: a RuntimeError, as gloo has no class for it."""
    try:
        yield
    except RuntimeError:
        raise connection_lost() from None


@dataclass(frozen=True)
class ProcessGroup:
    """The ranks of a training, as this process sees them; by default it trains alone."""

    number: int = 0  # of this rank
    count: int = 1
    per_machine: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable
    control: Any = None  # gloo group for values other than gradients; None if this process trains alone
    patient: Any = None  # gloo group of `wait`; None if this process trains alone

    @property
    def first(self) -> bool:
        """True for rank 0, which writes all files and the MLflow run."""
        return self.number == 0

    @property
    def alone(self) -> ProcessGroup:
        """The same process and device without the other ranks, for what a rank does by itself."""
        return ProcessGroup(device=self.device)

    def wait(self) -> None:
        """Wait, for a week if need be, until all ranks call it; all other exchanges end after 10 minutes of silence."""
        if self.patient is not None:
            with _exchange():
                distributed.barrier(group=self.patient)

    def gather(self, value: Value) -> list[Value]:
        """Return the value of every rank on rank 0, and an empty list on the others; all ranks must call it."""
        if self.control is None:
            return [value]
        values: list[Any] = [None] * self.count
        with _exchange():
            distributed.gather_object(value, values if self.first else None, dst=0, group=self.control)
        return values if self.first else []

    def broadcast(self, value: Value) -> Value:
        """Return the value of rank 0 on every rank; all ranks must call it."""
        if self.control is None:
            return value
        values = [value]
        with _exchange():
            distributed.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Raise a mistake of the block on any rank on all of them: on rank 0 itself, RankLostError on the others."""
        mistake: Exception | None = None
        try:
            yield
        except (ConfigError, DataError, OSError) as error:
            if self.control is None:
                raise
            mistake = error
        found = [pair for pair in self.gather((self._name, mistake)) if pair[1] is not None]
        where, first = self.broadcast(found[0] if found else ("", None))
        if first is None:
            return
        if not self.first:
            raise connection_lost("rank 0 reports a mistake")
        raise mistake or ConfigError(f"{where}: {first}")

    def check_equal(self, values: Mapping[str, Any]) -> None:
        """Check that values, by name, are the same on all ranks; a DataError on rank 0 names what differs and where."""
        gathered = self.gather((self._name, values))
        with self.agreed():
            for name, found in gathered:
                differing = next((key for key in values if found[key] != values[key]), None)
                if differing is not None:
                    remedy = "install the same versions and use the same files on all machines"
                    expected = f"{values[differing]} on every rank, as {self._name} has"
                    raise DataError(differing, expected, f"{found[differing]} at {name}; {remedy}")

    @property
    def _name(self) -> str:
        return f"rank {self.number} on {socket.gethostname()}"

    def _is_broken(self) -> bool:
        """Return whether another rank has ended: its connections are closed, and an exchange fails at once."""
        end = time.monotonic() + _PROBE_SECONDS
        try:
            work = distributed.barrier(group=self.control, async_op=True)
            while not work.is_completed():
                if time.monotonic() > end:
                    return False
                time.sleep(0.05)
            work.wait()
        except RuntimeError:
            return True
        return False


ALONE = ProcessGroup()
"""A process that trains alone, on the CPU."""


@contextmanager
def process_group(settings: TrainerConfig) -> Iterator[ProcessGroup]:
    """Connect this process with the other ranks that torchrun started; otherwise it trains alone.

    Raises:
        ConfigError: `trainer.devices` is not the number of ranks, or a machine has too few devices.
        RankLostError: another rank has ended, or cannot be reached.
    """
    launched = all(name in os.environ for name in _VARIABLES)
    number, count, local, per_machine = (int(os.environ[name]) for name in _VARIABLES) if launched else (0, 1, 0, 1)
    if settings.devices not in {1, count}:
        remedy = f"start the stage with torchrun --nproc-per-node {settings.devices} -m hlorank.stages.train"
        raise ConfigError(f"trainer.devices={settings.devices}: found {count} ranks; leave it out, or {remedy}")
    device = find_device(settings.accelerator)
    if not launched:
        yield ProcessGroup(device=device)
        return
    if device.type == "cuda":
        if per_machine > torch.cuda.device_count():
            devices = f"this machine has {torch.cuda.device_count()} CUDA devices"
            raise ConfigError(f"{per_machine} ranks on {socket.gethostname()}: {devices}; start at most that many")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    package = logging.getLogger("hlorank")
    if number > 0:
        package.setLevel(logging.ERROR)  # rank 0 logs the same
    ranks = ALONE
    try:
        if device.type == "cuda":
            distributed.init_process_group("nccl", timeout=_LIMIT, device_id=device)
        else:
            distributed.init_process_group("gloo", timeout=_LIMIT)
        control = distributed.new_group(backend="gloo", timeout=_LIMIT)
        patient = distributed.new_group(backend="gloo", timeout=_PATIENCE)
        ranks = ProcessGroup(number, count, per_machine, device, control, patient)
        yield ranks
        distributed.destroy_process_group()
    except RuntimeError as error:  # of gradients, or of Lightning's handler of SIGTERM, within any call
        if isinstance(error, distributed.DistError) or (ranks.control is not None and ranks._is_broken()):
            raise connection_lost() from None
        raise
    finally:
        package.setLevel(logging.NOTSET)


def deal(work: NDArray[np.float64], ranks: int) -> NDArray[np.int64]:
    """Return the rank of each item, (items,): the largest first, each to the rank with the least work so far."""
    owners = np.zeros(len(work), dtype=np.int64)
    loads = [(0.0, 0, rank) for rank in range(ranks)]
    for item in np.argsort(-work, kind="stable"):
        load, items, owners[item] = min(loads)
        loads[owners[item]] = (load + float(work[item]), items + 1, int(owners[item]))
    return owners
