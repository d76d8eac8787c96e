"""Map over graphs: order, failures, deaths of workers, and the same bytes in every form."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from hlorank.compute.graph_map import SERIAL, ComputeError, GraphMap, SerialPool, open_graph_map
from hlorank.config import ConfigError, FeaturizeConfig, PartitionConfig, import_plugin
from hlorank.data.collection import Collection
from hlorank.featurize.featurize_collection import featurize_collection
from hlorank.files import DataError, sha256_file
from hlorank.partition.partition_collection import partition_collection
from tests.conftest import Settings
from tests.sections import compute_config

FORMS = {"serial": compute_config(form="serial"), "processes": compute_config(workers=2)}


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module that worker processes can import by its name."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return importlib.import_module("worker_tasks")


@pytest.mark.parametrize("form", FORMS)
def test_results_keep_their_order(tasks: ModuleType, form: str) -> None:
    with open_graph_map(FORMS[form]) as compute:
        results = list(compute.map(tasks.process_of, range(20), "test"))
        assert list(compute.map(tasks.process_of, [], "test")) == []
    assert [item for item, _ in results] == list(range(20))
    assert all((process == os.getpid()) == (form == "serial") for _, process in results)


def test_a_long_first_item_does_not_hold_up_the_others(tasks: ModuleType, tmp_path: Path) -> None:
    with open_graph_map(FORMS["processes"]) as compute:
        assert all(compute.map(partial(tasks.wait_for_the_last, tmp_path, 36), range(36), "test"))


def test_workers_are_kept_for_the_next_map(tasks: ModuleType) -> None:
    with open_graph_map(FORMS["processes"]) as compute:
        used = {process for _ in range(2) for _, process in compute.map(tasks.process_of, range(30), "test")}
    assert len(used) <= 2


def test_workers_have_the_plugins_of_their_parent(tasks: ModuleType, make_plugin: Callable[[str, str], None]) -> None:
    make_plugin("mine", "")
    import_plugin("mine")
    with open_graph_map(FORMS["processes"]) as compute:
        assert list(compute.map(tasks.plugins_of, range(2), "test")) == [("mine",)] * 2


@pytest.mark.parametrize("form", FORMS)
def test_all_bad_items_are_named_and_the_others_finished(tasks: ModuleType, form: str) -> None:
    treated: list[int] = []
    with open_graph_map(FORMS[form]) as compute, pytest.raises(ExceptionGroup) as caught:
        treated.extend(compute.map(partial(tasks.even, file=Path("a.npz")), [0, 1, 2, 3, 4], "test"))
    assert [*map(str, caught.value.exceptions)] == [
        "a.npz: item: expected an even number, found 1",
        "a.npz: item: expected an even number, found 3",
    ]
    assert treated == [0, 2, 4]


def test_one_bad_item_is_the_error_itself(tasks: ModuleType) -> None:
    with open_graph_map(FORMS["processes"]) as compute, pytest.raises(DataError, match=r"^a.npz: item: .*\b1$"):
        list(compute.map(partial(tasks.even, file=Path("a.npz")), [0, 1, 2], "test"))


@pytest.mark.parametrize("form", FORMS)
def test_unexpected_errors_name_the_item_and_have_the_traceback(tasks: ModuleType, form: str) -> None:
    treated: list[float] = []
    items = [("train", Path("a"), 1), ("valid", Path("raw/b.npz"), 0), ("test", Path("c"), 2)]
    with open_graph_map(FORMS[form]) as compute, pytest.raises(ZeroDivisionError) as caught:
        treated.extend(compute.map(tasks.inverse, items, "test"))
    assert treated == [1, 0.5]
    notes = caught.value.__notes__
    assert notes[-1] == "test: valid/b"
    assert form == "serial" or "in inverse" in notes[0]


def test_a_configuration_error_ends_the_work_at_once(tasks: ModuleType) -> None:
    with open_graph_map(FORMS["processes"]) as compute, pytest.raises(ConfigError, match="no such thing"):
        list(compute.map(tasks.misconfigured, range(1000), "test"))


@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk_ends_the_work_at_once(tasks: ModuleType, form: str) -> None:
    with open_graph_map(FORMS[form]) as compute, pytest.raises(OSError, match=r"No space left on device: '1'"):
        list(compute.map(tasks.fill_disk, range(1, 100), "test"))


def test_what_cannot_be_pickled_is_an_error(tasks: ModuleType) -> None:
    with open_graph_map(FORMS["processes"]) as compute:
        with pytest.raises((AttributeError, TypeError), match="pickle"):
            list(compute.map(lambda item: item, [1], "test"))
        with pytest.raises(RuntimeError, match="pickle"):
            list(compute.map(tasks.unpicklable, [1], "test"))
        assert list(compute.map(tasks.even_number, [2], "test")) == [2]


def test_the_work_of_a_dead_worker_is_done_again_and_no_other(tasks: ModuleType, tmp_path: Path) -> None:
    with open_graph_map(compute_config(workers=2, retries=1)) as compute:
        results = list(compute.map(partial(tasks.die_once, folder=tmp_path, deadly={2, 5}), range(12), "test"))
    assert results == list(range(12))
    runs = {item: len([*tmp_path.glob(f"{item}.*")]) for item in range(12)}
    assert runs == {item: 2 if item in {2, 5} else 1 for item in range(12)}


@pytest.mark.parametrize("retries", [0, 2])
def test_work_that_always_ends_its_worker_is_named(tasks: ModuleType, retries: int) -> None:
    treated: list[int] = []
    with open_graph_map(compute_config(workers=2, retries=retries)) as compute, pytest.raises(ComputeError) as caught:
        treated.extend(compute.map(tasks.die_at_2, range(8), "test"))
    assert treated == [0, 1, 3, 4, 5, 6, 7]
    attempts = " (attempt 3)" if retries else ""
    assert str(caught.value) == (
        f"test: 2: its worker process ended with status 3{attempts}; if memory ran out, set compute.workers lower"
    )


def test_a_killed_worker_may_have_run_out_of_memory(tasks: ModuleType) -> None:
    config = compute_config(workers=1, retries=0)
    with open_graph_map(config) as compute, pytest.raises(ComputeError, match=r"^test: 1: .*SIGKILL.*memory.*workers"):
        list(compute.map(tasks.be_killed, [1], "test"))


def test_memory_that_runs_out_is_one_line(tasks: ModuleType) -> None:
    with pytest.raises(ComputeError, match=r"^test: 1: memory ran out$"):
        list(SERIAL.map(tasks.exhaust, [1], "test"))


def test_few_items_are_in_progress_at_a_time() -> None:
    begun: list[int] = []
    next(SERIAL.map(begun.append, range(100), "test"))
    assert begun == [0]


def test_the_number_of_workers_may_fall() -> None:
    class Shrinking(SerialPool):
        @property
        def capacity(self) -> int:  # type: ignore[override]
            return 4 if not begun else 1

    begun: list[int] = []

    def begin(item: int) -> int:
        begun.append(item)
        return item

    assert list(GraphMap(Shrinking(), 0).map(begin, range(6), "test")) == [*range(6)]


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from hlorank.compute.graph_map import open_graph_map
from hlorank.config import ComputeConfig

def work(item):
    os.write(1, f"{os.getpid()}\\n".encode())
    folder = Path(__file__).parent
    (folder / str(item)).touch()
    while item == 0 and not (folder / "1").exists():  # so that both workers have begun
        time.sleep(0.01)
    time.sleep(0.1)
    if item == 5:
        os.kill(os.getppid(), getattr(signal, sys.argv[1]))
        time.sleep(3600 if sys.argv[1] == "SIGINT" else 0.1)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    with open_graph_map(ComputeConfig(**eval(sys.argv[2]))) as compute:
        list(compute.map(work, range(100), "test"))
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_workers_end_with_an_ended_parent(tmp_path: Path, name: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), name, repr(compute_config(workers=2).model_dump())]
    # The output ends only when the last worker has closed it.
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -getattr(signal, name)
    assert len(set(done.stdout.split())) == 2
    assert done.stderr.count("Traceback") == (name == "SIGINT"), "that of the parent"


def _digests(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): sha256_file(path) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("address", ["layout:synthetic:random", "tile:synthetic"])
@pytest.mark.parametrize("workers", [1, 3])
def test_every_form_writes_the_same_bytes(
    tiny_collections: Path, tmp_path: Path, settings: Settings, address: str, workers: int
) -> None:
    collection, config = Collection.parse(address), settings()
    with open_graph_map(compute_config(workers=workers)) as compute:
        for name, use in (("serial", SERIAL), ("other", compute)):
            _prepare(tiny_collections / "raw", collection, config.featurize, config.partition, tmp_path / name, use)
    digests = _digests(tmp_path / "serial")
    assert len(digests) > 30
    assert _digests(tmp_path / "other") == digests


def _prepare(
    raw: Path, collection: Collection, featurize: FeaturizeConfig, partition: PartitionConfig, root: Path, use: GraphMap
) -> None:
    featurize_collection(raw, collection, featurize, root / "features", use)
    partition_collection(root / "features", partition, root / "segments", use)
