"""Ranks: processes that train one model together, each on some of the graphs; torchrun, srun or hlorank starts them."""

from __future__ import annotations

import logging
import os
import socket
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
from hlorank.config.compute import available_cores
from hlorank.files import DataError

# Bound of an exchange of a training. A rank that is killed ends it at once, as its connections are closed; this is for
# machines and networks that fall silent.
_LIMIT = timedelta(minutes=10)
# Bound of `Ranks.wait`, for what takes some ranks hours and others no time. A rank that falls silent then holds up the
# others that long.
_PATIENCE = timedelta(days=7)
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SLURM = "SLURM_STEP_NUM_TASKS"  # which srun sets, and sbatch does not

_CPU = torch.device("cpu")

Value = TypeVar("Value")


class RankLostError(ConnectionError):
    """End of a training because one of its ranks has ended."""


def connection_lost(reason: str) -> RankLostError:
    """Return the error of a training that a rank has left, with the remedy."""
    return RankLostError(f"{reason}: the training ends; the same command continues after the last complete epoch")


@dataclass(frozen=True)
class Ranks:
    """The ranks of a training, as one of them sees them; by default this process trains alone.

    Attributes:
        number: number of this rank, from 0.
        count: number of ranks.
        per_machine: number of ranks on each machine.
        device: the device of this rank.
        control: gloo group for values other than gradients; None if this process trains alone.
        patient: gloo group of `wait`; None if this process trains alone.
    """

    number: int = 0
    count: int = 1
    per_machine: int = 1
    device: torch.device = _CPU
    control: Any = None
    patient: Any = None

    @property
    def first(self) -> bool:
        """True for rank 0, which writes all files and the MLflow run."""
        return self.number == 0

    @property
    def alone(self) -> Ranks:
        """The same process and device without the other ranks, for what each rank does by itself."""
        return Ranks(device=self.device)

    def wait(self) -> None:
        """Wait, for a week if need be, until all ranks call it; all other exchanges end after 10 minutes of silence."""
        if self.patient is not None:
            distributed.barrier(group=self.patient)

    def gather(self, value: Value) -> list[Value]:
        """Return the value of every rank on rank 0, and an empty list on the others; all ranks must call it."""
        if self.control is None:
            return [value]
        values: list[Any] = [None] * self.count
        distributed.gather_object(value, values if self.first else None, dst=0, group=self.control)
        return values if self.first else []

    def broadcast(self, value: Value) -> Value:
        """Return the value of rank 0 on every rank; all ranks must call it."""
        if self.control is None:
            return value
        values = [value]
        distributed.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Raise a mistake that the block raises on any rank on all of them, so that it is reported once.

        Raises:
            ConfigError, DataError, OSError: on rank 0, the mistake of the first rank that made one.
            RankLostError: on the other ranks.
        """
        mistake: Exception | None = None
        try:
            yield
        except (ConfigError, DataError, OSError) as error:
            if self.control is None:
                raise
            mistake = error
        if self.control is None:
            return
        where = f"rank {self.number} on {socket.gethostname()}"
        found = [pair for pair in self.gather((where, mistake)) if pair[1] is not None]
        where, first = self.broadcast(found[0] if found else ("", None))
        if first is None:
            return
        if not self.first:
            raise connection_lost("rank 0 reports a mistake")
        if mistake is not None:
            raise mistake
        raise ConfigError(f"{where}: {first}")

    def check_equal(self, values: Mapping[str, Any]) -> None:
        """Check that values are the same on all ranks; all ranks must call it.

        Args:
            values: what must be the same, by name.

        Raises:
            DataError: a value differs; the message names both machines. It is raised on rank 0, and the others end.
        """
        gathered = self.gather((socket.gethostname(), values))
        with self.agreed():
            for number, (host, found) in enumerate(gathered):
                name = next((name for name in values if found[name] != values[name]), None)
                if name is not None:
                    remedy = "install the same versions and use the same files on all machines"
                    raise DataError(
                        name,
                        f"{values[name]} on every rank, as rank 0 on {gathered[0][0]} has",
                        f"{found[name]} at rank {number} on {host}; {remedy}",
                    )


ALONE = Ranks()
"""A process that trains alone, on the CPU."""


def launched() -> bool:
    """Return whether torchrun, srun or another launcher started this process as one of several ranks."""
    return all(name in os.environ for name in _VARIABLES) or int(os.environ.get(_SLURM, "1")) > 1


def is_first() -> bool:
    """Return whether this process is rank 0, or was not started by a launcher."""
    return not launched() or int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))) == 0


@contextmanager
def joined_ranks(settings: TrainerConfig) -> Iterator[Ranks]:
    """Connect this process with the other ranks that a launcher started; without a launcher it trains alone.

    Args:
        settings: the device, and the number of devices.

    Raises:
        ConfigError: the launcher has not started what `trainer.devices` says, or more ranks than there are devices.
        RankLostError: another rank has ended, or cannot be reached.
    """
    if not launched():
        yield Ranks(device=find_device(settings.accelerator))
        return
    _take_over_slurm()
    number, count, local, per_machine = (int(os.environ[name]) for name in _VARIABLES[:4])
    if settings.devices not in {1, count}:
        raise ConfigError(
            f"trainer.devices={settings.devices}: {count} ranks were started; leave it out, as the launcher counts"
        )
    device = find_device(settings.accelerator)
    if device.type == "cuda":
        if per_machine > torch.cuda.device_count():
            raise ConfigError(_too_many(f"{per_machine} ranks on {socket.gethostname()}", torch.cuda.device_count()))
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    package = logging.getLogger("hlorank")
    if number > 0:
        package.setLevel(logging.ERROR)  # rank 0 logs the same
    try:
        if device.type == "cuda":
            distributed.init_process_group("nccl", timeout=_LIMIT, device_id=device)
        else:
            distributed.init_process_group("gloo", timeout=_LIMIT)
        control = distributed.new_group(backend="gloo", timeout=_LIMIT)
        patient = distributed.new_group(backend="gloo", timeout=_PATIENCE)
        yield Ranks(number, count, per_machine, device, control, patient)
        distributed.destroy_process_group()
    except Exception as error:  # Lightning's handler of SIGTERM uses the connection, also within MLflow's calls
        if not isinstance(error, distributed.DistError) and "gloo/" not in str(error):
            raise
        raise connection_lost("the connection to another rank is lost") from None
    finally:
        package.setLevel(logging.NOTSET)


def check_devices(settings: TrainerConfig) -> None:
    """Check that this machine has `trainer.devices` devices; a rank on the CPU takes one core at least.

    Raises:
        ConfigError: it has fewer.
    """
    cuda = find_device(settings.accelerator).type == "cuda"
    available = torch.cuda.device_count() if cuda else available_cores()
    if settings.devices > available:
        raise ConfigError(
            _too_many(f"trainer.devices={settings.devices}", available, "CUDA devices" if cuda else "cores")
        )


def _too_many(what: str, available: int, of: str = "CUDA devices") -> str:
    return f"{what}: this machine has {available} {of}; use at most that many, or more machines with torchrun or srun"


def _take_over_slurm() -> None:
    """Set torchrun's variables from those of srun, where torchrun has set none."""
    if all(name in os.environ for name in _VARIABLES):
        return
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

    values = os.environ
    machines = int(values.get("SLURM_STEP_NUM_NODES", "1"))
    count = int(values[_SLURM])
    if count % machines:
        raise ConfigError(f"srun: {count} tasks on {machines} machines; start as many on each with --ntasks-per-node")
    first = SLURMEnvironment.resolve_root_node_address(values.get("SLURM_STEP_NODELIST", "127.0.0.1"))
    port = 15_000 + int(values.get("SLURM_JOB_ID", "0")) % 10_000  # of several jobs on a machine, each has its own
    names = {
        "RANK": values["SLURM_PROCID"],
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": values["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(count // machines),
        "GROUP_RANK": values.get("SLURM_NODEID", "0"),
        "MASTER_ADDR": first,
        "MASTER_PORT": str(port),
    }
    for name, value in names.items():
        values.setdefault(name, value)


def deal(work: NDArray[np.float64], ranks: int) -> NDArray[np.int64]:
    """Deal items to ranks so that all have about the same work: the largest first, each to the rank with the least.

    Args:
        work: (items,) the work of each.
        ranks: number of ranks.

    Returns:
        (items,) the rank of each item. Ties go to the rank with the fewest items, then to the first.
    """
    owners = np.zeros(len(work), dtype=np.int64)
    loads = [(0.0, 0, rank) for rank in range(ranks)]
    for item in np.argsort(-work, kind="stable"):
        load, items, owners[item] = min(loads)
        loads[owners[item]] = (load + float(work[item]), items + 1, int(owners[item]))
    return owners
