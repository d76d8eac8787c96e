"""Map over graphs: order, failures, deaths of workers, and the same bytes in every form."""

import errno
import operator
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from hlorank.compute import SERIAL, ComputeError, map_graphs
from hlorank.config import ComputeConfig, ConfigError, import_plugin
from hlorank.config.extras import named_extra
from hlorank.data.collection import Collection
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.files import DataError
from hlorank.partition.segment_store import partition_collection
from tests import worker_functions as work
from tests.conftest import Settings
from tests.sections import compute_config
from tests.servers import command, free_port
from tests.trees import contents

ROOT = Path(__file__).parents[1]
TWO, ONCE = compute_config(workers=2), compute_config(workers=2, retries=0)
FULL_DISK = partial(work.fail, error=partial(OSError, errno.ENOSPC))
NO_CONFIG = partial(work.fail, error=ConfigError)


def test_results_keep_their_order_and_workers_have_one_thread(tmp_path: Path) -> None:
    assert [*map_graphs(work.process_of, [], TWO, "test")] == []
    here, there, again = ([*map_graphs(work.process_of, range(20), form, "test")] for form in (SERIAL, TWO, TWO))
    assert [item for item, _, _ in here] == [item for item, _, _ in there] == [*range(20)]
    assert {threads for _, _, threads in there} == {"1"}
    processes = {process for _, process, _ in there + again}
    assert len(processes) <= 2, "workers are kept for the next map"
    assert not processes & {process for _, process, _ in here}
    begun: list[int] = []
    next(map_graphs(begun.append, range(100), SERIAL, "test"))
    assert begun == [0], "few items are in progress at a time"
    # A long first item does not hold up the others.
    assert all(map_graphs(partial(work.wait_for_the_last, folder=tmp_path, count=36), range(36), TWO, "test"))


def test_workers_have_folder_and_plugins_of_their_parent(cwd: Path, make_plugin: Callable[[str, str], None]) -> None:
    make_plugin("mine", "")
    import_plugin("mine")
    assert [*map_graphs(work.folder_and_plugins, range(2), TWO, "test")] == [(cwd, ("mine",))] * 2


@pytest.mark.parametrize("config", [SERIAL, TWO])
def test_all_bad_items_are_named_and_the_others_finished(config: ComputeConfig) -> None:
    treated, error = work.treated_and_error(work.even, range(5), config)
    assert treated == [0, 2, 4]
    assert isinstance(error, ExceptionGroup)
    found = [(bad.found, bad.file) for bad in error.exceptions if isinstance(bad, DataError)]
    assert found == [(1, Path("a.npz")), (3, Path("a.npz"))]
    _, error = work.treated_and_error(operator.itemgetter(3), [("valid", Path("raw/b.npz"), 0)], config)
    assert (type(error), error.__notes__) == (IndexError, ["test: valid/b"])


@pytest.mark.parametrize(
    ("function", "config", "items", "kind", "message"),
    [
        (NO_CONFIG, SERIAL, 1000, ConfigError, "1"),
        *((FULL_DISK, form, 1000, OSError, "[Errno 28] 1") for form in (SERIAL, TWO)),
        # These cannot be read again where they are raised in a worker.
        (partial(work.fail, error=partial(work.ForeignError, other=2)), TWO, 1, RuntimeError, "ForeignError: 1 and 2"),
        (partial(work.fail, error=SystemExit), TWO, 1, RuntimeError, "SystemExit: 1"),
        (partial(work.fail, error=MemoryError), SERIAL, 1, ComputeError, "test: 1: memory ran out;"),
    ],
)
def test_an_error_keeps_its_message(
    function: Callable[[int], Any], config: ComputeConfig, items: int, kind: type[Exception], message: str
) -> None:
    treated, error = work.treated_and_error(function, range(1, items + 1), config)
    assert (treated, type(error), str(error)[: len(message)]) == ([], kind, message)


def test_the_work_of_a_dead_worker_is_repeated_and_a_graph_that_always_ends_it_is_named(tmp_path: Path) -> None:
    assert work.treated_and_error(threading.Thread, range(1), TWO)[1].__notes__ == ["test: 0"], "it cannot be sent"
    treated, error = work.treated_and_error(partial(work.die, folder=tmp_path, deaths={2: 1, 5: 9}), range(60), ONCE)
    assert treated == [item for item in range(60) if item != 5]
    assert len([*tmp_path.iterdir()]) < 120, "results before a death are kept"
    assert isinstance(error, ComputeError)
    assert str(error).startswith("test: 5: its worker died, SIGKILL(-9); ")


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from hlorank.compute import SERIAL, map_graphs

def work(item):
    os.write(1, f"{os.getpid()}\\n".encode())
    folder = Path(sys.argv[2])
    (folder / str(item)).touch()
    while item == 0 and not (folder / "1").exists():  # so that both workers have begun
        time.sleep(0.01)
    time.sleep(0.1)
    if item == 5:
        os.kill(os.getppid(), getattr(signal, sys.argv[1]))
        time.sleep(3600 if sys.argv[1] == "SIGINT" else 0.1)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    list(map_graphs(work, range(100), SERIAL.model_copy(update={"form": "processes", "workers": 2}), "test"))
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_workers_end_with_an_ended_parent(tmp_path: Path, name: str) -> None:
    # The output ends only when the last worker has closed it.
    command = [sys.executable, "-c", SCRIPT.replace("sys.argv[1]", repr(name)), name, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == -getattr(signal, name)
    assert len(set(done.stdout.split())) == 2


@pytest.mark.parametrize("address", ["layout:synthetic:random", "tile:synthetic"])
def test_workers_write_the_same_bytes(address: str, tiny_collections: Path, tmp_path: Path, settings: Settings) -> None:
    collection, config = Collection.parse(address), settings()
    for workers in (0, 2):
        compute, root = compute_config(workers=workers) if workers else SERIAL, tmp_path / str(workers)
        featurize_collection(tiny_collections / "raw", collection, config.featurize, root / "features", compute)
        partition_collection(root / "features", config.partition, root / "segments", compute)
    assert len(contents(tmp_path / "0")) > 30
    assert contents(tmp_path / "0") == contents(tmp_path / "2")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a Ray cluster of one node with two CPUs, and a token."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex())
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    with TemporaryDirectory(prefix="ray", dir="/tmp") as root:  # sockets are in it, and their paths are limited
        address = f"127.0.0.1:{free_port()}"
        options = ["--head", "--block", "--disable-usage-stats", "--include-dashboard=false", f"--temp-dir={root}"]
        options += [f"--port={address[10:]}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
        with subprocess.Popen(
            command("ray", "start", *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as node:
            assert node.stdout is not None
            assert any("Ray runtime started" in line for line in node.stdout)
            yield address
            processes = [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, timeout=30)


ON_RAY = """
import sys
from functools import partial
from pathlib import Path
from hlorank.compute import SERIAL, map_graphs
from hlorank.config import FeaturizeConfig
from hlorank.data.collection import Collection
from hlorank.featurize.featurize_collection import featurize_collection
from tests.sections import compute_config
from tests.servers import command, free_port
from tests.test_compute import FULL_DISK
from tests.worker_functions import die, even, process_of, treated_and_error

address, raw, featurize = sys.argv[1:]
config = compute_config(form="ray", address=address, workers="auto", retries=1)
folder = Path("deaths")
results = list(map_graphs(process_of, range(40), config, "test", outputs=[folder]))
assert [item for item, _, _ in results] == [*range(40)] and not [*folder.glob(".shared.*")]
assert {threads for _, _, threads in results} == {"1"}
once = partial(die, folder=folder, deaths={2: 1, 5: 1})
assert list(map_graphs(once, range(8), config, "test")) == [*range(8)]
assert len([*folder.iterdir()]) == 10
never = partial(die, folder=folder, deaths={20: 9})
treated_and_error(never, [20], config.model_copy(update={"retries": 0}))
assert len([*folder.glob("20.*")]) == 1
for name, compute in (("here", SERIAL), ("there", config)):
    collection, settings = Collection.parse("layout:synthetic:random"), FeaturizeConfig.model_validate_json(featurize)
    featurize_collection(Path(raw), collection, settings, Path(name), compute)
for function, items in [(partial(die, folder=folder, deaths={9: 9}), range(8, 11)), (even, range(3)),
                        (FULL_DISK, range(1, 100))]:
    treated, error = treated_and_error(function, items, config)
    print(treated, type(error).__name__, str(error)[:40], sep="|")
print(treated_and_error(even, range(2), config.model_copy(update={"cpus": 64}))[1])
"""


@pytest.mark.slow
def test_nodes_of_a_ray_cluster_do_and_report_what_one_process_does(
    cluster: str, tiny_collections: Path, settings: Settings, tmp_path: Path
) -> None:
    def shown(*command: str) -> str:
        done = subprocess.run([sys.executable, "-c", *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed = shown(ON_RAY, cluster, str(tiny_collections / "raw"), settings().featurize.model_dump_json())
    died, failed, full, refused = [line for line in printed.splitlines() if "(raylet)" not in line]
    assert died.startswith("[8, 10]|ComputeError|test: 9: its worker died, WorkerCrashed")
    assert failed == "[0, 2]|DataError|a.npz: item: expected an even number, fo"
    assert full == "[]|OSError|[Errno 28] 1"
    assert refused == "compute=ray: no node of the cluster has what a task takes: CPU 64; see `ray status`"
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def test_the_death_of_the_local_node_ends_the_work_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, task = pytest.importorskip("ray"), Mock()
    call = Mock(**{"exception.return_value": ray.exceptions.LocalRayletDiedError()})
    remote = task.options.return_value.remote
    remote.return_value.future.return_value.add_done_callback.side_effect = lambda finish: finish(call)
    nodes = [{"Alive": True, "Resources": {"CPU": 1}}]
    for name, value in (("remote", task), ("is_initialized", True), ("nodes", nodes)):
        monkeypatch.setattr(ray, name, Mock(return_value=value))
    with pytest.raises(ConfigError, match="node on this machine ended"):
        list(map_graphs(work.even, range(9), compute_config(form="ray", address="auto", workers=2), "test"))
    assert remote.call_count == 2


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere:port"])
def test_an_address_without_a_cluster_is_refused_at_once_and_a_missing_extra_is_named(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=rf"^compute\.address={address}: no Ray cluster answers: .*ray start"):
        list(map_graphs(work.even, [2], compute_config(form="ray", address=address), "test"))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'hlorank\[ray\]'"), named_extra("this"):
        list(map_graphs(work.even, [2], compute_config(form="ray", address="auto"), "test"))
