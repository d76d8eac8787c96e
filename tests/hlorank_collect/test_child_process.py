"""Supervision of child processes that only simulate measuring."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hlorank_collect import child_process
from hlorank_collect.task import LayoutTask, Progress
from tests.hlorank_collect.tasks import small_task

CHILD = """
import json, os, signal, sys, time
task = json.load(sys.stdin)
events = os.fdopen(int(sys.argv[1]), "w", buffering=1)
def send(**event):
    events.write(json.dumps(event) + "\\n")
def at(stage, configuration=None):
    send(progress={"stage": stage, "configuration": configuration, "share": 0.5})
at("trace")
print("output of the user's program")
%s
send(done={"left_out": task["left_out"], "pid": os.getpid()})
"""
WORSE_AND_WORSE = """
name = f"c{len(task['left_out'])}"
at("compile", name)
os.abort()
"""


@pytest.fixture
def task() -> LayoutTask:
    return small_task(LayoutTask, program="p", collection="layout:cpu:random", output="out", time_limit=10.0)


def child(body: str) -> list[str]:
    return [sys.executable, "-c", CHILD % body]


def test_a_result_and_the_steps_to_it_arrive(task: LayoutTask) -> None:
    steps: list[Progress] = []
    outcome = child_process.supervise(
        task, hang_seconds=20, progress=steps.append, command=child("at('compile', 'c0')\nat('measure')")
    )
    assert outcome.about is not None
    assert outcome.about["left_out"] == {}
    assert outcome.reason == ""
    assert steps == [Progress("trace", None, 0.5), Progress("compile", "c0", 0.5), Progress("measure", None, 0.5)]


def test_a_skipped_program_has_its_reason(task: LayoutTask) -> None:
    outcome = child_process.supervise(task, hang_seconds=20, command=child("send(skipped='no dots'); sys.exit()"))
    assert outcome == child_process.Outcome(None, "no dots")


def test_a_configuration_that_hangs_is_killed_and_left_out(task: LayoutTask, caplog: pytest.LogCaptureFixture) -> None:
    body = "if not task['left_out']:\n  at('compile', 'bad')\n  time.sleep(600)"
    outcome = child_process.supervise(task, hang_seconds=1.5, command=child(body))
    assert outcome.about is not None
    assert list(outcome.about["left_out"]) == ["bad"]
    (message,) = caplog.messages
    assert all(part in message for part in ("p: ", " bad: ", "1.5 s"))


@pytest.mark.parametrize(
    ("death", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process was ended by SIGKILL (out of memory?)"),
        ("os.abort()", "the process was ended by SIGABRT"),
        (
            "print('F12 a.h:3] Check failed: x\\n*** stack ***', file=sys.stderr); sys.stderr.flush(); os.abort()",
            "the process was ended by SIGABRT: F12 a.h:3] Check failed: x",
        ),
        ("raise MemoryError('no more')", "MemoryError: no more"),
        ("sys.exit(3)", "the process ended with status 3"),
    ],
)
def test_a_configuration_that_kills_its_process_is_left_out(task: LayoutTask, death: str, reason: str) -> None:
    body = f"if not task['left_out']:\n  at('compile', 'bad')\n  {death}"
    outcome = child_process.supervise(task, hang_seconds=20, command=child(body))
    assert outcome.about is not None
    assert outcome.about["left_out"] == {"bad": reason}


def test_a_crash_outside_of_any_configuration_ends_the_program(task: LayoutTask) -> None:
    outcome = child_process.supervise(task, hang_seconds=1.5, command=child("time.sleep(600)"))
    assert outcome.about is None
    assert all(part in outcome.reason for part in ("trace", "1.5 s", "--hang-seconds"))
    outcome = child_process.supervise(
        task, hang_seconds=20, command=child("at('compile', 'c0'); at('measure'); os.abort()")
    )
    assert outcome.about is None
    assert all(part in outcome.reason for part in ("measure", "SIGABRT"))


def test_a_program_that_crashes_again_and_again_is_left_out(task: LayoutTask, caplog: pytest.LogCaptureFixture) -> None:
    outcome = child_process.supervise(task, hang_seconds=20, command=child(WORSE_AND_WORSE))
    assert outcome.about is None
    assert "in 4 configurations" in outcome.reason
    assert [message.split(": ")[1][-2:] for message in caplog.messages] == ["c0", "c1", "c2", "c3"]


def test_no_child_outlives_an_interrupted_parent(task: LayoutTask) -> None:
    pids: list[int] = []

    def interrupted(step: Progress) -> None:
        pids.append(int(step.stage))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child_process.supervise(
            task, hang_seconds=20, progress=interrupted, command=[sys.executable, "-c", IMMORTAL % "time.sleep(600)"]
        )
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


IMMORTAL = """
import json, os, sys, time
json.load(sys.stdin)
events = os.fdopen(int(sys.argv[1]), "w", buffering=1)
events.write(json.dumps({"progress": {"stage": str(os.getpid())}}) + "\\n")
%s
"""


def test_the_environment_keeps_xla_to_one_thread_and_the_users_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/x")
    found = child_process.environment("cpu")
    assert found["XLA_FLAGS"].split() == [
        "--xla_dump_to=/x", "--xla_cpu_multi_thread_eigen=false", "intra_op_parallelism_threads=1"
    ]  # fmt: skip
    assert found["JAX_PLATFORMS"] == "cpu"
    assert found["PATH"] == os.environ["PATH"]
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    found = child_process.environment("gpu")
    assert found["XLA_FLAGS"].split() == ["--xla_gpu_autotune_level=0", "--xla_gpu_enable_triton_gemm=false"]
    assert "JAX_PLATFORMS" not in found


def test_the_real_child_skips_what_hangs_or_does_not_exist(
    task: LayoutTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax", reason="needs jax (extra collect)")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hanging.py").write_text("import time\ndef hangs(x):\n    time.sleep(600)\n")
    core = min(os.sched_getaffinity(0))
    task = dataclasses.replace(task, program="hanging:hangs", arguments="f32[2]", core=core)
    outcome = child_process.supervise(task, hang_seconds=6)
    assert outcome.about is None
    assert all(part in outcome.reason for part in ("trace", "6 s"))
    outcome = child_process.supervise(dataclasses.replace(task, program="hanging:missing"), hang_seconds=60)
    assert "missing" in outcome.reason


def test_allocations_beyond_the_limit_fail() -> None:
    code = (
        "from hlorank_collect.machine import limit_memory\nimport os, numpy as np\nlimit_memory()\n"
        "total = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')\n"
        "try:\n    np.empty(total * 9 // 10, np.uint8)\nexcept MemoryError:\n    print('refused')\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "refused\n"
