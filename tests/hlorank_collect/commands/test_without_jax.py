"""The commands where the extra `collect` is not installed, in a process that cannot import jax."""

from __future__ import annotations

import json
import subprocess
import sys

CALLS = (
    ["--help"],
    ["collect"],
    ["collect", "m:f", "--out", "out"],
    ["autotune", "m:f", "--random"],
)
COMMANDS = f"""
import contextlib, io, json, sys


class WithoutJax:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, WithoutJax())
from hlorank.cli.main import main
from hlorank.hlo import xla_process

xla_process.find_spec = lambda name: None

ended = []
for arguments in {CALLS!r}:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = main(arguments)
        except SystemExit as end:
            status = end.code
    heavy = {{"jax", "torch", "scipy", "sklearn", "mlflow"}} & set(sys.modules)
    assert not heavy, heavy
    ended.append((status, out.getvalue(), errors.getvalue()))
print(json.dumps(ended))
"""
INSTALL = "pip install 'hlorank[collect]'"


def test_commands_without_jax_name_the_line_that_installs_it() -> None:
    done = subprocess.run([sys.executable, "-c", COMMANDS], capture_output=True, text=True, check=True)
    (help_status, shown, _), *refused = json.loads(done.stdout)
    assert help_status == 0
    text = " ".join(shown.split())  # argparse breaks lines
    for command in ("collect", "autotune"):
        assert f" {command} " in text
    assert text.count(INSTALL) == 2
    for status, _, errors in refused:
        assert status == 2
        assert errors.startswith("error: ")
        assert INSTALL in errors
        assert errors.count("\n") == 1
