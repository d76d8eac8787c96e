"""Calls on the nodes of a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from hlorank.compute.messages import WorkerDiedError, message, result_of
from hlorank.compute.ray_node import surroundings
from hlorank.config import ComputeConfig, ConfigError
from hlorank.files import one_line

Item = TypeVar("Item")
Result = TypeVar("Result")

INSTALL = "pip install 'hlorank[ray]', or in a clone pip install -c constraints.txt -e '.[ray]'"
_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 30.0  # within which a server that listens says that it speaks gRPC
_HTTP2_CALL = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # RFC 9113, 3.4
_COUNT_SECONDS = 10.0  # between two looks at the size of the cluster
_WARN_SECONDS = 60.0  # between two warnings that no node has room
_DEATHS = {
    "OutOfMemoryError": "Ray ended its worker process, as memory ran out on the node",
    "WorkerCrashedError": "its worker process died",
    "NodeDiedError": "its node was lost",
}

_log = logging.getLogger(__name__)


class RayPool:
    """Calls as tasks of a Ray cluster.

    Args:
        ray: the package, connected to a cluster.
        config: resources of a task, and bound of the number of tasks.
        expected: the result of `surroundings`.
        resources: other resources that a task takes of its node, by name.

    Raises:
        ConfigError: no node of the cluster has the resources of a task.
    """

    remedy = "if memory ran out, set compute.memory_bytes to what a graph needs, so that fewer share a node"

    def __init__(self, ray: ModuleType, config: ComputeConfig, expected: str, resources: Mapping[str, float]) -> None:
        self._ray = ray
        self._workers = config.workers
        self._needs = {"CPU": config.cpus, "GPU": config.gpus, "memory": config.memory_bytes or 0, **resources}
        self._expected = expected
        # Repeated attempts are counted in one place for all forms, which is not here.
        self._task = ray.remote(_sent_as_code()).options(
            num_cpus=config.cpus,
            num_gpus=config.gpus,
            memory=config.memory_bytes,
            resources=dict(resources),
            max_retries=0,
        )
        self._room, self._counted = 0, -_COUNT_SECONDS
        if self.room() == 0:
            wanted = ", ".join(f"{name} {amount:g}" for name, amount in self._needs.items() if amount)
            raise ConfigError(f"compute=ray: no node of the cluster has what a task takes: {wanted}; see `ray status`")

    @property
    def capacity(self) -> int:
        """Number of tasks that may be started: twice as many as there is room for, so that nodes need not wait."""
        return max(1, 2 * self.room()) if self._workers == "auto" else self._workers

    def room(self) -> int:
        """Return the number of tasks that run on all nodes at the same time; nodes come and go."""
        if time.monotonic() - self._counted > _COUNT_SECONDS:
            self._counted = time.monotonic()
            needs = {name: amount for name, amount in self._needs.items() if amount}
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            self._room = sum(int(min(node.get(name, 0) // amount for name, amount in needs.items())) for node in nodes)
        return self._room

    def start(self, function: Callable[[Item], Result], item: Item) -> Callable[[], Result]:
        """Start a call, as `Pool.start`."""
        reference = self._task.remote(self._expected, message(function, item))

        def finish() -> Result:
            result: Result = result_of(self._reply(reference))
            return result

        return finish

    def _reply(self, reference: Any) -> bytes:
        """Wait for the reply of a task, with a warning while no node has room for it."""
        errors = self._ray.exceptions
        while True:
            try:
                reply: bytes = self._ray.get(reference, timeout=_WARN_SECONDS)
                return reply
            except errors.GetTimeoutError:
                if self.room() == 0:
                    _log.warning("compute=ray: waiting for a node, as the cluster has none left for a task")
            except errors.RayTaskError:
                raise
            except errors.RayError as error:
                kind = type(error).__name__
                raise WorkerDiedError(_DEATHS.get(kind) or one_line(f"{kind}: {error}")) from None


@contextmanager
def open_ray_pool(
    config: ComputeConfig, outputs: Iterable[Path], inputs: Iterable[Path], resources: Mapping[str, float]
) -> Iterator[RayPool]:
    """Yield the pool of a cluster; its tasks end with the block.

    Args:
        config: address of the cluster and resources of a task.
        outputs: folders that the tasks write to.
        inputs: folders and files that the tasks read.
        resources: other resources that a task takes of its node, by name.

    Raises:
        ConfigError: Ray is not installed, no cluster answers, it has another version of Ray or Python, or no node has
            the resources of a task.
    """
    assert config.address is not None
    with _connected(config.address) as ray, ExitStack() as marks:
        expected = surroundings([marks.enter_context(_marked(folder)) for folder in outputs], inputs)
        yield RayPool(ray, config, expected, resources)


@contextmanager
def _marked(folder: Path) -> Iterator[Path]:
    """Yield a new file in a folder, by which nodes see that the folder is the same."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix=".shared.", dir=folder) as file:
        yield Path(file.name)


@contextmanager
def _connected(address: str) -> Iterator[ModuleType]:
    """Yield the package ray, connected to a cluster; a connection that exists is used, and kept."""
    try:
        import ray
    except ImportError:
        raise ConfigError(f"compute=ray: Ray is not installed; {INSTALL}") from None
    if ray.is_initialized():
        yield ray
        return
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        text = str(error)
        if "Version mismatch" in text:  # Ray has a line for each version
            remedy = "install the same Ray and Python on every node"
            raise ConfigError(f"compute.address={address}: {' '.join(text.split())}; {remedy}") from None
        raise _unreachable(address, text.partition("\n")[0]) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Refuse an address at which nothing answers, or no server of gRPC: Ray would try again for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:  # auto
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS) as server:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return  # the answer would be encrypted
            server.settimeout(_ANSWER_SECONDS)
            server.sendall(_HTTP2_CALL)
            with server.makefile("rb") as stream:
                answer = stream.read(9)  # the head of a frame
    except (OSError, ValueError, OverflowError) as error:
        raise _unreachable(address, getattr(error, "strerror", None) or str(error)) from None
    if answer[3:4] != b"\x04":  # the type of the first frame, which are settings
        raise _unreachable(address, "another server listens there")


def _unreachable(address: str, reason: str) -> ConfigError:
    remedy = "start one (`ray start --head`), or give its address, and RAY_AUTH_TOKEN if it has a token"
    return ConfigError(f"compute.address={address}: no Ray cluster answers: {reason.rstrip('.')}; {remedy}")


def _sent_as_code() -> Callable[[str, bytes], bytes]:
    """Return the function of a task.

    Ray sends a function of a module by its name, and one inside another as code: so a node that lacks hlorank, or has
    an old version, can say so.
    """

    def task(expected: str, work: bytes) -> bytes:
        try:
            from hlorank.compute import ray_node
        except ImportError as error:
            import pickle
            import platform

            node = f"compute=ray: node {platform.node()}"
            return pickle.dumps((None, f"{node} has no hlorank that fits ({error}); install the same on every node"))
        return ray_node.call(expected, work)

    return task
