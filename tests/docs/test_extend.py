"""The how-to of extensions, followed to the letter in a folder that has no code of hlorank."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.docs.test_run import LARGE, TINY, shrink

PAGE = "docs/how-to/extend.md"


def apply(page: str, root: Path) -> None:
    """Write the files of the code blocks of a page into a folder, and change them as its diffs say."""
    for block in blocks(page):
        first, _, text = block.text.partition("\n")
        if not first.strip().startswith("# "):
            continue
        name = first.strip().removeprefix("# ")
        path = root / name
        if block.language == "diff":
            content, before = path.read_text(encoding="utf-8"), " "
            for line in text.splitlines(keepends=True):
                if line.startswith("+"):
                    content = content.replace(before[1:], line[1:] if before.startswith("-") else before[1:] + line[1:])
                before = line
                count = content.count(line[1:])
                assert count == 1, f"{name}: {line[1:]!r} is there {count} times"
            path.write_text(content, encoding="utf-8")
        else:
            assert not path.exists(), path
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")


def run(root: Path, *command: str, code: Path | None = None, programs: Path = Path(sys.executable).parent) -> None:
    """Run a command in the copy, with the code of the copy, or of another folder."""
    environment = {**os.environ, "PYTHONPATH": str(code or root / "src")}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=root, env={**environment, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def large(folder: str, names: list[str]) -> list[str]:
    """Return the names of large graphs, for `shutil.copytree`."""
    return [name for name in names if LARGE.match(f"{Path(folder).relative_to(ROOT)}/{name}")]


@pytest.mark.slow
def test_a_package_of_its_own_trains_and_ranks(tmp_path: Path) -> None:
    """Everything on the page, with the package installed."""
    for name in ("conf", "data/sample/layout/cpu/random"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=large)
    shutil.copy(ROOT / "data/sample/split.json", tmp_path / "data/sample")
    shrink(
        tmp_path / "conf", {name: changes for name, changes in TINY.items() if name.startswith(("model", "trainer"))}
    )
    apply(PAGE, tmp_path)
    for stage in ("fetch", "featurize", "partition"):
        run(tmp_path, sys.executable, "-m", f"hlorank.stages.{stage}", code=ROOT / "src")
    installed = os.pathsep.join([str(tmp_path / "site"), str(ROOT / "src")])
    prelude = (
        f"export PYTHONPATH={installed}\n"
        'pip() { command python -m pip install -q --no-build-isolation --no-deps --no-index -t site "${@: -1}"; }\n'
    )
    script = prelude + "\n".join(block.text for block in blocks(PAGE) if block.language == "bash")
    run(tmp_path, "bash", "-ec", script, code=ROOT / "src")
    spec = json.loads((tmp_path / "models/layout/cpu/random/gst_f/spec.json").read_text())
    assert list(spec["plugins"]) == ["my_package"]
    assert spec["model"]["block"] == ["layer_norm", "my_conv", "gelu", "residual"]
    assert (tmp_path / "reports/layout/cpu/random/gst_f/metrics.json").is_file()
    refused = subprocess.run(
        ["bash", "-c", f"{prelude} unset HLORANK_PLUGINS\n" + script.rstrip().splitlines()[-1]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "HLORANK_PLUGINS=my_package" in refused.stderr
