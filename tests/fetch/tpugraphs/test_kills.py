"""A fetch of TpuGraphs that is killed and repeated ends in the files of one without the kill."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import hlorank
from hlorank.fetch.download import CHUNK_BYTES
from tests.fetch.tpugraphs.archives import TRAIN, XLA, archives, config, fetch, npz, tree

if TYPE_CHECKING:
    from tests.fetch.conftest import Server

CHILD = """
import os, shutil, signal, sys
from pathlib import Path
from hlorank.data.collection import Collection
from hlorank.fetch.tpugraphs import TpuGraphsConfig, fetch

base_url, root = sys.argv[1], Path(sys.argv[2])
XLA = Collection.parse("layout:xla:default")

def run(downloads, output):
    settings = {"downloads": str(downloads), "keep_archives": False, "retries": 3, "timeout_seconds": 10}
    fetch(XLA, TpuGraphsConfig(base_url=base_url, splits=["train"], **settings), output)
"""

KILL_EVERYWHERE = (
    CHILD
    + """
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}

def state(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}

def killed(folder, step):
    left = step
    def count(event, arguments):
        nonlocal left
        if event in WRITES or event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    child = os.fork()
    if child == 0:
        sys.addaudithook(count)
        run(folder / "downloads", folder / "raw" / "out")
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])

shutil.copytree(root / "start", root / "expected")
run(root / "expected/downloads", root / "expected/raw/out")
step = 0
while True:
    folder = root / "folder"
    shutil.copytree(root / "start", folder)
    was_killed = killed(folder, step)
    run(folder / "downloads", folder / "raw/out")
    assert state(folder) == state(root / "expected"), step
    shutil.rmtree(folder)
    if not was_killed:
        break
    step += 1
print(step)
"""
)


def child_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(hlorank.__file__).parents[1])}


def test_killed_before_any_write(served: Server, tmp_path: Path) -> None:
    """A call that is killed before any of its writes, then repeated, ends in the files of a call without the kill."""
    start = tmp_path / "start"
    (tmp_path / "mine").mkdir()
    for name, data in archives(seed=100).items():
        (tmp_path / "mine" / name).write_bytes(data)
    (start / "raw").mkdir(parents=True)
    fetch(XLA, config(tmp_path / "mine"), tmp_path / "other", start / "raw" / "out")
    (start / "downloads").mkdir()
    digest = {"size": len(served.files[TRAIN]), "sha256": hashlib.sha256(served.files[TRAIN]).hexdigest()}
    (start / "downloads" / "archives.json").write_text(json.dumps({TRAIN: digest}))
    (start / "raw" / "out" / "LICENSE").unlink()
    (start / "raw" / "out" / "train" / "stale.npz").write_bytes(npz(0))
    command = [sys.executable, "-c", KILL_EVERYWHERE, served.base_url, str(tmp_path)]
    result = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 30


def test_killed_while_downloading(served: Server, tmp_path: Path) -> None:
    """After SIGKILL between two bytes, the same call downloads only the rest and ends in the same files."""
    clean, again = tmp_path / "clean", tmp_path / "again"
    fetch(XLA, config(served.base_url, ("train",)), clean / "downloads", clean / "out")
    served.serve()  # the licence
    served.hold(CHUNK_BYTES)
    script = CHILD + 'run(root / "downloads", root / "out")\n'
    command = [sys.executable, "-c", script, served.base_url, str(again)]
    with subprocess.Popen(command, env=child_environment(), start_new_session=True) as child:
        partial = again / "downloads" / f"{TRAIN}.partial"
        deadline = time.monotonic() + 30
        while not (partial.exists() and partial.stat().st_size == CHUNK_BYTES):
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.01)
        os.killpg(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    served.release.set()
    served.requests.clear()
    fetch(XLA, config(served.base_url, ("train",)), again / "downloads", again / "out")
    assert tree(again) == tree(clean)
    assert served.ranges_asked == [f"bytes={CHUNK_BYTES}-"]
