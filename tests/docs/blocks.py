"""The code blocks of the documentation, and the commands that a shell makes of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = {str(page.relative_to(ROOT)): page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = ("sh", "console")
# Instead of a program: appends its name and arguments, each ended by NUL, after their number; takes all that a pipe
# brings, and answers with the name of an empty file.
_STUB = """#!/bin/sh
while read -r _; do :; done
printf '%s\\0' "$(($# + 1))" "${0##*/}" "$@" >> "$COMMANDS"
echo /dev/null
"""


class Block(NamedTuple):
    """A block of code of a page."""

    language: str
    text: str

    @property
    def shell(self) -> bool:
        """Whether it holds commands."""
        return self.language in _SHELL


def blocks(page: str) -> list[Block]:
    """All blocks of a page that name a language, in their order."""
    return [Block(*found) for found in _BLOCK.findall(PAGES[page].read_text(encoding="utf-8"))]


def commands(page: str, programs: Iterable[str], place: Path) -> list[list[str]]:
    """What a shell would run of a page: programs with their arguments after all expansions, loops unrolled.

    Nothing runs: every program is one that only notes how it was called. An `&&` or a pipe goes on.

    Args:
        page: its name.
        programs: all that may be called; another one is an error.
        place: an empty folder; it gets links to the repository's files, which patterns such as *.npz then find.
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
