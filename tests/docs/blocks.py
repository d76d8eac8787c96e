"""Code blocks of the documentation, and the commands that a shell would run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_CARDS = (ROOT / "data" / name / "README.md" for name in ("models", "sample"))
PAGES = {
    str(page.relative_to(ROOT)): page for page in (ROOT / "README.md", *_CARDS, *sorted((ROOT / "docs").rglob("*.md")))
}

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = ("sh", "console")
# Replaces a program: appends the number of its name and arguments and then these, each followed by NUL; reads all of a
# pipe, and prints the name of an empty file.
_STUB = """#!/bin/sh
while read -r _; do :; done
printf '%s\\0' "$(($# + 1))" "${0##*/}" "$@" >> "$COMMANDS"
echo /dev/null
"""


class Block(NamedTuple):
    """A code block of a page."""

    language: str
    text: str

    @property
    def shell(self) -> bool:
        """True if the block contains commands."""
        return self.language in _SHELL


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page that name a language, in order."""
    return [Block(*found) for found in _BLOCK.findall(PAGES[page].read_text(encoding="utf-8"))]


def commands(page: str, programs: Iterable[str], place: Path) -> list[list[str]]:
    """Return the commands of a page as a shell would run them: after all expansions, loops unrolled.

    Nothing runs: every program is replaced by one that only records its arguments and succeeds.

    Args:
        page: name of the page.
        programs: names of the programs that a page may call; any other one is an error.
        place: an empty folder, in which links to the repository's files are created, for patterns such as *.npz.
    """
    for path in ROOT.iterdir():
        if path.name not in {".git", ".venv"}:
            (place / path.name).symlink_to(path)
    binaries = place / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "activate").touch()
    for program in programs:
        (binaries / program).write_text(_STUB)
        (binaries / program).chmod(0o755)
    notes = place / "commands"
    notes.touch()
    script = "\n".join(block.text for block in blocks(page) if block.shell)
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-euo", "pipefail", "-c", script],
        stdin=subprocess.DEVNULL,
        cwd=place,
        env={"PATH": f"{binaries}", "COMMANDS": str(notes), "PWD": str(place), "HOME": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = iter(notes.read_text(encoding="utf-8").split("\0")[:-1])
    return [[next(words) for _ in range(int(number))] for number in words]
