"""Execution of tasks: child processes that only simulate measuring, what is measured again, and what is left out."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from hlorank.config import ConfigError
from hlorank.files import read_json, write_json
from hlorank_collect import child_process, program, task
from hlorank_collect.child_process import Outcome
from hlorank_collect.run_tasks import run_tasks
from hlorank_collect.task import LayoutTask, Progress
from tests.hlorank_collect.tasks import silent, small_task

WORK = """
import os, signal, sys, time
from hlorank_collect.program import SkippedError
from hlorank_collect.task import Progress

def work(task, report):
    def at(stage, configuration=None):
        report(Progress(stage, configuration, 0.5))
    at("trace")
    print("output of the user's program")
    {body}
    return {{"left_out": task.left_out}}
"""
CORE = min(os.sched_getaffinity(0))


class Simulated(LayoutTask):
    work = "simulated:work"


TASK = small_task(Simulated, program="p", collection="layout:cpu:random", output="out", core=CORE)
Run = Callable[..., Outcome]


@pytest.fixture
def run(user_module: Callable[[str, str], Path]) -> Run:
    """Supervises a child process of a body."""

    def supervised(body: str, hang_seconds: float = 60, progress: Callable[[Progress], None] = silent) -> Outcome:
        folder = user_module("simulated", WORK.format(body=body.replace("\n", "\n    ")))
        sys.path.insert(0, str(folder))
        return child_process.supervise(TASK, hang_seconds=hang_seconds, progress=progress)

    return supervised


@pytest.mark.parametrize("hang", ["while True: pass", "time.sleep(600)"])
def test_a_hang_costs_one_configuration_and_the_steps_and_the_result_arrive(
    run: Run, hang: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "_ASLEEP", 2)
    steps: list[Progress] = []
    body = f"if not task.left_out:\n  at('compile', 'bad')\n  {hang}\nat(str(os.sched_getaffinity(0)))"
    reason = "no progress in 10 s of CPU time (--hang-seconds): it is slow, or a loop in it never ends"
    assert run(body, hang_seconds=10, progress=steps.append) == Outcome({"left_out": {"bad": reason}})
    assert [(step.stage, step.configuration) for step in steps] == [
        ("trace", None), ("compile", "bad"), ("trace", None), (f"{{{CORE}}}", None),
    ]  # fmt: skip
    assert run("raise SkippedError('no dots')") == Outcome(None, "no dots")


DEATHS = {
    "os.kill(os.getpid(), signal.SIGKILL)": "the process was ended by SIGKILL (out of memory?)",
    "sys.stderr.write('F12 a.h:3] Check failed: x\\n*** stack ***\\n'); sys.stderr.flush(); os.abort()":
        "the process was ended by SIGABRT: F12 a.h:3] Check failed: x",
    "raise MemoryError('no more')": "MemoryError: no more",
    "os._exit(3)": "the process ended with status 3",
}  # fmt: skip


def test_each_death_is_named_and_one_outside_of_any_configuration_or_many_end_the_program(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    deaths = "".join(f"if len(task.left_out) == {number}:\n  {death}\n" for number, death in enumerate(DEATHS))
    outcome = run(f"at('compile', f'c{{len(task.left_out)}}')\n{deaths}")
    assert outcome.about is None
    assert "in 4 configurations" in outcome.reason
    assert [message.rpartition(" configuration ")[2] for message in caplog.messages] == [
        f"c{number}: {reason}" for number, reason in enumerate(DEATHS.values())
    ]
    outcome = run("at('compile', 'c0'); at('measure'); os.abort()")
    assert outcome == Outcome(None, "in stage measure: the process was ended by SIGABRT")
    outcome = run("from hlorank_collect.machine import limit_cpu\nlimit_cpu(0.1)\nwhile True: pass")
    assert outcome == Outcome(None, "in stage trace: the process was ended by SIGXCPU")


class Deadly(LayoutTask):
    """A task that ends the process that reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


def test_a_child_that_ends_before_its_work_is_named() -> None:
    outcome = child_process.supervise(small_task(Deadly, **vars(TASK)), hang_seconds=60)
    assert outcome == Outcome(None, "in stage start: the process ended with status 3")


def test_no_child_outlives_an_interrupted_parent(run: Run) -> None:
    pids: list[int] = []

    def interrupted(step: Progress) -> None:
        if step.stage != "trace":
            pids.append(int(step.stage))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("at(str(os.getpid())); time.sleep(600)", progress=interrupted)
    assert not psutil.pid_exists(pids[0])


def parent(folder: Path, body: str, ending: str, call: str) -> tuple[int, list[int]]:
    """Return the status of a process that ends itself in configuration a of its child, and the ids of its children."""
    (folder / "simulated.py").write_text(WORK.format(body=body))
    (folder / "parent.py").write_text(
        "import multiprocessing, os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background ignores it
        "from hlorank_collect import child_process, run_tasks\nfrom tests.hlorank_collect.test_run_tasks import TASK\n"
        "def progress(step):\n"
        "    if step.configuration is not None:\n"
        "        print(multiprocessing.active_children()[0].pid, flush=True)\n"
        f"    if step.configuration == 'a':\n        {ending}\n"
        "def measure(_=None):\n"
        "    child_process.supervise(TASK, hang_seconds=60, progress=progress)\n"
        f"if __name__ == '__main__':\n    {call}\n"
    )
    root, command = Path(__file__).parents[2], [sys.executable, str(folder / "parent.py")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [folder, root, root / "src"]))}
    done = subprocess.run(command, capture_output=True, check=False, env=env, start_new_session=True, timeout=200)
    return done.returncode, [*map(int, done.stdout.split())]


def test_a_child_ends_after_its_killed_parent(tmp_path: Path) -> None:
    body, ending = "while True: at('compile', 'a'); time.sleep(0.1)", "os.kill(os.getpid(), signal.SIGKILL)"
    _, pids = parent(tmp_path, body, ending, "measure()")
    children = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    for _ in range(600):
        with suppress(psutil.NoSuchProcess):  # between two calls
            children = [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.1 * bool(children))
    assert children == []


def test_ctrl_c_ends_estimates(tmp_path: Path) -> None:
    body = "at('compile', 'b' if task.left_out else 'a'); time.sleep(600)"
    status, (pid,) = parent(tmp_path, body, "os.killpg(0, signal.SIGINT)", "[*run_tasks.in_threads(measure, [TASK])]")
    assert (status, psutil.pid_exists(pid)) == (-signal.SIGINT, False)


def test_the_environment_keeps_xla_to_one_thread_and_the_users_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/x")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    cpu, gpu = child_process.environment("cpu"), child_process.environment("gpu")
    flags = "--xla_dump_to=/x --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    assert (cpu["XLA_FLAGS"], cpu["JAX_PLATFORMS"], cpu["PATH"]) == (flags, "cpu", os.environ["PATH"])
    assert gpu["XLA_FLAGS"] == "--xla_dump_to=/x --xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
    assert "JAX_PLATFORMS" not in gpu


ABOUT: dict[str, Any] = {
    "measured": 8,
    "rounds": 30,
    "split_half_tau": 0.912,
    "noise_ceiling": 0.951,
    "runtime_ns": {"default": 110, "best": 100, "worst": 150},
    "left_out": {"x": "why"},
    "seconds": {"compile": 3.2, "measure": 1.4},
}
EFFECTS = {"bad": "it has side effects"}
Make = Callable[[str], LayoutTask]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes tasks of programs that need no jax; the program `nobody` does not exist."""

    def named(name: str, arguments: str | None) -> program.JaxProgram:
        if name == "nobody":
            raise ConfigError("program 'nobody': no such file")
        return program.JaxProgram(name, "family", lambda: (abs, ()))

    monkeypatch.setattr(task, "user_program", named)
    monkeypatch.setattr(task, "version", lambda package: "1.0")
    return lambda name: small_task(
        LayoutTask, program=name, collection="layout:cpu:random", output=str(tmp_path), time_limit=10.0
    )


def measures(one: LayoutTask, *, hang_seconds: float, progress: Callable[[Progress], None]) -> Outcome:
    """Write the files without measuring; the program `bad` cannot be measured."""
    progress(Progress("compile", "c", 0.25))
    assert (hang_seconds, one.core) == (7, 0 if one.seed else max(os.sched_getaffinity(0)))
    if one.program == "bad":
        return Outcome(None, EFFECTS["bad"])
    npz = one.npz(one.program)
    npz.parent.mkdir(parents=True, exist_ok=True)
    npz.touch()
    write_json(npz.with_name(f"{one.program}.json"), {"fingerprint": one.fingerprint})
    return Outcome(ABOUT)


def collect(tasks: list[LayoutTask], lines: list[str] | None = None, **arguments: Any) -> dict[str, str]:
    echo = (lines if lines is not None else []).append
    given = {"check_machine": lambda: None, "supervise": measures, **arguments}
    return run_tasks(tasks, hang_seconds=7, echo=echo, **given)


def test_programs_are_measured_once_and_one_that_cannot_be_does_not_affect_the_others(make: Make) -> None:
    lines: list[str] = []
    assert collect([make(name) for name in ("a.b", "bad", "c")], lines) == EFFECTS
    assert lines[:2] == [
        "[1/3, 0:00:00 left] a.b: 8 configurations, 30 rounds, split-half tau 0.91 (ceiling 0.95), max / min 1.50, "
        "default / best 1.10, 1 left out, 5 s",
        "[2/3, 0:00:00 left] bad: left out: it has side effects",
    ]
    lines.clear()
    assert collect([make("a.b"), make("c")], lines, check_machine=None, supervise=pytest.fail) == {}
    assert lines == ["measured already: 2 programs"]
    changed = [
        dataclasses.replace(make("a.b"), seed=1, core=0),
        dataclasses.replace(make("c"), time_limit=99.0, core=0),
    ]
    lines.clear()
    assert collect([*changed, make("d")], lines) == {}
    assert [line.split(": ")[0].partition("] ")[2] for line in lines] == ["", "a.b", "d"]


def test_each_program_is_recorded_with_the_reason_why_it_was_left_out_if_any(make: Make) -> None:
    recorded = dict[str, str | None]()
    collect([make("a"), make("bad")], record=recorded.__setitem__)
    assert recorded == {"a": None, **EFFECTS}
    recorded.clear()
    collect([make("a")], record=recorded.__setitem__)  # measured before
    collect([make("bad")], record=recorded.__setitem__, supervise=lambda *_, **__: Outcome(ABOUT))
    assert recorded == {"a": None, "bad": None}


def test_unknown_programs_and_a_busy_machine_are_refused_before_anything_is_measured(make: Make) -> None:
    busy = Mock(side_effect=ConfigError("the machine is busy"))
    for names, match in ((["a", "nobody"], "nobody"), (["a", "a"], r"\ba\b.*\ba\b"), (["a"], "busy")):
        with pytest.raises(ConfigError, match=match):
            collect([make(name) for name in names], check_machine=busy, supervise=pytest.fail)


def test_the_sample_that_was_measured_before_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Path(__file__).parents[2] / "data" / "sample"
    files = sorted((sample / "layout").rglob("*.json"))
    assert files
    for path in files:
        about = read_json(path)
        monkeypatch.setattr(task, "version", about["versions"].get)
        names = ("program", "collection", "configurations", "seed")
        fields = {name: about[name] for name in names}
        assert small_task(LayoutTask, output=str(sample), **fields, rounds=100).is_complete(about["name"])
