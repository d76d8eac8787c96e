"""Work of XLA in a new interpreter, as XLA may crash, and a process that starts others must not import jax.

A job is an entry point of the group `hlorank.xla`: a function of the standard input's bytes and of texts that returns
bytes. Its exceptions become `XlaError` in the process that asked for it. hlorank_collect has the jobs parse, print,
capture and trace.
"""

import os
import re
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec

GROUP = "hlorank.xla"
INSTALL = "pip install 'hlorank[collect]'"
"""Installs jax and jaxlib, which the jobs use."""
MAX_SECONDS = 600.0
_LOGGED = re.compile(r"^F\d{4}[^\n]*?\] ([^\n]*)", re.MULTILINE)  # fatal lines, such as failed checks
_COMMAND = [sys.executable, "-P", "-m", "hlorank.hlo.xla_process"]


class XlaError(Exception):
    """A job that failed; the message is its reason."""


def has_jaxlib() -> bool:
    """Return True if jaxlib is installed; imports nothing."""
    return find_spec("jaxlib") is not None


def in_process(work: str, data: bytes, *arguments: str) -> bytes:
    """Run the job of an entry point in a new interpreter; XlaError if it is missing, fails, crashes or hangs."""
    if not has_jaxlib():
        raise XlaError(f"no jaxlib: {INSTALL}")
    # A flag that this jaxlib does not know ends the process, and none changes what a text means.
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS" or work not in ("parse", "print")}
    try:
        done = subprocess.run(  # noqa: S603 (the same interpreter)
            [*_COMMAND, work, *arguments], input=data, capture_output=True, timeout=MAX_SECONDS, check=False, env=env
        )
    except subprocess.TimeoutExpired:
        raise XlaError(f"work of XLA of more than {MAX_SECONDS:g} seconds") from None
    if done.returncode == 1:
        raise XlaError(done.stdout.decode(errors="replace") or "a failure without a reason")
    if done.returncode:
        ended = signal.Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        reasons = _LOGGED.findall(done.stderr.decode(errors="replace"))
        raise XlaError(": ".join([f"work that ends XLA's process ({ended})", *map(str.strip, reasons[:1])]))
    if int.from_bytes(done.stdout[:8], "big") != len(done.stdout) - 8:
        raise XlaError("work that ends XLA's process before its result is complete")
    return done.stdout[8:]


def _main(work: str, *arguments: str) -> int:
    """Write the result of a job to the standard output, or the reason of its failure, with status 1."""
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)  # what a traced program prints is not the result
        try:
            jobs = entry_points(group=GROUP, name=work)
            if not jobs:
                raise XlaError(f"no entry point {work} of the group {GROUP}; install hlorank again: {INSTALL}")
            result = next(iter(jobs)).load()(sys.stdin.buffer.read(), *arguments)
            output.write(len(result).to_bytes(8, "big") + result)
        except (Exception, SystemExit) as error:  # a traced program may end its process
            ended = f"it ends its process: SystemExit {error}" if isinstance(error, SystemExit) else ""
            output.write((ended or str(error) or type(error).__name__).encode(errors="replace"))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
