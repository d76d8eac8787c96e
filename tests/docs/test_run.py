"""Pages whose commands really run, one after the other, in a copy of the repository with tiny settings.

The pages stay as they are: only the values of conf/ are smaller. What needs a network, a browser or hours is left out
here, and parsed by test_commands.py like everything else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.docs.blocks import PAGES, ROOT, Block, blocks

pytestmark = pytest.mark.slow

EXECUTED = (
    "README.md",
    "docs/tutorials/first-ranking.md",
    "docs/how-to/rank-configurations.md",
    "docs/how-to/register-a-model.md",
    "docs/how-to/report.md",
    "docs/how-to/reproduce-a-published-system.md",
    "docs/reference/stages.md",
    "docs/how-to/compare-experiments.md",
)
"""In an order in which each finds what it needs."""
NETWORK = re.compile(r"data=tpugraphs|pip install|npm install")
"""A block with one of these is left out."""
# Commands that never end, or take hours, do nothing; the queue's worker is waited for.
PRELUDE = r"""
make() { case $1 in ui | test) ;; *) command make "$@" ;; esac; }
python() { case $1 in benchmarks/*) ;; *) command python "$@" ;; esac; }
dvc() {
  command dvc "$@"
  if [ "$1 $2" = "queue start" ]; then
    while command dvc queue status | grep -Eq 'Queued|Running'; do sleep 2; done
    ! command dvc queue status | grep Failed
  fi
}
"""
TINY: dict[str, dict[str, Any]] = {
    "config.yaml": {"pipeline": {"layout": ["layout/cpu/random"], "tile": [], "methods": ["full", "gst"]}},
    "model/sage.yaml": {"width": 8, "blocks": 1},
    "trainer/default.yaml": {
        **dict.fromkeys(("max_epochs", "steps_per_epoch", "graphs_per_step"), 2),
        **dict.fromkeys(("configs_per_step", "validation_configs"), 4),
    },
    "experiment/kaggle_6.yaml": {"model": {"width": 8}},
    "experiment/official_tile.yaml": {"model": {"width": 8}},
    "data/synthetic.yaml": {
        "synthetic": {"train": 2, "valid": 1, "test": 1, "min_nodes": 60, "max_nodes": 90, "configurations": 24}
    },
    "experiment/synthetic.yaml": {
        "trainer": {"max_epochs": 1, "steps_per_epoch": 2, "configs_per_step": 4},
        "pipeline": {"layout": ["layout/synthetic/random"], "tile": []},
    },
}
"""What is small in the copy, by file of conf/."""


def shrink(conf: Path, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Changes values of files, which keep the line that names their package."""
    for name, values in changes.items():
        text = (conf / name).read_text(encoding="utf-8")
        package = text.partition("\n")[0] + "\n" if text.startswith("# @package") else ""
        merged = OmegaConf.merge(OmegaConf.create(text), OmegaConf.create(dict(values)))
        (conf / name).write_text(package + OmegaConf.to_yaml(merged), encoding="utf-8")


class Clone:
    """A clone of the repository, set up and with the pipeline run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        shrink(root / "conf", TINY)
        environment = root / ".venv"
        environment.mkdir()
        for name in ("bin", "lib", "pyvenv.cfg"):
            (environment / name).symlink_to(Path(sys.prefix, name))
        (environment / ".ready").touch()  # as installed just now
        self.shell("python -m hlorank.stages.params")
        self.shell("git init -q && git add . && git commit -qm Start")
        self.shell("make repro")

    def shell(self, script: str) -> None:
        """Runs a script as a user of the repository would."""
        names = {
            f"GIT_{who}_{what}": "somebody@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        done = subprocess.run(
            ["bash", "-ec", PRELUDE + script],
            cwd=self.root,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_TRACKING")},
                **names,
                "PATH": f"{self.root}/.venv/bin:{os.environ['PATH']}",
                "PYTHONPATH": str(self.root / "src"),
                "PIP_NO_INDEX": "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    if sys.prefix == sys.base_prefix:
        pytest.skip("needs a virtual environment, which the copy then has as its .venv")
    jax = pytest.importorskip("jax")
    made = Clone(tmp_path_factory.mktemp("clone"))
    # What a reader has: the dump of a program of his own.
    matrix = jax.ShapeDtypeStruct((64, 64), "float32")
    lowered = jax.jit(lambda a, b: a @ b).lower(matrix, matrix)
    (made.root / "f.hlo.pb").write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    return made


def script(block: Block) -> str:
    """What runs of a block: nothing, if it needs a network."""
    if NETWORK.search(block.text) or not (block.shell or block.language == "python"):
        return ""
    return block.text if block.shell else f"python - <<'END'\n{block.text}END\n"


@pytest.mark.parametrize("page", EXECUTED)
def test_a_page_runs(page: str, clone: Clone) -> None:
    clone.shell("".join(map(script, blocks(page))))


def test_every_executed_page_is_there() -> None:
    assert set(EXECUTED) <= set(PAGES)
