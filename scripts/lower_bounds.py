"""Print the lower bound of each requirement in pyproject.toml, as a constraints file for pip (`make lower-bounds`)."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Print one line for each requirement of the project and of its extras."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for group in (project["dependencies"], *project["optional-dependencies"].values()):
        for requirement in group:
            if not requirement.startswith("hlorank["):  # another of the groups
                # A constraint has no extras.
                sys.stdout.write(re.sub(r"(\[\w+\])?[>=]=([^,]+).*", r"==\2", requirement) + "\n")


if __name__ == "__main__":
    main()
