"""Every command of the documentation is accepted by its program, and every stage composes; nothing runs."""

import argparse
import contextlib
import importlib
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
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
from tests import sections
from tests.docs.blocks import PAGES, ROOT, blocks, commands

# Files that a reader has, in addition to those of the repository.
READERS = {"your_program.py", "scripts/params.py"}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = {*re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE)}


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def _values(override: Override) -> list[str]:
    """Return the values that a sweep tries for one key; the ends of an interval."""
    key, sweep = override.get_key_element(), override.value()
    if not override.is_sweep_override():
        return [str(override.input_line)]
    values = [sweep.start, sweep.end] if isinstance(sweep, IntervalSweep) else override.sweep_string_iterator()
    return [f"{key}={value}" for value in values]


@cache
def _composed(overrides: tuple[str, ...]) -> Config:
    config = load_composed(sections.composed(*overrides))
    Collection.parse(config.collection)
    assert config.method in {*METHODS, *BASELINES}
    return config


def composed(arguments: Sequence[str], sweeps: bool) -> list[Config]:
    """Return configurations of overrides, as many as it takes for each value of a sweep to be in one."""
    overrides = OverridesParser.create().parse_overrides([*arguments])
    assert sweeps or not any(one.is_sweep_override() for one in overrides), "lists need -m, or --queue"
    values = [_values(override) for override in overrides]
    points = zip_longest(*values) if values else [()]
    return [_composed(tuple(one or first for one, (first, *_) in zip(point, values, strict=True))) for point in points]


def _stage(arguments: Sequence[str]) -> None:
    options = get_args_parser().parse_args(arguments)
    composed(options.overrides, options.multirun or any("hparams_search=" in one for one in options.overrides))


class _ParsedError(Exception):
    """Raised when a script has parsed its arguments."""


def _script(run: Callable[[], object], path: str, arguments: Sequence[str]) -> None:
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
    match arguments[arguments[0] == "-P" :]:
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


def _dvc(arguments: Sequence[str]) -> None:
    from dvc.cli import parse_args

    options = parse_args(list(arguments))
    for config in composed(getattr(options, "set_param", None) or [], getattr(options, "queue", False)):
        if arguments[:2] == ["exp", "run"]:
            assert set(options.targets) <= _jobs(config)


def _jobs(config: Config) -> set[str]:
    pipeline: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "dvc.yaml"), resolve=False)
    jobs = {True: config.pipeline.trainings, False: config.pipeline.collections}
    return {f"{name}@{job}" for name, entry in pipeline["stages"].items() for job in jobs["foreach" in entry]}


def _make(arguments: Sequence[str]) -> None:
    variables = [argument.partition("=")[0] for argument in arguments if "=" in argument]
    assert {argument for argument in arguments if "=" not in argument} <= TARGETS
    assert all(f"$({name})" in MAKEFILE for name in variables)


Check = Callable[[Sequence[str]], object]
CHECKS: dict[str, Check] = {"hlorank": make_parser().parse_args, "python": _python, "dvc": _dvc, "make": _make}
CHECKS |= {"python3": _python, "torchrun": lambda arguments: _python(arguments[arguments.index("-m") :])}
"""Checks of arguments by program."""
OTHERS = {
    *("base64", "cat", "curl", "cut", "docker", "git", "grep", "head", "id", "ls", "mlflow", "pip", "ray"),
    *("sort", "sudo", "tr"),
}
"""Programs of others, whose arguments may be any."""


@pytest.mark.parametrize("page", [name for name in PAGES if any(block.shell for block in blocks(name))])
def test_commands_are_what_their_programs_take(page: str, tmp_path: Path) -> None:
    for program, *arguments in commands(page, tmp_path):
        assert program in {*CHECKS, *OTHERS}
        try:
            CHECKS.get(program, len)(arguments)
        except BaseException as error:
            error.add_note(f"{page}: {' '.join([program, *arguments])}")
            raise


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
        ("torchrun", "--nproc-per-node 2 -m hlorank.stages.train method=gist"),
        ("make", "everything"),
    ],
)
def test_a_wrong_command_is_found(program: str, line: str) -> None:
    with pytest.raises((Exception, SystemExit)):  # each program raises what it likes
        CHECKS[program](line.split())
