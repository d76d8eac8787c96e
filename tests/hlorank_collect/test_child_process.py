"""Supervision of child processes that only simulate measuring."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hlorank_collect import child_process
from hlorank_collect.child_process import Outcome
from hlorank_collect.task import LayoutTask, Progress
from tests.hlorank_collect.tasks import small_task

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
    return {{"left_out": task.left_out, "core": os.sched_getaffinity(0)}}
"""
Run = Callable[..., Outcome]


@pytest.fixture
def task() -> LayoutTask:
    return small_task(LayoutTask, program="p", collection="layout:cpu:random", output="out", time_limit=10.0)


@pytest.fixture
def run(task: LayoutTask, user_module: Callable[[str, str], Path]) -> Run:
    """Supervises a child process of a body."""

    def supervised(
        body: str, hang_seconds: float = 60, progress: Callable[[Progress], None] = lambda _: None
    ) -> Outcome:
        folder = user_module("simulated", WORK.format(body=body.replace("\n", "\n    ")))
        sys.path.insert(0, str(folder))
        return child_process.supervise(task, hang_seconds=hang_seconds, progress=progress, work="simulated:work")

    return supervised


def test_a_result_and_the_steps_to_it_arrive(run: Run) -> None:
    steps: list[Progress] = []
    outcome = run("at('compile', 'c0'); at('measure')", progress=steps.append)
    assert outcome.about is not None
    assert outcome.about["left_out"] == {}
    assert outcome.reason == ""
    assert steps == [Progress("trace", None, 0.5), Progress("compile", "c0", 0.5), Progress("measure", None, 0.5)]


def test_a_skipped_program_has_its_reason(run: Run) -> None:
    assert run("raise SkippedError('no dots')") == Outcome(None, "no dots")


def test_a_configuration_that_hangs_is_killed_and_left_out(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    outcome = run("if not task.left_out:\n  at('compile', 'bad')\n  time.sleep(600)", hang_seconds=12)
    assert outcome.about is not None
    assert list(outcome.about["left_out"]) == ["bad"]
    (message,) = caplog.messages
    assert all(part in message for part in ("p: ", " bad: ", "12 s"))


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
    ],
)
def test_a_configuration_that_kills_its_process_is_left_out(run: Run, death: str, reason: str) -> None:
    outcome = run(f"if not task.left_out:\n  at('compile', 'bad')\n  {death}")
    assert outcome.about is not None
    assert outcome.about["left_out"] == {"bad": reason}


def test_a_crash_outside_of_any_configuration_ends_the_program(run: Run) -> None:
    outcome = run("time.sleep(600)", hang_seconds=12)
    assert outcome.about is None
    assert all(part in outcome.reason for part in ("trace", "12 s", "--hang-seconds"))
    outcome = run("at('compile', 'c0'); at('measure'); os.abort()")
    assert outcome.about is None
    assert all(part in outcome.reason for part in ("measure", "SIGABRT"))


def test_a_program_that_crashes_again_and_again_is_left_out(run: Run, caplog: pytest.LogCaptureFixture) -> None:
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
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_child_ends_after_its_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "simulated.py").write_text(WORK.format(body="while True: at('compile'); time.sleep(0.1)"))
    code = (
        "from hlorank_collect import child_process\nfrom tests.hlorank_collect.tasks import small_task\n"
        "from hlorank_collect.task import LayoutTask\nimport multiprocessing, os, signal\n"
        "task = small_task(LayoutTask, program='p', collection='layout:cpu:random', output='out')\n"
        "def progress(step):\n"
        "    print(multiprocessing.active_children()[0].pid, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    child_process.supervise(task, hang_seconds=60, progress=progress, work='simulated:work')\n"
    )
    (tmp_path / "parent.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    command = [sys.executable, str(tmp_path / "parent.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    pid = int(done.stdout)
    for _ in range(600):
        if not _runs(pid):
            break
        time.sleep(0.1)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # an orphan that nothing waits for


def test_the_environment_keeps_xla_to_one_thread_and_the_users_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/x")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    cpu, gpu = child_process.environment("cpu"), child_process.environment("gpu")
    flags = "--xla_dump_to=/x --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    assert (cpu["XLA_FLAGS"], cpu["JAX_PLATFORMS"], cpu["PATH"]) == (flags, "cpu", os.environ["PATH"])
    assert gpu["XLA_FLAGS"] == "--xla_dump_to=/x --xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
    assert "JAX_PLATFORMS" not in gpu


def test_the_real_child_skips_what_hangs_or_does_not_exist(
    task: LayoutTask, user_module: Callable[[str, str], Path]
) -> None:
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    user_module("hanging", "import time\ndef hangs(x):\n    time.sleep(600)\n")
    core = min(os.sched_getaffinity(0))
    task = dataclasses.replace(task, program="hanging:hangs", arguments="f32[2]", core=core)
    outcome = child_process.supervise(task, hang_seconds=15)
    assert outcome.about is None
    assert all(part in outcome.reason for part in ("trace", "15 s"))
    outcome = child_process.supervise(dataclasses.replace(task, program="hanging:missing"), hang_seconds=60)
    assert "missing" in outcome.reason
