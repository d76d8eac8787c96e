"""The how-to of extensions, followed to the letter in a copy of the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.docs.blocks import ROOT, blocks
from tests.docs.test_run import LARGE, TINY, shrink
from tests.warm import warm_programs

PAGE = "docs/how-to/extend.md"
PLUGINS_PAGE = "docs/how-to/plugins.md"
COPIED = ("src", "tests", "conf", "pyproject.toml")


def apply(page: str, root: Path) -> tuple[list[str], list[str]]:
    """Apply the code blocks of a page to a copy of the repository; return the files added, and those changed."""
    added, changed = [], []
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
            changed.append(name)
        else:
            assert not path.exists(), path
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            added.append(name)
    return added, changed


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


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """A copy of the repository with all extensions, the files that they add, and those that they change."""
    root = tmp_path_factory.mktemp("extended")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, root / name)
    return root, *apply(PAGE, root)


@pytest.mark.slow
def test_each_extension_is_one_module_and_one_test_that_passes(extended: tuple[Path, list[str], list[str]]) -> None:
    root, added, changed = extended
    tests = [name for name in added if name.startswith("tests/")]
    modules = [name for name in added if name.startswith("src/")]
    assert (len(modules), len(changed), len(tests)) == (4, 5, 5)  # a method is data, without a module
    run(root, "ruff", "format", "--check", *modules, *changed, *tests)
    run(root, "ruff", "check", *modules, *changed, *tests)
    # Tests of every entry of a mapping:
    general = [f"tests/{name}.py" for name in ("models/layers/test_layer", "fetch/test_origins")]
    bounded = "tests/partition/test_partitioners.py::test_every_node_is_in_one_segment_of_bounded_size"
    chosen = " or ".join([*(Path(name).stem for name in tests), "max_conv", "test_origins", "bounded_size"])
    run(root, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *tests, *general, bounded)


@pytest.mark.slow
def test_the_commands_of_the_page_train_models(extended: tuple[Path, list[str], list[str]]) -> None:
    root, *_ = extended
    shrink(root / "conf", {name: changes for name, changes in TINY.items() if name.startswith(("model", "trainer"))})
    rng = np.random.default_rng(0)
    for number, split in enumerate(("train", "train", "valid", "test")):
        program = {
            "opcodes": ["dot"] * 12,
            "shapes": [[8, 4]] * 12,
            "edges": [[node, int(rng.integers(node))] for node in range(1, 12)],
            "configurable": [3, 7],
            "layouts": [[[*rng.permutation(2).tolist(), *[-1] * 16] for _ in range(2)] for _ in range(20)],
            "runtimes": rng.integers(100, 900, size=20).tolist(),
        }
        (root / "programs" / split).mkdir(parents=True, exist_ok=True)
        (root / "programs" / split / f"program_{number}.json").write_text(json.dumps(program))
    programs = root / "bin"
    with warm_programs(programs, root / "src"):
        for script in (block.text for block in blocks(PAGE) if block.language == "bash"):
            run(root, "bash", "-ec", script, programs=programs)
    graphs = {"synthetic/random/gst": 3, "own/random/gst_f": 1}
    for name, count in graphs.items():
        metrics = json.loads((root / f"reports/layout/{name}/metrics.json").read_text())
        assert metrics["valid"]["graphs"] == count


@pytest.mark.slow
def test_a_package_of_its_own_trains_and_ranks(tmp_path: Path) -> None:
    """Everything on the page of plugins, with the package installed, in a folder that has no code of hlorank."""
    for name in ("conf", "data/sample/layout/cpu/random"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=large)
    shutil.copy(ROOT / "data/sample/split.json", tmp_path / "data/sample")
    shrink(
        tmp_path / "conf", {name: changes for name, changes in TINY.items() if name.startswith(("model", "trainer"))}
    )
    apply(PLUGINS_PAGE, tmp_path)
    for stage in ("fetch", "featurize", "partition"):
        run(tmp_path, sys.executable, "-m", f"hlorank.stages.{stage}", code=ROOT / "src")
    installed = os.pathsep.join([str(tmp_path / "site"), str(ROOT / "src")])
    prelude = (
        f"export PYTHONPATH={installed}\n"
        'pip() { command python -m pip install -q --no-build-isolation --no-deps --no-index -t site "${@: -1}"; }\n'
    )
    script = prelude + "\n".join(block.text for block in blocks(PLUGINS_PAGE) if block.language == "bash")
    run(tmp_path, "bash", "-ec", script, code=ROOT / "src")
    spec = json.loads((tmp_path / "models/layout/cpu/random/gst/spec.json").read_text())
    assert list(spec["plugins"]) == ["my_package"]
    assert spec["model"]["block"] == ["layer_norm", "my_conv", "gelu", "residual"]
    assert (tmp_path / "reports/layout/cpu/random/gst/metrics.json").is_file()
    refused = subprocess.run(
        ["bash", "-c", f"{prelude} unset HLORANK_PLUGINS\n" + script.rstrip().splitlines()[-1]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "HLORANK_PLUGINS=my_package" in refused.stderr
