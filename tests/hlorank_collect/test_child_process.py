"""Supervision of child processes that only simulate measuring."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hlorank_collect import child_process
from hlorank_collect.child_process import Outcome
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
TASK = small_task(LayoutTask, program="p", collection="layout:cpu:random", output="out", core=CORE)
Run = Callable[..., Outcome]


@pytest.fixture
def run(user_module: Callable[[str, str], Path]) -> Run:
    """Supervises a child process of a body."""

    def supervised(body: str, hang_seconds: float = 60, progress: Callable[[Progress], None] = silent) -> Outcome:
        folder = user_module("simulated", WORK.format(body=body.replace("\n", "\n    ")))
        sys.path.insert(0, str(folder))
        return child_process.supervise(TASK, hang_seconds=hang_seconds, progress=progress, work="simulated:work")

    return supervised


def test_a_result_or_a_reason_and_the_steps_to_it_arrive(run: Run) -> None:
    steps: list[Progress] = []
    body = "at('compile', 'c0'); at(str(os.sched_getaffinity(0)))"
    assert run(body, progress=steps.append) == Outcome({"left_out": {}})
    assert [(step.stage, step.configuration) for step in steps] == [
        ("trace", None), ("compile", "c0"), (f"{{{CORE}}}", None),
    ]  # fmt: skip
    assert run("raise SkippedError('no dots')") == Outcome(None, "no dots")


@pytest.mark.parametrize(
    ("death", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process was ended by SIGKILL (out of memory?)"),
        (
            "print('F12 a.h:3] Check failed: x\\n*** stack ***', file=sys.stderr); sys.stderr.flush(); os.abort()",
            "the process was ended by SIGABRT: F12 a.h:3] Check failed: x",
        ),
        ("raise MemoryError('no more')", "MemoryError: no more"),
        ("os._exit(3)", "the process ended with status 3"),
        ("time.sleep(600)", "no progress for 12 s (--hang-seconds): it is slow, or a loop in it never ends"),
    ],
)
def test_a_configuration_that_ends_or_hangs_its_process_is_left_out(run: Run, death: str, reason: str) -> None:
    outcome = run(
        f"if not task.left_out:\n  at('compile', 'bad')\n  {death}", hang_seconds=12 if "sleep" in death else 60
    )
    assert outcome == Outcome({"left_out": {"bad": reason}})


def test_a_crash_outside_of_any_configuration_or_in_many_ends_the_program(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = run("at('compile', 'c0'); at('measure'); os.abort()")
    assert outcome == Outcome(None, "in stage measure: the process was ended by SIGABRT")
    outcome = run("at('compile', f'c{len(task.left_out)}'); os.abort()")
    assert outcome.about is None
    assert "in 4 configurations" in outcome.reason
    assert [message.split(": ")[1][-2:] for message in caplog.messages] == ["c0", "c1", "c2", "c3"]


def test_no_child_outlives_an_interrupted_parent(run: Run) -> None:
    pids: list[int] = []

    def interrupted(step: Progress) -> None:
        if step.stage != "trace":
            pids.append(int(step.stage))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("at(str(os.getpid())); time.sleep(600)", progress=interrupted)
    assert not psutil.pid_exists(pids[0])


def test_a_child_ends_after_its_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "simulated.py").write_text(WORK.format(body="while True: at('compile'); time.sleep(0.1)"))
    (tmp_path / "parent.py").write_text(
        "import multiprocessing, os, signal\n"
        "from hlorank_collect import child_process\nfrom tests.hlorank_collect.test_child_process import TASK\n"
        "def progress(step):\n"
        "    print(multiprocessing.active_children()[0].pid, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    child_process.supervise(TASK, hang_seconds=60, progress=progress, work='simulated:work')\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    command = [sys.executable, str(tmp_path / "parent.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    for _ in range(600):
        try:
            ended = psutil.Process(int(done.stdout)).status() == psutil.STATUS_ZOMBIE  # nothing waits for an orphan
        except psutil.NoSuchProcess:
            break
        if ended:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the child still runs")


def test_the_environment_keeps_xla_to_one_thread_and_the_users_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/x")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    cpu, gpu = child_process.environment("cpu"), child_process.environment("gpu")
    flags = "--xla_dump_to=/x --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    assert (cpu["XLA_FLAGS"], cpu["JAX_PLATFORMS"], cpu["PATH"]) == (flags, "cpu", os.environ["PATH"])
    assert gpu["XLA_FLAGS"] == "--xla_dump_to=/x --xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
    assert "JAX_PLATFORMS" not in gpu
