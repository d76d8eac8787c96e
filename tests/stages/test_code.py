"""Stage code: what the other stages depend on."""

import shutil
import subprocess
from pathlib import Path

import grimp
import pytest

from hlorank.stages.code import STAGES, code_of, read_module

OUTSIDE = ("hlorank.runs", "hlorank.evaluation.report", "hlorank.datasets")  # no stage computes with these


@pytest.mark.parametrize("stage", STAGES)
def test_the_code_of_a_stage_is_all_that_it_imports(stage: str) -> None:
    graph = grimp.build_graph("hlorank", cache_dir=None)
    for module in graph.find_modules_directly_imported_by("hlorank"):  # for users, such as what hlorank.load needs
        graph.remove_import(importer="hlorank", imported=module)
    for package in OUTSIDE:
        for module in {package, *graph.find_descendants(package)}:
            graph.remove_module(module)
    entry = f"hlorank.stages.{stage}"
    imported = {entry, *graph.find_upstream_modules(entry)} - {"hlorank"}
    packages, found = {module.rpartition(".")[0] for module in imported} - {"hlorank"}, code_of(stage)
    assert set(found["modules"]) == imported | packages
    assert ("torch-geometric" in found["libraries"]) == (stage in {"train", "evaluate"})


def test_comments_and_docstrings_are_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = "from numpy import sum\n\nX = 1\n"
    texts = {"plain": plain, "described": '"A."\n' + plain + '"X."  # the number\n', "other": plain.replace("1", "2")}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    digests = {name: read_module(name) for name in texts}
    assert digests["plain"] == digests["described"] != digests["other"]
    assert digests["plain"][1] == {"numpy"}


def test_a_copy_of_the_checkout_runs_its_own_code_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "src/hlorank/stages").mkdir(parents=True)
    for package in ("hlorank", "hlorank/stages"):
        (tmp_path / "src" / package / "__init__.py").touch()
    (tmp_path / "src/hlorank/stages/own.py").write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    (tmp_path / "json.py").write_text("raise SystemExit(1)")
    script = shutil.copy(Path(__file__).parents[2] / "scripts/stage", tmp_path)
    done = subprocess.run([script, "own", "a b"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == '["a b"]\n'
