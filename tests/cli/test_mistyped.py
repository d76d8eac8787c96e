"""Programs that are mistyped: the message has the form that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlorank.cli.main import main
from hlorank.cli.mistyped import meant, resembling
from hlorank_collect.zoo import programs


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mymod.py").write_text("import math\n\ndef step(x):\n    return x\n\nother = step\n\nclass Model:\n    pass\n")
    Path("package", "inner").mkdir(parents=True)
    Path("package", "inner", "__init__.py").write_text("def run(x):\n    return x\n")
    Path("broken.py").write_text("def (")
    Path("module_0001.jit_f.before_optimizations.txt").touch()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("mymod.step", "mymod:step"),
        ("mymod/step", "mymod:step"),
        ("mymod.py:step", "mymod:step"),
        ("./mymod.py:step", "mymod:step"),
        ("mymod.py::step", "mymod:step"),
        ("mymod:step()", "mymod:step"),
        ("mymod.other", "mymod:other"),
        ("mymod.Model.call", "mymod:Model.call"),
        ("mymod.stpe", "mymod:step"),  # the name that resembles it
        ("mymod", "mymod:step"),  # the first function
        ("mymod.py", "mymod:step"),
        ("package/inner.run", "package.inner:run"),
        ("package.inner.run", "package.inner:run"),
        ("broken.step", "broken:step"),
        ("broken", None),
        ("json.loads", "json:loads"),  # installed
        ("nowhere.step", None),
        ("no name", None),
        ("module_0001.jit_f.before_optimisations.txt", "module_0001.jit_f.before_optimizations.txt"),
        ("missing/file.txt", None),
        ("", None),
    ],
)
def test_the_form_that_works(program: str, expected: str | None) -> None:
    assert meant(program) == expected


def test_names_of_the_zoo_are_for_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(resembling(program) is None and "hlorank collect" in (meant(program) or "") for program in programs())
    assert main(["inspect", next(iter(programs()))]) == 2
    assert "hlorank autotune" in capsys.readouterr().err


def test_a_path_of_this_folder_may_be_absolute() -> None:
    assert meant(f"{Path.cwd()}/mymod.py:step") == "mymod:step"


@pytest.mark.parametrize("command", ["inspect", "convert", "rank"])
@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("mymod.step", "mymod:step"),
        ("mymod.py:step", "mymod:step"),
        ("mymod.py", "mymod:step"),
        ("nowhere", "mymod:step"),
    ],
)
def test_commands_say_it(
    command: str, program: str, named: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"inspect": [], "convert": ["--out", "out"], "rank": ["--model", str(model)]}[command]
    assert main([command, program, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {program}: ")
    assert named in line
    assert main([command, program, *options, "--arguments", "f32[2]"]) == 2
    assert named in capsys.readouterr().err
