"""Worker processes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from hlorank.compute.workers import Workers
from hlorank.config import import_plugin
from hlorank.files import DataError


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module that worker processes can import by its name."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return importlib.import_module("worker_tasks")


@pytest.mark.parametrize("count", [1, 2])
def test_results_keep_their_order(tasks: ModuleType, count: int) -> None:
    with Workers(count) as workers:
        results = list(workers.map(tasks.process_of, range(20), "test"))
        assert list(workers.map(tasks.process_of, [], "test")) == []
    assert [item for item, _ in results] == list(range(20))
    assert all((process == os.getpid()) == (count == 1) for _, process in results)


def test_workers_have_the_plugins_of_their_parent(tasks: ModuleType, make_plugin: Callable[[str, str], None]) -> None:
    make_plugin("mine", "")
    import_plugin("mine")
    with Workers(2) as workers:
        assert list(workers.map(tasks.plugins_of, range(2), "test")) == [("mine",)] * 2


@pytest.mark.parametrize("count", [1, 2])
def test_all_bad_items_are_named_and_the_others_finished(tasks: ModuleType, count: int) -> None:
    treated: list[int] = []
    with Workers(count) as workers, pytest.raises(ExceptionGroup) as caught:
        treated.extend(workers.map(partial(tasks.even, file=Path("a.npz")), [0, 1, 2, 3, 4], "test"))
    assert [*map(str, caught.value.exceptions)] == [
        "a.npz: item: expected an even number, found 1",
        "a.npz: item: expected an even number, found 3",
    ]
    assert treated == [0, 2, 4]


def test_one_bad_item_is_the_error_itself(tasks: ModuleType) -> None:
    with Workers(2) as workers, pytest.raises(DataError, match=r"^a.npz: item: .*\b1$"):
        list(workers.map(partial(tasks.even, file=Path("a.npz")), [0, 1, 2], "test"))


def test_other_errors_name_the_item() -> None:
    with Workers(1) as workers, pytest.raises(ZeroDivisionError) as caught:
        list(workers.map(lambda item: 1 // item, [1, 0], "test"))
    assert caught.value.__notes__ == ["test: 0"]


def test_a_dead_worker_is_an_error(tasks: ModuleType) -> None:
    with Workers(2) as workers, pytest.raises(RuntimeError, match=r"^test: "):
        list(workers.map(tasks.die_at_2, range(20), "test"))


def test_few_items_are_in_progress_at_a_time() -> None:
    begun: list[int] = []
    with Workers(1) as workers:
        next(workers.map(begun.append, range(100), "test"))
    assert begun == [0]


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal, time\n"
        "from hlorank.compute.workers import Workers\n"
        "def work(item):\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(0.1)\n"
        "    if item == 5:\n"
        "        os.kill(os.getppid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    with Workers(2) as workers:\n"
        "        list(workers.map(work, range(100), 'test'))\n"
    )
    # The output ends only when the last worker has closed it.
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == -9
    assert str(os.getpid()) not in done.stdout.split()
