"""Installations without extras: what needs none of them works, and the rest names the extra in one line."""

import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from hlorank.config import ConfigError
from hlorank.config.extras import EXTRAS, named_extra
from hlorank.files import bundled
from tests.docs.blocks import blocks

PROGRAM = """
import runpy, sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *other):
        return None if name in refused else self.finder.find_spec(name, *other)

refused = {*sys.argv[1].split()}
sys.meta_path[:] = map(Without, sys.meta_path)
program = sys.argv[2]
del sys.argv[:2]
exec(program)
"""
"""Program of the second argument, without the packages that the first one names."""
COMMAND = "from hlorank.cli.main import main; sys.exit(main())"
STAGE = "import hlorank; sys.argv[0] = '-m'; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
EVALUATE = """
import hlorank
evaluator = hlorank.Evaluator(*sys.argv[1:])
result = evaluator.eval({name: range(count) for name, count in evaluator.configurations.items()})
print(len(result["per_graph"]))
"""
PYG = """
import hlorank
try:
    hlorank.datasets.load("tile/cpu").test[0].to_pyg()
except ValueError as error:
    print(f"error: {error}")
"""
LOAD = """
import hlorank
try:
    hlorank.load(sys.argv[1])
except ValueError as error:
    sys.exit(f"error: {error}")
"""


def run(program: str, *arguments: object, without: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-P", "-c", PROGRAM, without, program, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})


@pytest.fixture
def none(cwd: Path) -> str:
    """The packages of all extras, and a working folder without conf/."""
    return " ".join(EXTRAS.values())


def test_the_first_lines_of_the_readme_need_no_extra_and_write_nothing(none: str, tmp_path: Path) -> None:
    lines = next(block.text for block in blocks("README.md") if block.language == "python")
    sample = bundled("sample").resolve()
    before = {path: path.stat().st_mtime_ns for path in (sample, *sample.rglob("*"))}
    shown = "layout:cpu:random, mean of 11 graphs of test: Kendall tau 0.*, noise ceiling 0.*, slowdown@1 *%, @5 *%\n"
    unwanted = {"torch", "torch_geometric", "hydra", "omegaconf", "mlflow", "dvc", "lightning", "requests"}
    for without in (none, ""):
        done = run(f"{lines}import sys\nassert not {unwanted} & sys.modules.keys()", without=without)
        assert (done.returncode, done.stderr, fnmatch(done.stdout, shown)) == (0, "", True)
    assert {path: path.stat().st_mtime_ns for path in (sample, *sample.rglob("*"))} == before
    assert not [*tmp_path.iterdir()]


def test_data_the_evaluator_inspect_and_convert_need_no_extra(
    none: str, program: Path, graphs: list[Path], tiny_collections: Path, tmp_path: Path
) -> None:
    shown = run(COMMAND, "inspect", graphs[0], program, without=none)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert graphs[0].stem in shown.stdout
    done = run(COMMAND, "convert", program, tmp_path / "npz", without=none)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [str(path) for path in (tmp_path / "npz").rglob("*.npz")]
    given = "layout:synthetic:random", tiny_collections / "raw", "valid", tmp_path / "cache"
    done = run(EVALUATE, *given, without=none)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == len(graphs)


@pytest.mark.parametrize("package", ["safetensors", "safetensors torch torch_geometric"])
def test_rank_and_load_name_the_extra_rank(package: str, none: str, model: Path, graphs: list[Path]) -> None:
    for program, arguments in ((COMMAND, ["rank", "--model", model, graphs[0]]), (LOAD, [model])):
        done = run(program, *arguments, without=package)
        assert (done.returncode, done.stdout) == (2 if program == COMMAND else 1, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: hlorank")
        assert line.endswith("needs safetensors: pip install 'hlorank[rank]'")


def test_a_graph_needs_the_extra_rank_only_as_data_of_pytorch_geometric(none: str) -> None:
    done = run(PYG, without="torch_geometric")
    assert done.stdout == "error: to_pyg needs torch_geometric: pip install 'hlorank[rank]'\n"


def test_rank_needs_no_extra_but_rank_and_by_a_baseline_no_pytorch(none: str, model: Path, graphs: list[Path]) -> None:
    without = "altair dvc hydra lightning mlflow omegaconf optuna sklearn sqlalchemy threadpoolctl torch uvicorn"
    done = run(COMMAND, "rank", "--model", model, graphs[0], without=without)
    assert (done.returncode, done.stderr) == (0, "")
    assert graphs[0].stem in done.stdout


@pytest.mark.parametrize("command", ["best", "serve --model m", "report m", "register m"])
def test_other_commands_name_an_extra(command: str, none: str) -> None:
    done = run(COMMAND, *command.split(), without=none)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'hlorank[" in line


@pytest.mark.parametrize(("name", "package"), [("fetch", "hydra"), ("train", "hydra"), ("train", "sklearn")])
def test_a_stage_names_the_extra_pipeline(name: str, package: str, none: str) -> None:
    done = run(STAGE, f"hlorank.stages.{name}", "method=gradient_boosting", without=package)
    *_, line = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert line.endswith(f"needs {package}: pip install 'hlorank[pipeline]'")
    assert "Traceback" not in done.stderr


def test_commands_without_jax_name_the_line_that_installs_it(none: str) -> None:
    without, install = "jax jaxlib torch scipy sklearn mlflow", "pip install 'hlorank[collect]'"
    shown = " ".join(run(COMMAND, "--help", without=without).stdout.split())  # argparse breaks lines
    assert (shown.count(install), " collect " in shown, " autotune " in shown) == (2, True, True)
    for arguments in (["collect"], ["collect", "m:f", "--out", "out"], ["autotune", "m:f", "--random"]):
        done = run(COMMAND, *arguments, without=without)
        (line,) = done.stderr.splitlines()
        assert (done.returncode, line.startswith("error: "), install in line) == (2, True, True)


@pytest.mark.parametrize("missing", ["torch", "mlflow", "psutil", "optuna", "torch._C", "mymodule", None])
def test_the_extra_of_a_missing_package_is_named_and_other_modules_are_errors_of_the_program(
    missing: str | None,
) -> None:
    extra = {"torch": "rank", "mlflow": "pipeline", "psutil": "collect", "optuna": "sweep"}.get(str(missing))
    expected = rf"this needs {missing}: pip install 'hlorank\[{extra}\]'" if extra else None
    with pytest.raises(ConfigError if extra else ModuleNotFoundError, match=expected), named_extra("this"):
        raise ModuleNotFoundError(name=missing)
