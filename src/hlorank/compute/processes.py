"""Calls in worker processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from hlorank.compute.messages import WorkerDiedError, answer, message, result_of
from hlorank.config.plugins import import_plugin, imported_plugins

Item = TypeVar("Item")
Result = TypeVar("Result")

_EXIT_SECONDS = 10.0  # from the end of a worker's pipe to the end of its process
# Results are taken in order, so while one item takes long, the other workers do these. A sample of a graph, of which
# featurize makes statistics, has up to 24 MB.
_CALLS_AHEAD = 32


class ProcessPool:
    """A number of processes, each begun when it is needed.

    A thread for each of them starts its process, sends it one call at a time and waits for the result: so the call
    that a process died of is known, and no other one is lost.

    Args:
        count: number of processes, at least 1.
    """

    remedy = "if memory ran out, set compute.workers lower"

    def __init__(self, count: int) -> None:
        self.capacity = 2 * count + _CALLS_AHEAD
        self._threads = ThreadPoolExecutor(count, initializer=_block_interrupts)
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
        if error is not None:
            for worker in [*self._all]:
                worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.end()

    def start(self, function: Callable[[Item], Result], item: Item) -> Callable[[], Result]:
        """Start a call, as `Pool.start`."""
        return self._threads.submit(self._call, function, item).result

    def _call(self, function: Callable[[Item], Result], item: Item) -> Any:
        try:
            worker = self._idle.get_nowait()
        except Empty:
            worker = self._begin()
        try:
            result = worker.call(function, item)
        except WorkerDiedError:
            self._all.discard(worker)
            raise
        except BaseException:
            self._idle.put(worker)
            raise
        self._idle.put(worker)
        return result

    def _begin(self) -> _Worker:
        with self._lock:  # one at a time, and none after the end
            if self._closed:
                raise WorkerDiedError("interrupted")
            worker = _Worker()
            self._all.add(worker)
            return worker


class _Worker:
    """A process and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # not fork: this process has threads and locks
        self._pipe, other = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(other, imported_plugins()))
        self._process.start()
        other.close()  # so that the pipe ends with the process

    def call(self, function: Callable[[Item], Result], item: Item) -> Any:
        """Return the result of a call in the process.

        Raises:
            WorkerDiedError: the process ended.
            Exception: what the call raised.
        """
        try:
            self._pipe.send_bytes(message(function, item))
            reply = self._pipe.recv_bytes()
        except (EOFError, ConnectionError):
            raise WorkerDiedError(self._death()) from None
        return result_of(reply)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def end(self) -> None:
        """End the process, which waits for a call or was killed."""
        self._pipe.close()
        self._process.join(_EXIT_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _death(self) -> str:
        self.end()
        status = self._process.exitcode or 0
        if status >= 0:
            return f"its worker process ended with status {status}"
        name = signal.Signals(-status).name
        return f"its worker process was killed by {name}{', as where memory runs out' if name == 'SIGKILL' else ''}"


def _block_interrupts() -> None:
    """Keep Ctrl-C from the processes that this thread starts: the terminal sends it to them, and the parent ends them.

    Python handles signals in its main thread, so that no other thread misses them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


def _serve(pipe: Connection, plugins: tuple[str, ...]) -> None:
    """Answer calls in a worker process, with the plugins of its parent, until the pipe ends."""
    _exit_with_parent()
    for name in plugins:
        import_plugin(name)
    while True:
        try:
            received = pipe.recv_bytes()
        except EOFError:
            return
        try:
            pipe.send_bytes(answer(received))
        except ConnectionError:
            return


def _exit_with_parent() -> None:
    """End this worker when its parent process ends, also by a kill; otherwise it would wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
