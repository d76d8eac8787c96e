"""Every command of the documentation is accepted by its program, and every stage composes; nothing runs."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.metadata
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from omegaconf import OmegaConf

from hlorank.cli.main import make_parser
from hlorank.config import Config
from hlorank.data.collection import Collection
from hlorank.models.baselines.baseline import BASELINES
from hlorank.stages.command import load_composed
from hlorank.training.methods import METHODS
from tests.docs.blocks import PAGES, ROOT, blocks, commands

# Files that a reader has, in addition to those of the repository.
READERS = {"your_program.py", "scripts/params.py"}


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def _parsed(overrides: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(overrides))


def _values(override: Override) -> list[str]:
    """Return the values that a sweep tries for one key; the ends of an interval."""
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [str(override.input_line)]
    sweep = override.value()
    if isinstance(sweep, IntervalSweep):
        return [f"{key}={sweep.start}", f"{key}={sweep.end}"]
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


@cache
def _composed(overrides: tuple[str, ...]) -> Config:
    """Return a validated configuration."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = load_composed(compose("config", overrides=list(overrides)))
    Collection.parse(config.collection)
    assert config.method in {*METHODS, *BASELINES}
    return config


def composed(arguments: Sequence[str]) -> list[Config]:
    """Return configurations of overrides, as many as it takes for each value of a sweep to be in one."""
    values = [_values(override) for override in _parsed(arguments)]
    points = zip_longest(*values) if values else [()]
    return [_composed(tuple(one or first for one, (first, *_) in zip(point, values, strict=True))) for point in points]


def _stage(arguments: Sequence[str]) -> None:
    options = get_args_parser().parse_args(arguments)
    overrides = _parsed(options.overrides)
    search = any(one.key_or_group == "hparams_search" for one in overrides)
    assert options.multirun or search or not any(one.is_sweep_override() for one in overrides), "lists need -m"
    if not _has_ray():
        options.overrides = [text for text in options.overrides if "launcher" not in text or "ray" not in text]
    composed(options.overrides)


def _has_ray() -> bool:
    """Return whether the extra `ray` is installed, without which Hydra cannot compose its launcher."""
    return importlib.util.find_spec("hydra_plugins.hydra_ray_launcher") is not None


class _ParsedError(Exception):
    """Raised when a script has parsed its arguments."""


def _script(run: Callable[[], object], path: str, arguments: Sequence[str]) -> None:
    """Let a script parse its arguments, and stop it then."""
    parse = argparse.ArgumentParser.parse_args

    def only_parse(parser: argparse.ArgumentParser, *given: Any) -> None:
        parse(parser, *given)
        raise _ParsedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", only_parse)
        patch.setattr(sys, "argv", [path, *arguments])
        patch.syspath_prepend(str(Path(path).resolve().parent))
        with contextlib.suppress(_ParsedError):
            run()
            raise AssertionError(f"{path} parses no arguments")


def _python(arguments: Sequence[str]) -> None:
    match arguments:
        case ["-m", "venv", _]:
            pass
        case ["-m", module, *rest] if module.startswith("hlorank.stages."):
            assert importlib.util.find_spec(module) is not None
            _stage(rest)
        case ["-m", "examples.zoo", *families]:
            assert importlib.import_module("examples.zoo.__main__").main(families) == 0
        case ["-m", module, *rest]:
            _script(importlib.import_module(module).main, module, rest)
        case [path, *rest] if path not in READERS:
            _script(lambda: runpy.run_path(path, run_name="__main__"), path, rest)


def _torchrun(arguments: Sequence[str]) -> None:
    from torch.distributed import run

    options = run.parse_args(list(arguments))  # type: ignore[no-untyped-call]
    _python(["-m", options.training_script, *options.training_script_args])


def _ray(arguments: Sequence[str]) -> None:
    if importlib.util.find_spec("ray") is not None:
        from ray.scripts.scripts import cli

        cli.commands[arguments[0]].make_context(arguments[0], list(arguments[1:]))  # it only parses


def _dvc(arguments: Sequence[str]) -> None:
    from dvc.cli import parse_args

    options = parse_args(list(arguments))
    changes = getattr(options, "set_param", None) or []
    queued = getattr(options, "queue", False)
    assert queued or not any(one.is_sweep_override() for one in _parsed(changes)), "lists need --queue"
    for config in composed(changes):
        if arguments[:2] == ["exp", "run"] or arguments[0] == "repro":
            assert set(options.targets) <= _jobs(config)


def _jobs(config: Config) -> set[str]:
    """Return the names of the jobs that `dvc repro` runs with a configuration."""
    pipeline = OmegaConf.to_container(OmegaConf.load(ROOT / "dvc.yaml"), resolve=False)
    assert isinstance(pipeline, dict)
    found = set()
    for name, entry in pipeline["stages"].items():
        jobs = config.pipeline.trainings if "foreach" in entry else config.pipeline.collections
        found |= {f"{name}@{job}" for job in jobs}
    return found


def _mlflow(arguments: Sequence[str]) -> None:
    import click
    from mlflow.cli import cli

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(click.Command, "invoke", lambda *_: None)
        cli.main(list(arguments), prog_name="mlflow", standalone_mode=False)


def _make(arguments: Sequence[str]) -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(arguments) <= set(targets)


def _git(arguments: Sequence[str]) -> None:
    known = subprocess.run(["git", "--list-cmds=main"], capture_output=True, text=True, check=True).stdout.split()
    assert arguments[0] in known
    if arguments[0] == "checkout":
        assert all((ROOT / path).is_file() for path in arguments[1:])


def _pip(arguments: Sequence[str]) -> None:
    pins = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for requirement in arguments:
        assert "==" not in requirement or f'"{requirement}"' in pins


def _hlorank(arguments: Sequence[str]) -> None:
    make_parser().parse_args(arguments)


def _anything(_: Sequence[str]) -> None:
    """Accept any arguments: a program of the system."""


SYSTEM = ("base64", "cat", "curl", "cut", "docker", "grep", "head", "id", "ls", "sort", "sudo", "tr")
CHECKS: dict[str, Callable[[Sequence[str]], None]] = {
    "hlorank": _hlorank,
    "python": _python,
    "python3": _python,
    "torchrun": _torchrun,
    "ray": _ray,
    "dvc": _dvc,
    "mlflow": _mlflow,
    "make": _make,
    "git": _git,
    "pip": _pip,
    **dict.fromkeys(SYSTEM, _anything),
}
"""Checks of arguments by program. A page that calls any other program fails."""


@pytest.mark.parametrize("page", [name for name in PAGES if any(block.shell for block in blocks(name))])
def test_commands_are_what_their_programs_take(page: str, tmp_path: Path) -> None:
    for program, *arguments in commands(page, CHECKS, tmp_path):
        try:
            CHECKS[program](arguments)
        except BaseException as error:
            error.add_note(f"{page}: {' '.join([program, *arguments])}")
            raise


@pytest.mark.parametrize("page", [name for name in PAGES if any(block.language == "python" for block in blocks(name))])
def test_python_imports_what_there_is(page: str) -> None:
    for block in blocks(page):
        if block.language != "python" or re.match(r"# (src|tests)/", block.text):  # test_extend.py runs whole files
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hlorank"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, name.name) for name in node.names)


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("hlorank", "rank --modell m f.npz"),
        ("python", "-m hlorank.stages.train trainer.epochs=3"),
        ("python", "-m hlorank.stages.train method=gist"),
        ("python", "-m hlorank.stages.train seed=0,1"),
        ("python", "-m hlorank.evaluation.summary a b"),
        ("python", "benchmarks/quality.py --colection tile/cpu"),
        ("dvc", "exp run -S loss=listmle -S method=gist"),
        ("dvc", "exp run train@layout/cpu/nothing-gst"),
        ("dvc", "exp sing"),
        *([("ray", "start --hed")] if importlib.util.find_spec("ray") else []),
        ("torchrun", "--nproc-per-nude 2 -m hlorank.stages.train"),
        ("torchrun", "-m hlorank.stages.train method=gist"),
        ("mlflow", "server --hoste 127.0.0.1"),
        ("make", "everything"),
        ("git", "chekout params.yaml"),
        ("pip", "install torch==1.0.0"),
    ],
)
def test_a_wrong_command_is_found(program: str, line: str) -> None:
    with pytest.raises((Exception, SystemExit)):  # each program raises what it likes
        CHECKS[program](line.split())


def test_shell_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nfor one in 1 2; do\n  hlorank rank $one \\\n    'a b' | head\ndone  # all\n```\n")
    monkeypatch.setitem(PAGES, "page", page)
    (place := tmp_path / "place").mkdir()
    found = commands("page", ["hlorank", "head"], place)
    assert [one for one in found if one[0] == "hlorank"] == [["hlorank", "rank", n, "a b"] for n in ("1", "2")]
    page.write_text("```sh\nunheard-of\n```\n")
    (other := tmp_path / "other").mkdir()
    with pytest.raises(AssertionError, match="unheard-of"):
        commands("page", ["hlorank"], other)
