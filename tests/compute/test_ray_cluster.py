"""A Ray cluster of two nodes on this machine: the same results, deaths of workers and of a node, refusals."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import json
import re
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from hlorank.compute.graph_map import open_graph_map
from hlorank.compute.messages import message, result_of
from hlorank.compute.ray_cluster import _sent_as_code
from hlorank.compute.ray_node import call, surroundings
from hlorank.config import ComputeConfig, ConfigError
from hlorank.files import sha256_file
from tests.sections import compute_config

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
HLORANK = ("-c", "import sys; from hlorank.cli.main import main; sys.exit(main())")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is not installed")


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module that nodes can import by its name."""
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("worker_tasks")


class Node:
    """A node of a cluster: the command that keeps it, and its processes."""

    def __init__(self, log: Path, *arguments: str) -> None:
        command = [str(Path(sys.executable).with_name("ray")), "start", *arguments, "--block", "--num-cpus=1"]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, "--disable-usage-stats", "--log-color=false"], stdout=file, stderr=file
            )
        self._log = log

    def starts(self) -> bool:
        """Wait until the node has started or its command has ended."""
        deadline = time.monotonic() + 240
        while b"Ray runtime started" not in (text := self._log.read_bytes()):
            if self._process.poll() is not None:
                return False
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        return True

    def works(self) -> bool:
        """Return whether a worker of the node runs a task, after which Ray then names its process."""
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                title = "".join(process.cmdline()[:1])
                if title.startswith("ray::") and not re.search("IDLE|Agent", title):
                    return True
        return False

    def kill(self) -> None:
        """End the node at once, as when its machine is lost."""
        if self._process.poll() is not None:
            return
        processes = [*psutil.Process(self._process.pid).children(recursive=True), psutil.Process(self._process.pid)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(processes, timeout=30)


class Cluster:
    """A cluster of one node with one CPU, and the commands that use it, each in a process of its own.

    Ray reads its token when it is imported, which this process may have done before.
    """

    def __init__(self, folder: Path, add: Callable[..., Node]) -> None:
        self._folder, self._add = folder, add
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            port, client_port = one.getsockname()[1], other.getsockname()[1]
        ports = f"--port={port}", f"--ray-client-server-port={client_port}"
        add("--head", *ports, "--include-dashboard=false")
        host = re.search(r"Local node IP: (\S+)", (folder / "log").read_text())
        assert host is not None
        self.address = f"{host[1]}:{port}"
        self.client_address = f"ray://{host[1]}:{client_port}"

    def add(self, *arguments: str) -> Node:
        """Add a node with one CPU."""
        return self._add(f"--address={self.address}", *arguments)

    def run(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in a folder."""
        return subprocess.run(
            [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=480, check=False
        )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster, whose nodes end with the tests."""
    # Sockets are in this folder, and their paths are limited.
    with (
        pytest.MonkeyPatch.context() as patch,
        ExitStack() as nodes,
        TemporaryDirectory(prefix="ray", dir="/tmp") as root,
    ):
        folder = Path(root)
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # by default workers starve beside other tests
        patch.setenv("RAY_TMPDIR", root)  # where auto finds the cluster
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PYTHONPATH", f"{SRC}:{HERE}:{HERE.parents[1]}")

        def add(*arguments: str) -> Node:
            for _ in range(3):  # Ray gives up after 30 seconds, which are few on a busy machine
                node = Node(folder / "log", *arguments)
                nodes.callback(node.kill)
                if node.starts():
                    return node
            pytest.fail((folder / "log").read_text())

        yield Cluster(folder, add)


FAILURES = """
import os, sys
from functools import partial
from pathlib import Path

import worker_tasks as tasks
from hlorank.compute.graph_map import open_graph_map
from tests.sections import compute_config

config = partial(compute_config, form="ray", address=sys.argv[1], workers="auto")

def error_of(compute, function, items):
    treated = []
    try:
        for result in compute.map(function, items, "test"):
            treated.append(result)
    except Exception as error:
        return treated, f"{type(error).__name__}: {error}"

folder = Path("deaths")
with open_graph_map(config(retries=1), [folder]) as compute:
    results = list(compute.map(tasks.process_of, range(40), "test"))
    assert [item for item, _ in results] == list(range(40))
    assert os.getpid() not in {process for _, process in results}
    again = list(compute.map(partial(tasks.die_once, folder=folder, deadly={2, 5}), range(8), "test"))
    assert again == list(range(8))
    runs = [len([*folder.glob(f"{item}.*")]) for item in range(8)]
    assert runs == [1, 1, 2, 1, 1, 2, 1, 1], runs
    print(*error_of(compute, tasks.die_at_2, range(5)))
    print(*error_of(compute, partial(tasks.even, file=Path("a.npz")), range(3)))
assert not [*folder.glob(".shared.*")]
try:
    with open_graph_map(config(cpus=64)):
        pass
except Exception as error:
    print(error)
"""


@pytest.mark.slow
@needs_ray
def test_results_failures_and_deaths(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run(tmp_path, "-c", FAILURES, cluster.address)
    assert done.returncode == 0, done.stderr
    # Ray adds lines about the dead workers.
    killed, failed, refused = [line for line in done.stdout.splitlines() if "(raylet)" not in line]
    assert killed.startswith(
        "[0, 1, 3, 4] ComputeError: test: 2: its worker process died (attempt 2); if memory ran out"
    )
    assert failed == "[0, 2] DataError: a.npz: item: expected an even number, found 1"
    assert refused == "compute=ray: no node of the cluster has what a task takes: CPU 64; see `ray status`"


ADDRESSES = """
import sys
from pathlib import Path

import worker_tasks as tasks
from hlorank.compute.graph_map import open_graph_map
from tests.sections import compute_config

config = compute_config(form="ray", address=sys.argv[1], workers="auto")
with open_graph_map(config, [Path("out")], [Path()]) as compute:
    assert list(compute.map(tasks.even_number, range(20), "test")) == [*range(20)]
    try:
        list(compute.map(tasks.fill_disk, range(1, 100), "test"))
    except OSError as error:
        print(error.errno, error.filename)
"""


@pytest.mark.slow
@needs_ray
@pytest.mark.parametrize("kind", ["client", "auto"])
def test_results_and_a_full_disk_by_other_addresses(kind: str, cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run(tmp_path, "-c", ADDRESSES, "auto" if kind == "auto" else cluster.client_address)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{errno.ENOSPC} 1\n"


@pytest.mark.slow
@needs_ray
def test_a_lost_node_does_not_change_a_byte(cluster: Cluster, tmp_path: Path) -> None:
    shutil.copytree(SRC.parent / "conf", tmp_path / "conf")

    def stage(name: str, *options: str) -> str:
        done = cluster.run(tmp_path, "-m", f"hlorank.stages.{name}", "experiment=synthetic", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    sizes = {"train": 12, "valid": 2, "test": 2, "min_nodes": 1000, "max_nodes": 1200, "configurations": 200}
    stage("fetch", *(f"data.synthetic.{name}={value}" for name, value in sizes.items()))
    for name in ("featurize", "partition"):
        stage(name, "compute=serial")
    stage("train", "trainer.max_epochs=1", "trainer.steps_per_epoch=2", "model.width=16")
    stage("evaluate", "compute=serial")
    node = cluster.add()
    other = ["paths.features=features", "paths.segments=segments", "paths.reports=scores"]
    ray = [*other, "compute=ray", f"compute.address={cluster.address}"]
    with _when(node.works, node.kill) as killed:
        log = stage("featurize", *ray)
    assert killed.is_set()
    assert "started again" in log
    stage("partition", *ray)
    stage("evaluate", *ray)
    for expected, made in (("data/features", "features"), ("data/segments", "segments"), ("reports", "scores")):
        digests = _digests(tmp_path / made)
        assert digests
        assert digests == _digests(tmp_path / expected)


@pytest.mark.slow
@needs_ray
def test_nodes_with_the_resource_measure(cluster: Cluster, tmp_path: Path) -> None:
    program, out = "mlp.b64.forward", "own"
    command = [
        *HLORANK,
        "collect",
        program,
        "--configurations=3",
        "--max-rounds=2",
        "--allow-busy",
    ]
    command += [f"--out={out}", f"--ray={cluster.address}"]
    refused = cluster.run(tmp_path, *command)
    assert refused.returncode == 2
    assert "no node of the cluster has what a task takes: CPU 1, hlorank_measure 1" in refused.stderr
    node = cluster.add('--resources={"hlorank_measure": 1}')
    done = cluster.run(tmp_path, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"[1/1, 0:00:00 left] {program}" in done.stdout
    assert (tmp_path / out / f"layout/cpu/random/{program}.npz").is_file()
    node.kill()


@pytest.mark.slow
@needs_ray
def test_nodes_rank_what_one_process_does(
    cluster: Cluster, tiny_collections: Path, linear_model: Callable[..., Path], tmp_path: Path
) -> None:
    files = map(str, sorted((tiny_collections / "raw/layout/synthetic/random").rglob("*.npz")))
    command = [*HLORANK, "rank", f"--model={linear_model()}", "--json", *files]
    here, there = cluster.run(tmp_path, *command), cluster.run(tmp_path, *command, f"--ray={cluster.address}")
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    assert len(json.loads(there.stdout)) == 6
    assert there.stdout == here.stdout


def _digests(root: Path) -> dict[str, str]:
    """Return the digest of each file but the page of a report, which has times."""
    return {
        path.relative_to(root).as_posix(): sha256_file(path)
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".html"
    }


@contextmanager
def _when(reached: Callable[[], bool], act: Callable[[], None]) -> Iterator[threading.Event]:
    """Act as soon as something is reached during the block; the event is set if that was so."""
    done, ended = threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            if reached():
                act()
                done.set()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield done
    finally:
        ended.set()
        watcher.join()


def on(address: str) -> ComputeConfig:
    return compute_config(form="ray", address=address)


@needs_ray
@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "refused"), ("ray://127.0.0.1:1", "refused"), ("nowhere", ""), ("127.0.0.1:port", "port")],
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, reason: str) -> None:
    expected = rf"^compute\.address={re.escape(address)}: no Ray cluster answers: .*{reason}.*ray start"
    with pytest.raises(ConfigError, match=expected), open_graph_map(on(address)):
        pass


@pytest.mark.parametrize("scheme", ["", "ray://"])
@pytest.mark.parametrize(("replies", "reason"), [(None, "timed out"), (b"HTTP/1.1 400\r\n\r\n", "another server")])
def test_a_server_that_is_no_cluster_is_refused(
    scheme: str, replies: bytes | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=_never))
    monkeypatch.setattr("hlorank.compute.ray_cluster._ANSWER_SECONDS", 0.2 if replies is None else 30)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            caller, _ = server.accept()
            with caller:
                if replies is not None:
                    caller.sendall(replies)
                while caller.recv(1000):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
        expected = rf"^compute\.address={re.escape(address)}: no Ray cluster answers: {reason}.*ray start"
        with pytest.raises(ConfigError, match=expected), open_graph_map(on(address)):
            pass
        thread.join()


def _never(**_: object) -> None:
    raise AssertionError


def test_other_versions_of_ray_and_python_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        cluster = "The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.12.1\n"
        process = "This process on Ray Client was started with:\n    Ray: 2.61.0\n    Python: 3.11.7\n"
        raise RuntimeError(f"Version mismatch: {cluster}{process}")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    versions = r"Ray: 2\.60\.0 Python: 3\.12\.1 .*Ray: 2\.61\.0 Python: 3\.11\.7; install the same Ray"
    with pytest.raises(ConfigError, match=rf"^compute\.address=auto: .*{versions}.*$"), open_graph_map(on("auto")):
        pass


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Ray is not installed; pip install .*ray"), open_graph_map(on("auto")):
        pass


def test_a_cluster_has_an_address() -> None:
    with pytest.raises(ValueError, match="auto, host:port or ray://host:port"):
        compute_config(form="ray")


@pytest.mark.parametrize(
    ("change", "message_"),
    [
        ({"code": "other"}, "has hlorank .* with other code than this process; install the same on every node"),
        ({"version": "99.0"}, r"has hlorank \S+, and this process 99.0; install the same on every node"),
        ({"folder": "/nowhere"}, "cannot open the folder /nowhere .No such file.*all nodes share"),
        ({"visible": {"/out": "/out/mark"}}, "has another /out than this process, or none; .*all nodes share"),
    ],
)
def test_a_node_that_cannot_work_says_so(
    change: dict[str, object], message_: str, tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hlorank.compute.ray_node._VISIBLE_SECONDS", 0)
    work = message(tasks.even_number, 4)
    mark = tmp_path / "mark"
    mark.touch()
    expected = surroundings([mark], [Path()])
    assert result_of(call(expected, work)) == 4
    with pytest.raises(ConfigError, match=rf"^compute=ray: node .* has another {tmp_path}/raw than.*all nodes share"):
        result_of(call(surroundings([mark], [Path("raw")]), work))
    with pytest.raises(ConfigError, match=f"^compute=ray: node .* {message_}"):
        result_of(call(json.dumps(json.loads(expected) | change), work))


def test_a_node_without_hlorank_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hlorank.compute.ray_node", None)
    monkeypatch.delattr("hlorank.compute.ray_node", raising=False)
    with pytest.raises(ConfigError, match=r"node .* has no hlorank that fits .*install the same on every node"):
        result_of(_sent_as_code()("", b""))
