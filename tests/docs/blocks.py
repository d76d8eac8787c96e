"""Code blocks of the documentation, and the commands that a shell would run."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page
    for page in (ROOT / "README.md", *sorted(ROOT.glob("data/*/README.md")), *sorted((ROOT / "docs").rglob("*.md")))
}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Takes the place of every program: appends the number of its name and arguments and then these, each followed by NUL,
# to a file; reads all of a pipe, and prints the name of an empty file.
_PROGRAMS = r"""
cd() { :; }
command_not_found_handle() {
  while read -r _; do :; done
  printf '%s\0' $# "$@" >> commands
  echo /dev/null
}
"""


class Block(NamedTuple):
    """A code block of a page."""

    language: str
    text: str

    @property
    def shell(self) -> bool:
        """True if the block contains commands."""
        return self.language in ("sh", "console")


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page that name a language, in order."""
    return [Block(*found) for found in _BLOCK.findall(PAGES[page].read_text(encoding="utf-8"))]


def commands(page: str, place: Path) -> list[list[str]]:
    """Return the commands of a page after all expansions, loops unrolled; patterns find links in the empty `place`."""
    for path in ROOT.iterdir():
        if path.name not in {".git", ".venv"}:
            (place / path.name).symlink_to(path)
    script = _PROGRAMS + "\n".join(block.text for block in blocks(page) if block.shell)
    script = script.replace(". .venv/bin/activate\n", "").replace(".venv/bin/", "")
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-euo", "pipefail", "-c", script],
        stdin=subprocess.DEVNULL,
        cwd=place,
        env={"PATH": os.devnull, "HOME": os.devnull},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    words = iter((place / "commands").read_text(encoding="utf-8").split("\0")[:-1])
    return [[next(words) for _ in range(int(number))] for number in words]
