"""Map over graphs: order, failures, deaths of workers, and the same bytes in every form."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from hlorank.compute import SERIAL, ComputeError, map_graphs
from hlorank.config import ComputeConfig, ConfigError, import_plugin
from hlorank.data.collection import Collection
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.files import DataError, sha256_file
from hlorank.partition.segment_store import partition_collection
from tests.conftest import Settings
from tests.sections import compute_config
from tests.worker_functions import (
    be_killed,
    die,
    even,
    fail,
    folder_and_plugins,
    foreign,
    full_disk,
    inverse,
    process_of,
    treated_and_error,
    wait_for_the_last,
)

ROOT = Path(__file__).parents[1]
FORMS = [SERIAL, compute_config(workers=2)]
TWO = FORMS[1]


def test_results_keep_their_order_and_workers_have_one_thread() -> None:
    own = os.getpid()
    assert [*map_graphs(process_of, [], TWO, "test")] == []
    for config in FORMS:
        results = [*map_graphs(process_of, range(20), config, "test")]
        assert [item for item, _, _ in results] == [*range(20)]
        assert all((process == own) == (config is SERIAL) for _, process, _ in results)
    assert {threads for _, _, threads in results} == {"1"}
    again = [*map_graphs(process_of, range(20), TWO, "test")]
    assert len({process for _, process, _ in results + again}) <= 2, "workers are kept for the next map"
    begun: list[int] = []
    next(map_graphs(begun.append, range(100), SERIAL, "test"))
    assert begun == [0], "few items are in progress at a time"


def test_a_long_first_item_does_not_hold_up_the_others(tmp_path: Path) -> None:
    assert all(map_graphs(partial(wait_for_the_last, folder=tmp_path, count=36), range(36), TWO, "test"))


def test_workers_have_folder_and_plugins_of_their_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_plugin: Callable[[str, str], None]
) -> None:
    make_plugin("mine", "")
    import_plugin("mine")
    monkeypatch.chdir(tmp_path)
    assert [*map_graphs(folder_and_plugins, range(2), TWO, "test")] == [(tmp_path, ("mine",))] * 2


@pytest.mark.parametrize("config", FORMS)
def test_all_bad_items_are_named_and_the_others_finished(config: ComputeConfig) -> None:
    treated, error = treated_and_error(even, range(5), config)
    assert treated == [0, 2, 4]
    assert isinstance(error, ExceptionGroup)
    found = [(bad.found, bad.file) for bad in error.exceptions if isinstance(bad, DataError)]
    assert found == [(1, Path("a.npz")), (3, Path("a.npz"))]
    items = [("train", Path("a"), 1), ("valid", Path("raw/b.npz"), 0)]
    with pytest.raises(ZeroDivisionError) as caught:
        list(map_graphs(inverse, items, config, "test"))
    assert caught.value.__notes__ == ["test: valid/b"]


@pytest.mark.parametrize(("make", "kind"), [(ConfigError, ConfigError), (full_disk, OSError)])
def test_a_configuration_error_and_a_full_disk_end_the_work_at_once(
    make: Callable[[int], Exception], kind: type[Exception]
) -> None:
    for config in FORMS:
        treated, error = treated_and_error(partial(fail, error=make), range(1, 1000), config)
        assert (treated, type(error)) == ([], kind)


def test_errors_of_libraries_that_cannot_be_read_again_keep_their_message() -> None:
    _, error = treated_and_error(partial(fail, error=foreign), range(1, 2), TWO)
    assert (type(error), str(error)) == (RuntimeError, "ForeignError: 1 and 2")
    _, error = treated_and_error(partial(fail, error=SystemExit), range(1, 2), TWO)
    assert (type(error), str(error)) == (RuntimeError, "SystemExit: 1")
    assert treated_and_error(threading.Thread, range(1), TWO)[1].__notes__ == ["test: 0"]  # type: ignore[arg-type]
    assert [*map_graphs(even, [2], TWO, "test")] == [2], "the workers are alive"


def test_the_work_of_a_dead_worker_is_repeated_and_a_graph_that_always_ends_it_is_named(tmp_path: Path) -> None:
    function = partial(die, folder=tmp_path, deadly={2, 5}, deaths=1)
    assert [*map_graphs(function, range(60), compute_config(workers=2, retries=2), "test")] == [*range(60)]
    assert len([*tmp_path.iterdir()]) < 120, "results before a death are kept"
    function = partial(die, folder=tmp_path, deadly={2}, deaths=99)
    treated, error = treated_and_error(function, range(8), compute_config(workers=2, retries=0))
    assert treated == [0, 1, 3, 4, 5, 6, 7]
    assert isinstance(error, ComputeError)
    assert str(error).startswith("test: 2: its worker died, EXIT(3); if memory ran out")


def test_a_lack_of_memory_is_one_line() -> None:
    _, error = treated_and_error(be_killed, range(1, 2), compute_config(workers=1, retries=0))  # type: ignore[arg-type]
    assert "test: 1: its worker died, SIGKILL(-9)" in str(error)
    _, error = treated_and_error(partial(fail, error=MemoryError), range(1, 2), SERIAL)
    assert (type(error), str(error).partition(";")[0]) == (ComputeError, "test: 1: memory ran out")


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -getattr(signal, name)
    assert len(set(done.stdout.split())) == 2


def _digests(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): sha256_file(path) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("address", ["layout:synthetic:random", "tile:synthetic"])
def test_any_number_of_workers_writes_the_same_bytes(
    address: str, tiny_collections: Path, tmp_path: Path, settings: Settings
) -> None:
    collection, config = Collection.parse(address), settings()
    for workers in (0, 3):
        compute, root = compute_config(workers=workers) if workers else SERIAL, tmp_path / str(workers)
        featurize_collection(tiny_collections / "raw", collection, config.featurize, root / "features", compute)
        partition_collection(root / "features", config.partition, root / "segments", compute)
    assert len(_digests(tmp_path / "0")) > 30
    assert _digests(tmp_path / "0") == _digests(tmp_path / "3")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a Ray cluster of one node with two CPUs, and a token."""
    for name, value in {"MODE": "token", "TOKEN": secrets.token_hex(32)}.items():
        monkeypatch.setenv(f"RAY_AUTH_{name}", value)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"]
    ray += ["--node-ip-address=127.0.0.1", "--num-cpus=2", "--include-dashboard=false"]
    ray += ['--resources={"hlorank_measure": 1}']
    with TemporaryDirectory(prefix="ray", dir="/tmp") as root:  # sockets are in it, and their paths are limited
        for _ in range(5):  # Ray gives up after 30 seconds, which are few on a busy machine
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
            command = [*ray, f"--port={port}", f"--temp-dir={root}"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as node:
                assert node.stdout is not None
                if not any("Ray runtime started" in line for line in node.stdout):
                    continue
                yield f"127.0.0.1:{port}"
                processes = [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]
                for process in processes:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                psutil.wait_procs(processes, timeout=30)
                return
        pytest.fail("Ray does not start")


ON_RAY = """
import sys
from functools import partial
from pathlib import Path
from hlorank.compute import SERIAL, map_graphs
from hlorank.config import FeaturizeConfig
from hlorank.data.collection import Collection
from hlorank.featurize.featurize_collection import featurize_collection
from tests.sections import compute_config
from tests.worker_functions import die, even, fail, full_disk, process_of, treated_and_error

address, raw, featurize = sys.argv[1:]
config = compute_config(form="ray", address=address, workers="auto", retries=1)
folder = Path("deaths")
results = list(map_graphs(process_of, range(40), config, "test", outputs=[folder]))
assert [item for item, _, _ in results] == [*range(40)] and not [*folder.glob(".shared.*")]
assert {threads for _, _, threads in results} == {"1"}
once = partial(die, folder=folder, deadly={2, 5}, deaths=1)
assert list(map_graphs(once, range(8), config, "test")) == [*range(8)]
assert len([*folder.iterdir()]) == 10
for name, compute in (("here", SERIAL), ("there", config)):
    collection, settings = Collection.parse("layout:synthetic:random"), FeaturizeConfig.model_validate_json(featurize)
    featurize_collection(Path(raw), collection, settings, Path(name), compute)
for function, items in [(partial(die, folder=folder, deadly={9}, deaths=9), range(8, 11)), (even, range(3)),
                        (partial(fail, error=full_disk), range(1, 100))]:
    treated, error = treated_and_error(function, items, config)
    print(treated, type(error).__name__, str(error)[:40], sep="|")
print(treated_and_error(even, range(2), config.model_copy(update={"cpus": 64}))[1])
print(*map_graphs(even, [2], config, "test", resources={"hlorank_measure": 1}))
"""


@pytest.mark.slow
def test_nodes_of_a_ray_cluster_do_and_report_what_one_process_does(
    cluster: str, tiny_collections: Path, linear_model: Callable[..., Path], settings: Settings, tmp_path: Path
) -> None:
    def shown(*command: str) -> str:
        done = subprocess.run([sys.executable, "-c", *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed = shown(ON_RAY, cluster, str(tiny_collections / "raw"), settings().featurize.model_dump_json())
    died, failed, full, refused, measured = [line for line in printed.splitlines() if "(raylet)" not in line]
    assert died.startswith("[8, 10]|ComputeError|test: 9: its worker died, WorkerCrashed")
    assert failed == "[0, 2]|DataError|a.npz: item: expected an even number, fo"
    assert full == "[]|OSError|[Errno 28] No space left on device: '1'"
    assert refused == "compute=ray: no node of the cluster has what a task takes: CPU 64; see `ray status`"
    assert measured == "2"
    assert _digests(tmp_path / "here") == _digests(tmp_path / "there")
    files = map(str, sorted((tiny_collections / "raw/layout/synthetic/random").rglob("*.npz")))
    main = "import sys; from hlorank.cli.main import main; sys.exit(main())"
    rank = [main, "rank", f"--model={linear_model()}", "--json", *files]
    assert shown(*rank) == shown(*rank, f"--ray={cluster}")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere:port"])
def test_an_address_without_a_cluster_is_refused_at_once_and_a_missing_extra_is_named(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=rf"^compute\.address={address}: no Ray cluster answers: .*ray start"):
        list(map_graphs(even, [2], compute_config(form="ray", address=address), "test"))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Ray is not installed; pip install .*ray"):
        list(map_graphs(even, [2], compute_config(form="ray", address="auto"), "test"))
