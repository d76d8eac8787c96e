"""Map of a function over the graphs of a collection; the configuration chooses where the calls run."""

from __future__ import annotations

import errno
import itertools
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import track

from hlorank.compute.messages import WorkerDiedError
from hlorank.compute.processes import ProcessPool
from hlorank.compute.ray_cluster import open_ray_pool
from hlorank.config import ComputeConfig, ConfigError
from hlorank.files import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")
Finish = Callable[[], Result]
"""Function that waits for the result of a call and returns it, or raises the error of the call."""

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_log = logging.getLogger(__name__)


class ComputeError(RuntimeError):
    """Work that ended its worker in each attempt; the message, one line, names the graph, the reason and a remedy."""


class Pool(Protocol):
    """Place where calls run.

    Attributes:
        remedy: what helps if workers die.
    """

    remedy: str

    @property
    def capacity(self) -> int:
        """Number of calls that may be started before the first result is taken."""

    def start(self, function: Callable[[Item], Result], item: Item) -> Finish[Result]:
        """Start a call. The returned function raises WorkerDiedError if the worker of the call died."""


class SerialPool:
    """Calls in this process, each when its result is taken."""

    capacity = 1
    remedy = ""

    def start(self, function: Callable[[Item], Result], item: Item) -> Finish[Result]:
        """Return the call."""
        return partial(function, item)


class GraphMap:
    """Map of functions over graphs or other independent items.

    Args:
        pool: the place where the calls run.
        retries: number of times that a call is repeated after its worker died.
    """

    def __init__(self, pool: Pool, retries: int) -> None:
        self._pool = pool
        self._retries = retries

    def map(self, function: Callable[[Item], Result], items: Sequence[Item], title: str) -> Iterator[Result]:
        """Yield the result of each item, in order; a bounded number of results waits for that of an earlier item.

        An item that fails does not stop the others; its error is raised after them.

        Args:
            function: a function that can be imported by name, or a `functools.partial` of one. What is large, it
                writes to files, each in one step: it may be called again for the same item after its worker died.
            items: arguments of `function`.
            title: label of the progress bar on a terminal.

        Raises:
            ComputeError: one item ended its worker in each attempt.
            ConfigError: at once, if the workers cannot do any of the work.
            OSError: at once, if the disk is full.
            Exception: `function` raised it for one item; if the error is unexpected, a note of it has the item.
            ExceptionGroup: several items failed; all their errors.
        """
        source = iter(items)
        pending: deque[tuple[Item, Finish[Result]]] = deque()
        failures: list[Exception] = []
        console = Console(stderr=True)
        for _ in track(range(len(items)), title, console=console, disable=not sys.stderr.isatty()):
            missing = max(0, self._pool.capacity - len(pending))  # a cluster that lost a node has room for fewer
            pending.extend((item, self._pool.start(function, item)) for item in itertools.islice(source, missing))
            item, finish = pending.popleft()
            try:
                result = self._finish(function, item, finish, title)
            except ConfigError:
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _DISK_FULL:
                    raise
                if not isinstance(error, DataError | ComputeError | OSError):
                    error.add_note(f"{title}: {_name(item)}")
                failures.append(error)
            else:
                yield result
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise ExceptionGroup(title, failures)

    def _finish(self, function: Callable[[Item], Result], item: Item, finish: Finish[Result], title: str) -> Result:
        """Return the result of an item, started again a few times if its worker died."""
        for attempt in itertools.count(1):
            try:
                return finish()
            except (WorkerDiedError, MemoryError) as error:
                reason = "memory ran out" if isinstance(error, MemoryError) else str(error)
                if attempt > self._retries:
                    after = f" (attempt {attempt})" if attempt > 1 else ""
                    line = "; ".join(filter(None, [f"{title}: {_name(item)}: {reason}{after}", self._pool.remedy]))
                    raise ComputeError(line) from None
                _log.warning("%s: %s: %s; started again", title, _name(item), reason)
                finish = self._pool.start(function, item)
        raise AssertionError


SERIAL = GraphMap(SerialPool(), retries=0)
"""Map in this process."""


@contextmanager
def open_graph_map(
    config: ComputeConfig,
    outputs: Iterable[Path] = (),
    inputs: Iterable[Path] = (),
    resources: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[GraphMap]:
    """Yield the map that the configuration chooses; its workers end with the block, at once if that is interrupted.

    Args:
        config: form, number of workers, and what the form needs.
        outputs: folders that the work writes to: the nodes of a cluster must have the same ones.
        inputs: folders and files that the work reads: the nodes of a cluster must have them.
        resources: custom resources that a task takes of its node of a cluster, by name.

    Raises:
        ConfigError: the extra of the form is not installed, or the cluster cannot be used.
    """
    match config.form:
        case "serial":
            yield SERIAL
        case "processes":
            with ProcessPool(config.process_count) as processes:
                yield GraphMap(processes, config.retries)
        case "ray":
            with open_ray_pool(config, outputs, inputs, resources) as cluster:
                yield GraphMap(cluster, config.retries)


def _name(item: object) -> str:
    """Return the name of an item for messages: of a tuple the words and names of files, such as `train/unet_3d`."""
    if not isinstance(item, tuple):
        return str(item)
    return "/".join(part.stem if isinstance(part, Path) else part for part in item if isinstance(part, str | Path))
