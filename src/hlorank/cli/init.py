"""`hlorank init`: a DVC project of one's own that uses the installed package."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

from hlorank.config import ConfigError
from hlorank.files import bundled, write_text

_IGNORED = "/.hlorank/ /data/code/ /data/raw/ /data/features/ /data/segments/ /data/downloads/ /models/ /reports/**"
_KEPT = "!/reports/**/ !/reports/**/scores.json /mlflow.db* /mlartifacts/ /mlruns/ /dvc_plots/ /multirun/ __pycache__/"
_DVC = "[hydra]\n    enabled = true\n    config_name = pipeline\n"
_CODE = "    deps:\n      - constraints.txt\n      - src/hlorank\n"
_CHANGES = {
    r"(?s)\A.*?(?=vars:)": "# The stages of hlorank, for the collections and methods of `pipeline` in params.yaml.\n",
    r"(PYTHONPATH=src )?python -P": "python -P",
    r"scripts/stage ": "python -P -m hlorank.stages.",
    re.escape(_CODE): "    always_changed: true # the package may be another version\n",
    r"data/sample #.*": "data/own",
    r"( {8}- )data/code/train.json\n": r"\g<0>\1layers.py\n",
    r" +- src/hlorank/evaluation/summary.py\n": "",
}
"""Of this project's dvc.yaml, whose code is in a package: patterns, and what takes their place."""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "init",
        help="start a project of your own: data, layers and settings",
        description="Writes a DVC project that trains on your data with the installed hlorank: the stages, settings "
        "that differ, a layer of your own, a folder for measured graphs, and a README. It is a git repository of its "
        "own, unless the folder is in one that does not ignore it, or there is no git.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new or an empty folder")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the project; after an error nothing of it is left."""
    folder: Path = arguments.folder
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"FOLDER {folder}: expected a new or an empty folder")
    existed = folder.exists()
    try:
        _write(folder)
    except BaseException:
        for path in [*folder.iterdir()] if existed else [folder]:
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True) if path.is_file() else None
        raise
    sys.stdout.write(f"{folder}: a project; its README.md says how to go on\n")
    return 0


def _write(folder: Path) -> None:
    from dvc.utils.hydra import compose_and_dump

    shutil.copytree(bundled("project"), folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    text = bundled("dvc.yaml").read_text(encoding="utf-8")
    for pattern, replacement in _CHANGES.items():
        text, found = re.subn(pattern, replacement, text)
        assert found, f"dvc.yaml has no {pattern}"
    write_text(folder / "dvc.yaml", text)
    write_text(folder / ".gitignore", "\n".join([*_IGNORED.split(), *_KEPT.split(), ""]))
    (folder / "data/own/layout/cpu/random").mkdir(parents=True)
    how, git = ["--no-scm"], shutil.which("git")
    if git is not None:
        tracked = _call(folder, git, "rev-parse") == 0 and _call(folder, git, "check-ignore", ".dvc") != 0
        how = ["--subdir"] * tracked
        if not tracked:
            _call(folder, git, "init", "--quiet", check=True)
    _call(folder, sys.executable, "-m", "dvc", "init", "--quiet", *how, check=True)
    with (folder / ".dvc/config").open("a", encoding="utf-8") as file:
        file.write(_DVC)
    with chdir(folder):
        compose_and_dump("params.yaml", str(Path("conf").resolve()), None, "pipeline", None, [])


def _call(folder: Path, *words: str, check: bool = False) -> int:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)  # noqa: S603 - words of this module
    if done.returncode and check:
        said = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise ConfigError(f"FOLDER {folder}: {' '.join(words)} failed: {said}")
    return done.returncode
