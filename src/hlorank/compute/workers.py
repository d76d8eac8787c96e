"""Worker processes for independent tasks, such as one for each file."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from hlorank.config.plugins import import_plugin, imported_plugins
from hlorank.files import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """A pool of processes; with one worker, tasks run in this process.

    Args:
        count: number of workers, at least 1.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        if self._count > 1:
            # Not fork: the parent may have threads and locks.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self._count, mp_context=context, initializer=_begin, initargs=(imported_plugins(),)
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item], title: str) -> Iterator[Result]:
        """Yield the result of each item, in order; few items are in progress at a time, so memory is bounded.

        Args:
            function: a function that can be imported by name, or a `functools.partial` of one.
            items: arguments of `function`.
            title: label of the progress bar on a terminal.

        Raises:
            DataError: `function` raised it for one item.
            ExceptionGroup: `function` raised DataError for several items; all of them, after the other items are
                finished.
            RuntimeError: a worker process died.
        """
        source = iter(items)
        pending = deque((item, self._start(function, item)) for item in itertools.islice(source, 2 * self._count))
        failures: list[DataError] = []
        console = Console(stderr=True)
        for _ in track(range(len(items)), title, console=console, disable=not sys.stderr.isatty()):
            item, finish = pending.popleft()
            try:
                pending.extend((later, self._start(function, later)) for later in itertools.islice(source, 1))
                result = finish()
            except DataError as error:
                failures.append(error)
            except BrokenProcessPool:
                message = f"{title}: a worker process died; if memory ran out, use fewer workers"
                raise RuntimeError(message) from None
            except Exception as error:
                error.add_note(f"{title}: {item}")
                raise
            else:
                yield result
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise ExceptionGroup(title, failures)

    def _start(self, function: Callable[[Item], Result], item: Item) -> Callable[[], Result]:
        return partial(function, item) if self._pool is None else self._pool.submit(function, item).result


def _begin(plugins: tuple[str, ...]) -> None:
    """Begin a worker process, with the plugins of its parent."""
    _exit_with_parent()
    for name in plugins:
        import_plugin(name)


def _exit_with_parent() -> None:
    """End this worker when its parent process ends, also by a kill; otherwise it would wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
