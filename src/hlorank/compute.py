"""Work on each graph: in this process, in processes of joblib's loky or on a Ray cluster; the device of a model."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import pickle
import platform
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hlorank.config import ComputeConfig, ConfigError, import_plugin
from hlorank.config.extension_point import imported_plugins
from hlorank.files import SHARED_VARIABLE, DataError, code_digest, one_line

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

SERIAL = ComputeConfig(form="serial", workers=1, retries=0, address=None, cpus=1, gpus=0, memory_bytes=None)
"""Settings of work in this process."""

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Results are taken in order, so while one item takes long, the other workers do these. A sample of a graph, of which
# featurize makes statistics, has up to 24 MB.
_CALLS_AHEAD = 32
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_log = logging.getLogger(__name__)


class ComputeError(RuntimeError):
    """Work that cannot be done, as of a worker that dies in each attempt; the message, one line, has a remedy."""


class _Workers(NamedTuple):
    """Place where calls run: the function that starts a call, and the largest number of started calls."""

    start: Callable[[Callable[[Any], Any], Any], Future[Any]]
    capacity: Callable[[], int]


def map_graphs(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    settings: ComputeConfig,
    title: str,
    *,
    outputs: Iterable[Path] = (),
) -> Iterator[Result]:
    """Yield the result of each item, in order; a bounded number of results waits for the result of an earlier item.

    An item that fails does not stop the others; its error is raised after them, several errors as an ExceptionGroup.
    A ConfigError and a full disk end the work at once.

    Args:
        function: may be called again for an item whose worker died, so it writes each file in one step.
        items: graphs, or other independent work.
        settings: where the calls run, and how often the call of a dead worker is repeated.
        title: label of the progress bar on a terminal.
        outputs: folders that `function` writes to, which the nodes of a cluster must share.
    """
    from rich.console import Console  # not with each command: these packages and joblib take half a second
    from rich.progress import track

    source = iter(items)
    pending: deque[tuple[Item, Future[Result]]] = deque()
    failures: list[BaseException] = []
    # A dead process ends all other calls, too; a dead task of a cluster does not.
    repeats = settings.retries if settings.form == "ray" else max(1, settings.retries)
    with _workers(settings, outputs) as workers:
        for _ in track(range(len(items)), title, console=Console(stderr=True), disable=not sys.stderr.isatty()):
            missing = max(not pending, workers.capacity() - len(pending))  # negative for a cluster that lost a node
            pending.extend((item, workers.start(function, item)) for item in itertools.islice(source, missing))
            if _died(pending[0][1]):
                # The error of a pool does not say whose call ended a process: after all have ended, each runs alone.
                died = [_died(call) for _, call in pending]
                repeat = partial(_repeat, partial(workers.start, function), repeats, title)
                both = zip(pending, died, strict=True)
                pending = deque((item, repeat(item, call) if dead else call) for (item, call), dead in both)
            item, call = pending.popleft()
            error = call.exception()
            if error is None:
                yield call.result()
            elif isinstance(error, ConfigError) or (isinstance(error, OSError) and error.errno in _DISK_FULL):
                raise error
            else:
                if not isinstance(error, DataError | ComputeError | OSError):
                    error.add_note(f"{title}: {_name(item)}")
                failures.append(error)
    if failures:
        raise failures[0] if len(failures) == 1 else BaseExceptionGroup(title, failures)


def _died(call: Future[Any]) -> bool:
    """Wait for a call, and return whether its worker died or had no memory."""
    return isinstance(call.exception(), BrokenProcessPool | MemoryError)


def _repeat(
    start: Callable[[Item], Future[Result]], repeats: int, title: str, item: Item, call: Future[Result]
) -> Future[Result]:
    """Repeat a call until its worker lives; a ComputeError takes the place of the last death."""
    for _ in range(repeats):
        _log.warning("%s: %s: %s; started again", title, _name(item), _reason(call.exception()))
        call = start(item)
        if not _died(call):
            return call
    remedy = "if memory ran out (SIGKILL), set compute.workers lower, or with compute=ray compute.memory_bytes higher"
    return _failed(ComputeError(f"{title}: {_name(item)}: {_reason(call.exception())}; {remedy}"))


def _reason(error: BaseException | None) -> str:
    codes = re.search(r"{(.+)}", str(error))  # how processes ended
    return "memory ran out" if isinstance(error, MemoryError) else f"its worker died, {codes[1] if codes else error}"


def _name(item: object) -> str:
    """Return the name of an item for messages: of a tuple the words and names of files, such as `train/unet_3d`."""
    if not isinstance(item, tuple):
        return str(item)
    return "/".join(part.stem if isinstance(part, Path) else part for part in item if isinstance(part, str | Path))


@contextmanager
def _workers(settings: ComputeConfig, outputs: Iterable[Path]) -> Iterator[_Workers]:
    """Yield the place where calls run; processes are killed where the work ends early."""
    if settings.form == "serial":
        yield _Workers(_call_here, lambda: 1)
    elif settings.form == "processes":
        try:
            yield _processes(settings.process_count)
        except BaseException:
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor(reuse=True).shutdown(kill_workers=True)
            raise
    else:
        with _connected(str(settings.address)) as ray, ExitStack() as marks:
            yield _cluster(ray, settings, [marks.enter_context(_marked(folder)) for folder in outputs])


def _call_here(function: Callable[[Item], Result], item: Item) -> Future[Result]:
    call: Future[Result] = Future()
    try:
        call.set_result(function(item))
    except Exception as error:
        call.set_exception(error)
    return call


def _failed(error: Exception) -> Future[Any]:
    call: Future[Any] = Future()
    call.set_exception(error)
    return call


def _processes(count: int) -> _Workers:
    """Return processes of this machine, which wait some seconds for other work."""
    from joblib.externals.loky import get_reusable_executor

    enter = _environment()
    # loky starts other processes if any of these is another.
    begin = {"initializer": _begin_process, "initargs": (os.getpid(), tuple(sys.path), *enter.args)}
    # A process that has grown is replaced, and loky warns if the next call is already on its way.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given to the executor")

    def start(function: Callable[[Any], Any], item: object) -> Future[Any]:
        pool = get_reusable_executor(count, timeout=30, env=_ONE_THREAD, **begin)
        try:
            call: Future[Any] = pool.submit(_call, enter, function, item)
            return call
        except BrokenProcessPool as error:  # a process died since the last call
            return _failed(error)

    return _Workers(start, lambda: 2 * count + _CALLS_AHEAD)


def _begin_process(parent: int, *_: object) -> None:
    """End this process with its parent; Ctrl-C is for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


@cache  # one thread for all calls
def end_with_parent(parent: int) -> None:
    """End this process with its parent, also if that is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _cluster(ray: ModuleType, settings: ComputeConfig, marks: Iterable[Path]) -> _Workers:
    """Return the nodes of a Ray cluster, where each call is a task.

    Joblib's backend of Ray has actors in place of tasks: the error of a dead actor names no call, and nodes that join
    the cluster later get none.
    """
    needs = {"CPU": settings.cpus, "GPU": settings.gpus, "memory": settings.memory_bytes or 0}
    needs = {name: amount for name, amount in needs.items() if amount}
    options = {"num_cpus": settings.cpus, "num_gpus": settings.gpus, "memory": settings.memory_bytes, "max_retries": 0}
    task = ray.remote(_call).options(**options)
    enter = _environment(marks)

    def room() -> int:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return sum(int(min(node.get(name, 0) // need for name, need in needs.items())) for node in nodes)

    def start(function: Callable[[Any], Any], item: object) -> Future[Any]:
        call: Future[Any] = Future()

        def finish(done: Future[Any]) -> None:
            error = done.exception()
            if error is None:
                call.set_result(done.result())
            elif isinstance(error, ray.exceptions.RayTaskError):
                call.set_exception(error.cause)
            elif isinstance(error, ray.exceptions.LocalRayletDiedError):  # and so would each later call
                call.set_exception(ConfigError("compute=ray: Ray's node on this machine ended: start it and run again"))
            else:
                call.set_exception(BrokenProcessPool(one_line(f"{type(error).__name__}: {error}")))

        task.remote(enter, function, item).future().add_done_callback(finish)
        return call

    if room() == 0:
        wanted = ", ".join(f"{name} {amount:g}" for name, amount in needs.items())
        raise ConfigError(f"compute=ray: no node of the cluster has what a task takes: {wanted}; see `ray status`")
    return _Workers(start, lambda: 2 * room() if settings.workers == "auto" else settings.workers)


@contextmanager
def _marked(folder: Path) -> Iterator[Path]:
    """Yield a new file in a folder, by which nodes see that the folder is the same."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix=".shared.", dir=folder.absolute()) as file:
        yield Path(file.name)


@contextmanager
def _connected(address: str) -> Iterator[ModuleType]:
    """Yield the package ray, connected to a cluster; a connection that exists is used, and kept."""
    import ray

    if ray.is_initialized():
        yield ray
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host:  # not auto; Ray would try again for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        remedy = "start one (`ray start --head`), with the same Ray and Python on every node, or give its address"
        raise ConfigError(f"compute.address={address}: no Ray cluster answers: {one_line(error)}; {remedy}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _environment(marks: Iterable[Path] = ()) -> partial[None]:
    """Return the call that makes a worker like this process; `marks` are new files in folders that workers write to."""
    plugins, shared = imported_plugins(), os.environ.get(SHARED_VARIABLE)
    return partial(_enter, Path.cwd(), plugins, shared, code_digest("hlorank", *plugins), tuple(marks))


@cache  # once in each worker
def _enter(folder: Path, plugins: tuple[str, ...], shared: str | None, code: str, marks: tuple[Path, ...]) -> None:
    """Make this worker like the process that has the work; ConfigError if its code differs or a folder is missing."""
    for name in plugins:
        import_plugin(name)
    node, deadline = f"node {platform.node()}", time.monotonic() + 10  # a network file system shows new files late
    if code_digest("hlorank", *plugins) != code:
        raise ConfigError(f"{node} has other code of hlorank than this process; install the same on every node")
    for path in (folder, *marks):
        while not path.exists():
            if time.monotonic() > deadline:
                raise ConfigError(f"{node} does not see {path}; it must be on a file system that all nodes share")
            time.sleep(0.5)
    os.chdir(folder)
    if shared is not None:
        os.environ[SHARED_VARIABLE] = shared


def _call(enter: Callable[[], None], function: Callable[[Item], Result], item: Item) -> Result:
    """Make a call in a worker; an error that cannot be sent, or that would end this process, becomes a RuntimeError."""
    enter()
    try:
        return function(item)
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from None
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - errors of libraries are often written but not read
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise


def find_device(accelerator: str) -> torch.device:
    """Return the device of an accelerator: auto is CUDA where PyTorch finds it, otherwise the CPU."""
    import torch

    if accelerator == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.accelerator=cuda: PyTorch finds no CUDA device; set it to auto or cpu")
    return torch.device("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")
